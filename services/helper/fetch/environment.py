"""The Python environment of a learner: the framework's pinned lock and the job's own requirements.txt, built by uv.

Cached by digest under ``$WEFT_HOME/cache/envs`` and shared by every learner with the same requirements. An environment
counts once its ``.ok`` exists; one without is left from a killed build and is built again. The builder holds a lock
that uv inherits, so after a helper's death its uv is still the only builder.

Only wheels: building a source distribution runs its author's code, here as the platform's own user. For the same
reason the platform runs nothing of an environment once the job's packages are in it, not even its ``python``: its
start-up would execute their ``.pth`` files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.domain.outages import Outage
from services.core.frameworks import Framework, find
from services.core.runtime.undo import undo_on_failure
from services.helper.fetch.build_user import as_user, build_user, give, own_folder
from services.helper.fetch.faults import outage_of_build
from services.helper.fetch.lock import hold_lock
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.log import log_event
from services.helper.settings import load_settings

REASON: Final = "EnvironmentFailed"
_SCHEMA: Final = "1"
_OK: Final = ".ok"
_HASH: Final = re.compile(r"\s--hash[= ]\S+")
_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_FILES: Final = (".whl", ".zip", ".gz", ".tgz", ".bz2", ".xz", ".tar")
"""Endings of valid names that uv takes for files."""
_NAME_CHARS: Final = 255
"""No package has a longer name, since no file has. An index that refuses it would look like one that is away."""
_MAX_REQUIREMENTS: Final = 256 * 2**10
_LAST_LINES: Final = 12
_OUTAGES: Final = {
    Outage.NO_SPACE: "The disk of the machine's caches is full.",
    Outage.INDEX_UNAVAILABLE: "The package index does not answer.",
    Outage.MACHINE_FAULT: "uv crashed, or its machine had no memory for it.",
}
_PIP_FILES: Final = ("env", "site", "user", "global")
"""Kinds of files of pip's settings. A setting of an earlier kind counts. ``env``: the file of ``PIP_CONFIG_FILE``."""
_COMPILE_S: Final = 600
_SYSTEM_AUTHORITIES: Final = tuple(
    map(Path, ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"))
)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What an environment contains. Its digest names it."""

    python: Path
    lock: str
    requirements: str
    label: str
    """For people: ``jax 0.10.2 (565 MB)``."""
    size: int | None = None
    """Bytes of its files, roughly; None: unknown."""

    @property
    def digest(self) -> str:
        hashing = hashlib.sha256()
        for part in (
            _SCHEMA,
            platform.python_version(),
            platform.machine(),
            str(self.python),
            self.lock,
            self.requirements,
        ):
            hashing.update(f"{len(part)}:{part}".encode())
        return hashing.hexdigest()


def required_environment(framework: str, model_dir: Path) -> EnvironmentSpec | None:
    """What the job needs; None for a job without framework and requirements.txt. Raises FetchFailed.

    ``model_dir``: the job's code, in a folder that learners cannot write.
    """
    requirements = _requirements(model_dir / "requirements.txt")
    if not framework and not requirements:
        return None
    entry = _entry(framework) if framework else None
    label = f"{entry.name} {entry.version} ({entry.size_mb} MB)" if entry is not None else "requirements.txt"
    lock = entry.lock_text() if entry is not None else ""
    if entry is not None:
        _check_pins(requirements, lock, f"{entry.name} {entry.version}")
    size = entry.size_mb * 10**6 if entry is not None else None
    return EnvironmentSpec(find_interpreter(), lock, requirements, label, size)


def prepare(spec: EnvironmentSpec, cache: Path, progress: FetchProgress) -> Path:
    """Returns the environment's folder, complete; builds it if needed.

    Raises FetchFailed with the last lines of uv's output (an outage if the index is away), FetchCancelled.
    """
    envs = cache / "envs"
    for folder in (cache, envs):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711)  # learners pass through; they cannot list it
    place = envs / spec.digest
    waiting = f"waiting for another learner that builds the environment: {spec.label}"
    with hold_lock(envs / f"{spec.digest}.lock", progress, waiting) as lock:
        if not (place / _OK).exists():
            progress.report(f"building the environment: {spec.label}")
            with undo_on_failure(lambda: shutil.rmtree(place, ignore_errors=True)):
                _build(spec, place, cache, lock, progress)
        os.utime(place / _OK)  # used now: the cache removes those that were not used for longest
    return place


def find_interpreter() -> Path:
    """A Python that learners can run, too: as root they have users of their own, who see nothing in /root.

    Raises FetchFailed where there is none.
    """
    own = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    candidates = (own, Path("/usr/bin/python3").resolve(), Path("/usr/local/bin/python3").resolve())
    for path in candidates if os.geteuid() == 0 else (own,):
        if path.exists() and (os.geteuid() != 0 or _is_open_to_all(path)):
            return path
    raise FetchFailed(
        REASON,
        "learners' own users cannot run the Python that Weft runs on; install one under /usr and start Weft with it",
    )


def _is_open_to_all(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o005 == 0o005) and all(parent.stat().st_mode & 0o001 for parent in path.parents)


def _entry(framework: str) -> Framework:
    name, _, version = framework.rpartition("-")
    entry = find(name, version)
    if entry is None:
        raise FetchFailed(REASON, f"this version of Weft has no framework {framework}; see `weft frameworks`")
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - only for jobs with a framework

    if not SpecifierSet(entry.python).contains(platform.python_version(), prereleases=True):
        have = platform.python_version()
        raise FetchFailed(
            REASON, f"{framework} needs Python {entry.python}, and Weft runs on {have} here; choose another"
        )
    return entry


def _check_pins(requirements: str, lock: str, framework: str) -> None:
    """Raises FetchFailed for a requirement that excludes the version of the framework's lock."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - only for jobs with a framework
    from packaging.utils import canonicalize_name  # noqa: PLC0415 - as above

    pins = {}
    for line in _constraints(lock).splitlines():
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate():
            pins[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    for line in requirements.splitlines():
        wanted = Requirement(line)
        version = pins.get(canonicalize_name(wanted.name))
        applies = wanted.marker is None or wanted.marker.evaluate()
        if version is not None and applies and not wanted.specifier.contains(version, prereleases=True):
            raise FetchFailed(
                REASON,
                f"the framework {framework} fixes {wanted.name} {version}, and requirements.txt wants "
                f"{wanted.name}{wanted.specifier}: remove that line, or choose another framework (`weft frameworks`)",
            )


def _requirements(path: Path) -> str:
    """The requirements of the job's requirements.txt, one a line; empty without the file.

    Raises FetchFailed for a line that is no name with a version. Options, addresses and paths are refused: the
    platform's user would read files and call addresses that the job's owner has no right to.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_REQUIREMENTS + 1)
    except FileNotFoundError:
        return ""
    if len(raw) > _MAX_REQUIREMENTS:
        raise FetchFailed(REASON, "requirements.txt is larger than 256 KiB")
    text = raw.decode("utf-8-sig", "replace").replace("\\\r\n", " ").replace("\\\n", " ")
    return "\n".join(
        _requirement(line, number)
        for number, whole in enumerate(text.splitlines(), 1)
        if (line := _HASH.sub("", _COMMENT.sub("", whole)).strip())
    )


def _requirement(line: str, number: int) -> str:
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - most jobs have none

    with contextlib.suppress(InvalidRequirement):
        requirement = Requirement(line)
        is_name = len(requirement.name) <= _NAME_CHARS and not requirement.name.lower().endswith(_FILES)
        if requirement.url is None and is_name:
            return str(requirement)
    shown = line[:80].encode("unicode_escape").decode()
    what = "write names and versions only, e.g. rich>=13"
    raise FetchFailed(REASON, f"requirements.txt, line {number}: '{shown}' cannot be taken; {what}")


def _build(spec: EnvironmentSpec, place: Path, cache: Path, lock: int, progress: FetchProgress) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    place.chmod(0o755)
    with hold_lock(cache / "uv.lock", progress, "waiting for room in the package cache", shared=True) as packages:
        os.utime(packages)
        uv = _Uv(cache, lock, progress, size=spec.size)
        give(place, uv.user)
        _install(spec, place, uv)
    progress.report(f"compiling the environment: {spec.label}")
    _compile(spec.python, place / "venv", lock, progress, uv.user)
    _make_readable(place)
    (place / _OK).touch()


def _install(spec: EnvironmentSpec, place: Path, uv: _Uv) -> None:
    venv = place / "venv"
    uv.run("venv", "--no-project", "--python", str(spec.python), str(venv))
    target = ("--python", str(venv / "bin" / "python"), "--only-binary", ":all:")
    if spec.lock:
        (place / "lock.txt").write_text(spec.lock)
        uv.run("pip", "sync", *target, "--require-hashes", str(place / "lock.txt"))
    if spec.requirements:
        (place / "requirements.txt").write_text(spec.requirements + "\n")
        arguments: tuple[str, ...] = ("-r", str(place / "requirements.txt"))
        if spec.lock:
            (place / "constraints.txt").write_text(_constraints(spec.lock))
            arguments += ("-c", str(place / "constraints.txt"))
        uv.run("pip", "install", *target, *arguments)


def _constraints(lock: str) -> str:
    """The lock's pins without their hashes: the job's own packages may not change the framework's versions."""
    return "\n".join(line.removesuffix("\\").strip() for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line))


def _compile(python: Path, venv: Path, lock: int, progress: FetchProgress, user: int | None) -> None:
    """Writes byte code, which learners cannot. The bare interpreter does: it runs nothing of the environment."""
    command = [str(python), "-I", "-S", "-m", "compileall", "-q", "-j", "0", str(venv / "lib")]
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        env={"PATH": os.defpath},
        **as_user(user),
    )
    _wait(process, progress, _COMPILE_S)  # files that are no valid Python do not make it fail


