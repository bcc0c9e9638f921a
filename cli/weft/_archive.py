"""The code archive: a folder as a zip that is the same, byte for byte, whenever the files are the same.

So the digest tells the platform whether it has this code already, and a job that is submitted twice uploads once.
Names are sorted, times fixed, and of a file's mode only "executable" is kept.

What goes in: every file of the folder but those that are ignored by, in rising precedence, the built-in list,
.gitignore files, .weftignore files (each holds for its own folder and below, and the deeper wins). Patterns are
gitignore's. In one point .weftignore is stronger than git: `!data/train.csv` takes a file back in although .gitignore
leaves out the whole folder. What `weft download` wrote is ignored, too, and only a .weftignore takes it back. That does
not hold for files that were changed since, and for a job's code if it was downloaded into the very folder that is sent.

What a link points to is stored in its place, as long as it lies in the folder; a link that leaves it is refused: the
archive would hold what its owner does not see, or miss what the code needs.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Self

from pathspec import GitIgnoreSpec

from weft._download_record import unchanged_downloads
from weft._errors import InvalidArchive

# Made by tools, or by running the code: never the code itself. `!name` in .weftignore takes one back.
ALWAYS_IGNORED: Final = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.py[co]",
    ".venv/",
    "node_modules/",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".tox/",
    ".DS_Store",
    ".weftignore",
    ".weft-download",
    ".*.weft-part",
)
# Keys and passwords: a plan names those that it leaves out. `!name` in .weftignore takes one back.
PRIVATE: Final = (
    ".env",
    ".env.*",
    "!.env.example",
    "!.env.template",
    "*.pem",
    "*.key",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    ".ssh/",
    ".aws/",
    ".netrc",
    ".pypirc",
    "kubeconfig",
    ".kube/",
    ".git-credentials",
    ".npmrc",
    "credentials.json",
    "service-account*.json",
)
_FIXED_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the first that a zip can say
_CHUNK: Final = 1 << 20
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file that goes into the archive."""

    path: str
    """Inside the archive, with slashes."""
    source: Path
    size: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder's archive will hold."""

    files: tuple[CodeFile, ...]
    """By path."""
    skipped: tuple[str, ...] = ()
    """Sockets, pipes and devices: nothing that could be stored."""
    private: tuple[str, ...] = ()
    """Keys, passwords and downloads that are left out by default."""

    @property
    def size(self) -> int:
        """Bytes, before compression."""
        return sum(file.size for file in self.files)

    def largest(self, count: int = 5) -> list[CodeFile]:
        return sorted(self.files, key=lambda file: (-file.size, file.path))[:count]


@dataclass(slots=True)
class Archive:
    """A zip on disk. Close it to remove what was made for it."""

    path: Path
    digest: str
    """``sha256:<hex>`` of the zip."""
    size: int
    """Bytes, compressed."""
    listing: Listing
    temporary: bool = field(default=False, repr=False)

    def close(self) -> None:
        if self.temporary:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def list_code(folder: Path) -> Listing:
    """What ``folder``'s archive would hold. InvalidArchive where it cannot be made, with what to do."""
    root = Path(os.path.realpath(folder))
    if not root.is_dir():
        raise InvalidArchive(f"{folder} is no folder with code")
    left_out = _LeftOut()
    files = sorted(_walk(root, _Place(PurePosixPath(), (root,)), _Rules(), left_out), key=lambda file: file.path)
    if not files:
        raise _nothing_to_upload(folder, left_out)
    return Listing(tuple(files), tuple(left_out.skipped), tuple(left_out.private))


def _nothing_to_upload(folder: Path, left_out: _LeftOut) -> InvalidArchive:
    downloads = [path for path in left_out.private if PurePosixPath(path) in left_out.downloads]
    if downloads:
        shown = ", ".join(downloads[:_SHOWN]) + (f" and {len(downloads) - _SHOWN} more" if downloads[_SHOWN:] else "")
        return InvalidArchive(
            f"{folder} holds no file to upload: `weft download` wrote {shown}, and downloads are left out; "
            "`!NAME` in .weftignore sends one"
        )
    return InvalidArchive(f"{folder} holds no file to upload: look into its .weftignore and .gitignore")