def _make_readable(place: Path) -> None:
    """Makes all of it readable for every user, whatever modes the wheels have, and writable for the platform only."""
    for root, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = os.path.join(root, name)  # noqa: PTH118 - half a million files; Path costs more than the system call
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode):  # a link has no mode of its own
                executable = 0o111 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0
                os.chmod(path, (mode & 0o755) | 0o444 | executable)  # noqa: PTH101 - as above


class _Uv:
    def __init__(self, cache: Path, lock: int, progress: FetchProgress, *, size: int | None) -> None:
        """``size``: bytes of the environment, roughly; None: unknown."""
        import uv  # noqa: PLC0415 - needed for a build only, not for an environment that exists

        self._binary = uv.find_uv_bin()
        self.user = build_user(load_settings().build_uid, (Path(self._binary), cache / "uv"))
        self._cache = cache / "uv"
        own_folder(self._cache, self.user)
        self._lock = lock
        self._progress = progress
        self._is_shared = os.geteuid() == 0
        """As root, learners cannot write to the package cache: one file for all environments that have it."""
        # A copy is written twice: to the package cache, and to the environment.
        self._size = size if size is None or self._is_shared else 2 * size
        self._written = 0
        """Bytes that earlier runs have written."""
        self._environment = self._make_environment()

    def run(self, *arguments: str) -> None:
        """Runs uv with the arguments. Raises FetchFailed with the last lines of its output."""
        # In memory: on a full disk the file would not contain the reason.
        with os.fdopen(os.memfd_create("uv"), "w+b") as out:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                [self._binary, *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=(self._lock,),
                env=self._environment,
                **as_user(self.user),
            )
            written = 0

            def watch() -> None:
                nonlocal written
                written = max(written, _written(process.pid))
                self._progress.report_bytes(self._written + written, self._size)

            code = _wait(process, self._progress, None, watch)
            self._written += written
            out.seek(0)
            output = out.read().decode("utf-8", "replace")
        if code != 0:
            lines = [line for line in output.splitlines() if line.strip() and not line.startswith("Using Python")]
            last = "\n".join(lines[-_LAST_LINES:])
            log_event("uv.failed", arguments=arguments, code=code, output=last)
            outage = outage_of_build(output, code or 0)
            why = _OUTAGES[outage] if outage is not None else _advice(last)
            uv_output = f"uv says: {last}" if last else f"uv ended with code {code} and without a message"
            raise FetchFailed(outage or REASON, f"the environment cannot be built. {why} {uv_output}")

    def _make_environment(self) -> dict[str, str]:
        out = {
            **with_system_authorities(os.environ),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_CACHE_DIR": str(self._cache),
            "UV_NO_PROGRESS": "1",
            "UV_LINK_MODE": "hardlink" if self._is_shared else "copy",
            "NO_COLOR": "1",
        }
        if self.user is not None:  # it cannot read the configuration in root's home
            out |= {"HOME": str(self._cache), "TMPDIR": str(self._cache)}
            for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
                out.pop(name, None)
        if not uv_names_index(out) and (mirror := mirror_of_pip()):
            out["UV_DEFAULT_INDEX"] = mirror
        return out