def make_archive(code: Path, listing: Listing | None = None) -> Archive:
    """The archive of a folder, or the zip that ``code`` is. ``listing``: what `list_code` gave, to not ask again."""
    if code.is_file():
        return _given_zip(code)
    listing = listing or list_code(code)
    place = "a folder for temporary files"
    try:
        place = tempfile.gettempdir()
        return _temporary_zip(listing)
    except OSError as failed:  # of writing: what cannot be read of the code is InvalidArchive already
        raise InvalidArchive(
            f"the archive of {code} cannot be written to {place} ({failed.strerror}); "
            "make room there, or name another folder in TMPDIR"
        ) from None


def _temporary_zip(listing: Listing) -> Archive:
    handle, name = tempfile.mkstemp(prefix="weft-code-", suffix=".zip")
    path = Path(name)
    with ExitStack() as on_failure:
        on_failure.callback(path.unlink, missing_ok=True)
        with os.fdopen(handle, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as zipped:
            for file in listing.files:
                _add(zipped, file)
        archive = Archive(path, _digest(path), path.stat().st_size, listing, temporary=True)
        on_failure.pop_all()
    return archive


def _given_zip(code: Path) -> Archive:
    try:
        with zipfile.ZipFile(code) as zipped:
            entries = [entry for entry in zipped.infolist() if not entry.is_dir()]
    except (OSError, zipfile.BadZipFile) as broken:
        raise InvalidArchive(f"{code} is neither a folder nor a zip file ({broken})") from None
    files = tuple(CodeFile(entry.filename, code, entry.file_size) for entry in entries)
    return Archive(code, _digest(code), code.stat().st_size, Listing(files))


def _add(zipped: zipfile.ZipFile, file: CodeFile) -> None:
    entry = zipfile.ZipInfo(file.path, _FIXED_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3  # Unix, wherever it is made
    entry.external_attr = (stat.S_IFREG | (0o755 if file.executable else 0o644)) << 16
    entry.file_size = file.size  # lets the zip decide on its large form before it begins
    with zipped.open(entry, "w") as target:
        for chunk in _chunks(file):
            target.write(chunk)


def _chunks(file: CodeFile) -> Iterator[bytes]:
    """The content of a file. An error of reading is InvalidArchive, which names the file."""
    try:
        with file.source.open("rb") as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    except OSError as failed:
        raise _unreadable(PurePosixPath(file.path), failed) from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


# --- what is ignored ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rules:
    """The ignore files that hold in a folder, outermost first, each with the folder it lies in."""

    git: tuple[tuple[PurePosixPath, GitIgnoreSpec], ...] = ()
    weft: tuple[tuple[PurePosixPath, GitIgnoreSpec], ...] = ()
    takes_back: bool = False
    """A .weftignore has patterns with "!": ignored folders have to be looked into."""
    inside_ignored: bool = False

    def within(self, root: Path, folder: PurePosixPath) -> _Rules:
        """These rules and those of the ignore files that lie in ``folder``."""
        git, weft = _read(root / folder / ".gitignore"), _read(root / folder / ".weftignore")
        return _Rules(
            git=(*self.git, (folder, GitIgnoreSpec.from_lines(git))) if git else self.git,
            weft=(*self.weft, (folder, GitIgnoreSpec.from_lines(weft))) if weft else self.weft,
            takes_back=self.takes_back or any(line.startswith("!") for line in weft),
            inside_ignored=self.inside_ignored,
        )

    def ignores(self, path: PurePosixPath, *, folder: bool, downloaded: bool) -> bool:
        pattern_path = f"{path}/" if folder else str(path)
        verdict = _BUILT_IN.check_file(pattern_path).include or False
        if not self.inside_ignored:
            verdict = _last_word(self.git, path, folder=folder, default=verdict)
        return _last_word(self.weft, path, folder=folder, default=verdict or downloaded or self.inside_ignored)


_BUILT_IN: Final = GitIgnoreSpec.from_lines([*ALWAYS_IGNORED, *PRIVATE])
_PRIVATE: Final = GitIgnoreSpec.from_lines(PRIVATE)


def _last_word(
    rules: tuple[tuple[PurePosixPath, GitIgnoreSpec], ...], path: PurePosixPath, *, folder: bool, default: bool
) -> bool:
    ignored = default
    for place, spec in rules:
        inner = path.relative_to(place)
        verdict = spec.check_file(f"{inner}/" if folder else str(inner)).include
        ignored = ignored if verdict is None else verdict
    return ignored


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return []
    except OSError as failed:
        raise InvalidArchive(f"{path} cannot be read ({failed.strerror})") from None


# --- the folder -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder on the way through the tree."""

    path: PurePosixPath
    """Inside the archive."""
    open: tuple[Path, ...]
    """Where this folder and those around it really lie."""


@dataclass(slots=True)
class _LeftOut:
    """What a walk met and left out."""

    skipped: list[str] = field(default_factory=list)
    private: list[str] = field(default_factory=list)
    downloads: set[PurePosixPath] = field(default_factory=set)
    """Files that `weft download` wrote and that are unchanged, of the folders so far; no code of the outermost."""


def _walk(root: Path, place: _Place, rules: _Rules, left_out: _LeftOut) -> Iterator[CodeFile]:
    """Files below a folder."""
    rules = rules.within(root, place.path)
    downloads = unchanged_downloads(root / place.path, code=len(place.open) > 1)
    left_out.downloads |= {place.path / name for name in downloads}
    try:
        entries = sorted(os.scandir(root / place.path), key=lambda entry: entry.name)
    except OSError as failed:
        raise _unreadable(place.path, failed) from None
    for entry in entries:
        path = place.path / entry.name
        is_folder = _is_folder(entry, path)
        is_download = path in left_out.downloads
        ignored = rules.ignores(path, folder=is_folder, downloaded=is_download)
        ignored = ignored or (is_folder and _is_environment(entry))
        if ignored and (is_download or _PRIVATE.match_file(f"{path}/" if is_folder else str(path))):
            left_out.private.append(str(path))
        if ignored and not (is_folder and rules.takes_back and not entry.is_symlink()):
            continue
        target = _target(root, place.open[-1] / entry.name, path)
        if is_folder:
            if any(target == around or target in around.parents for around in place.open):
                raise InvalidArchive(f"the link {path} leads back to a folder that holds it; remove it or ignore it")
            inner = _Rules(rules.git, rules.weft, rules.takes_back, inside_ignored=ignored)
            yield from _walk(root, _Place(path, (*place.open, target)), inner, left_out)
            continue
        status = entry.stat()
        if not stat.S_ISREG(status.st_mode):
            left_out.skipped.append(str(path))
            continue
        yield CodeFile(_plain_name(path), root / path, status.st_size, bool(status.st_mode & 0o100))


def _is_folder(entry: os.DirEntry[str], path: PurePosixPath) -> bool:
    try:
        return entry.is_dir()
    except OSError as failed:  # links in a ring
        raise _unreadable(path, failed) from None


def _unreadable(path: PurePosixPath, failed: OSError) -> InvalidArchive:
    return InvalidArchive(f"{path} cannot be read ({failed.strerror}); mend it or list it in .weftignore")


def _is_environment(entry: os.DirEntry[str]) -> bool:
    """A Python environment, whatever its name: it works on this machine only."""
    return os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))  # noqa: PTH110, PTH118 - asked for every folder


def _target(root: Path, entry: Path, path: PurePosixPath) -> Path:
    """Where an entry really lies; refused where that is nowhere or outside."""
    if not entry.is_symlink():
        return entry
    target = Path(os.path.realpath(entry))
    if not target.exists():
        raise InvalidArchive(f"the link {path} points to nothing; remove it or list it in .weftignore")
    if root not in target.parents:
        raise InvalidArchive(
            f"the link {path} leaves the code folder (it points to {target}); "
            "copy what it points to into the folder, or list the link in .weftignore"
        )
    return target


def _plain_name(path: PurePosixPath) -> str:
    name = str(path)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        shown = name.encode("utf-8", "replace").decode()
        raise InvalidArchive(f"the file name {shown!r} is not UTF-8; rename it or list it in .weftignore") from None
    return name