def with_system_authorities(
    environment: Mapping[str, str], bundles: Collection[Path] = _SYSTEM_AUTHORITIES
) -> dict[str, str]:
    """The environment in which uv trusts the system's authorities, also a company's, if the system has any.

    uv has its own authorities otherwise. A setting of the operator stays. ``bundles``: where systems keep them.
    """
    if not any(path.exists() and path.stat().st_size for path in bundles):
        return dict(environment)
    return {"UV_SYSTEM_CERTS": "true", **environment}


def uv_names_index(environment: Mapping[str, str]) -> bool:
    """Whether uv's variables or files name a package index. It counts before that of pip's settings."""
    if environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL"):
        return True
    given = environment.get("UV_CONFIG_FILE")
    users = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config")
    for file in (Path(given),) if given else (users / "uv" / "uv.toml", Path("/etc/uv/uv.toml")):
        with contextlib.suppress(OSError, ValueError):  # uv says itself what is wrong with the file
            settings = tomllib.loads(file.read_text())
            pip = settings.get("pip")
            if {"index", "index-url"} & {*settings, *(pip if isinstance(pip, dict) else ())}:
                return True
    return False


def mirror_of_pip(python: str = sys.executable, timeout_s: float = 60) -> str:
    """The package index of pip's settings, which uv does not read. Empty: they name none, or there is no pip.

    Raises FetchFailed if they cannot be read: on the public index, others may offer packages under a company's names.
    """
    if given := os.environ.get("PIP_INDEX_URL"):
        return given
    # Not ``pip config get``: it reads one file, the user's or the virtual environment's, and not /etc/pip.conf.
    command = [python, "-m", "pip", "config", "debug"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unknown_index(command, repr(error)) from error
    if done.returncode == 0:
        return _index_of(done.stdout)
    if done.stderr.rstrip().endswith("No module named pip"):
        return ""
    # Without pip's message: it may quote a line that has a password.
    raise _unknown_index(command, f"exit code {done.returncode}")


def _index_of(settings: str) -> str:
    """``settings``: the output of ``pip config debug``, with a section for each kind of file."""
    indexes: dict[str, str] = {}
    kind = ""
    for line in settings.splitlines():
        if not line.startswith(" "):
            kind = line.removesuffix(":")
        elif match := re.fullmatch(r" +global\.index-url: *(\S+)", line):
            indexes[kind] = match[1]
    return next((indexes[kind] for kind in _PIP_FILES if kind in indexes), "")


def _unknown_index(command: list[str], why: str) -> FetchFailed:
    log_event("pip.unreadable", error=why)
    return FetchFailed(
        Outage.MACHINE_FAULT,
        f"the environment cannot be built. The package index is unknown: `python {' '.join(command[1:])}` failed on "
        f"the job's machine ({why}). Set UV_DEFAULT_INDEX there if that happens again",
    )


def _advice(output: str) -> str:
    low = output.lower()
    if "no wheels" in low or "no usable wheels" in low or "only-binary" in low or "building source" in low:
        return "Only packages that come as wheels can be installed: choose a version that has one for this machine."
    return "Check the job's requirements.txt."


def _written(pid: int) -> int:
    """Bytes that a process has written to files: what uv unpacks while it downloads. 0 if the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = dict(line.split(": ", 1) for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return int(fields.get("wchar", 0))
    return 0


def _wait(
    process: subprocess.Popen[bytes],
    progress: FetchProgress,
    timeout_s: float | None,
    watch: Callable[[], None] = lambda: None,
) -> int | None:
    """The exit code; None after ``timeout_s``. Kills the process when it takes too long or the learner is stopped.

    ``watch`` is called ten times a second.
    """
    left = timeout_s
    try:
        while left is None or left > 0:
            watch()
            try:
                return process.wait(0.1)
            except subprocess.TimeoutExpired:
                progress.check()
                left = None if left is None else left - 0.1
        return None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
