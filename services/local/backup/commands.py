"""What the command line asks: `weft backup`, `weft restore`, `weft master-key`. Plain dictionaries, as its siblings.

Imports are inside the functions: `weft status` and its like do not wait for what only these need.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from services.core.domain.errors import Conflict, InvalidRequest
from services.core.runtime.home import Home, default_home
from services.core.runtime.processes import read_live_process

if TYPE_CHECKING:
    from services.core.runtime.settings import Settings
    from services.local.backup.restoring import FindKey

T = TypeVar("T")
Report = Callable[[str], None]
Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)."""
_PASSPHRASE: Final = "WEFT_BACKUP_PASSPHRASE"  # noqa: S105 - its name


def _quiet(_done: int, _whole: int) -> None: ...


class Backups:
    """Part of ``services.local.commands.Platform``."""

    def backup(
        self,
        target: str,
        home: str | None = None,
        *,
        key: str | None = None,
        passphrase: str | None = None,
        report: Report = print,
        progress: Progress = _quiet,
    ) -> dict[str, Any]:
        """Writes a backup, whether or not the platform runs: ``{file, bytes, counts, key, key_made, warnings}``.

        ``target``: a new file, or a folder. ``key``: the file of the key that seals its secrets, made where it is
        missing; by default the backup's name with ``.key``. With ``passphrase`` (or WEFT_BACKUP_PASSPHRASE) no file.
        """
        from services.local.backup import keys, saving

        place = _home(home)
        if not (place / "VERSION").exists():
            raise InvalidRequest(f"there is no platform in {place.root}; name its folder with --home or WEFT_HOME")
        path = Path(target).absolute()
        if path.is_dir():
            path /= time.strftime("weft-%Y%m%d-%H%M%S.backup", time.gmtime())
        if path.exists():
            raise Conflict(f"{path} is there already; choose another name, or name a folder")
        passphrase = passphrase or os.environ.get(_PASSPHRASE)
        if passphrase:
            opens, file, made = keys.from_passphrase(passphrase), None, False
        else:
            file = Path(key).absolute() if key else _key_beside(path)
            opens, made = keys.made_key_file(file)
        try:
            with _as_it_runs(place) as settings:
                answer = _run(saving.back_up(settings, path, opens, report=report, progress=progress))
        except BaseException:
            if made and file is not None:
                file.unlink(missing_ok=True)  # it opens nothing
            raise
        return {"file": str(path), "key": str(file) if file else "", "key_made": made, **answer}

    def verify_backup(
        self, source: str, *, key: str | None = None, passphrase: str | None = None, progress: Progress = _quiet
    ) -> dict[str, Any]:
        """Reads every byte: ``{file, head, counts, authentic}``. Where its key is at hand also who wrote it.

        InvalidRequest, naming the entry, where it is not whole.
        """
        from services.local.backup import restoring
        from services.local.backup.archive import Refused

        path = Path(source).absolute()
        find_key = _finding(path, key, passphrase)
        try:
            checked = restoring.check(path, find_key, progress=progress)
        except Refused:
            raise
        except InvalidRequest:
            if key or passphrase:
                raise
            checked = restoring.check(path, None, progress=progress)  # without its key, then
        return {
            "file": str(path), "head": checked.head, "counts": checked.counts, "authentic": checked.key is not None,
        }  # fmt: skip

    def restore(
        self,
        source: str,
        home: str | None = None,
        *,
        key: str | None = None,
        passphrase: str | None = None,
        halted: bool = False,
        replace: bool = False,
        progress: Progress = _quiet,
    ) -> dict[str, Any]:
        """Brings a platform back: ``{home, counts, head, again, halted}``; ids of jobs that go on, or are halted."""
        from services.core.runtime.settings import Settings
        from services.local.backup import restoring

        path, place = Path(source).absolute(), _home(home)
        with _environment({"WEFT_HOME": str(place.root)}):
            settings = Settings()
        find_key = _finding(path, key, passphrase)
        restored = restoring.restore(settings, path, find_key, halted=halted, over=replace, progress=progress)
        return {"home": str(place.root), **_run(restored)}

    def master_key(self, home: str | None = None, *, rotate: bool = False, retire: bool = False) -> dict[str, Any]:
        """``{file, current, keys: [{id, secrets}], rewrapped, refused, retired}``. May be done while services run."""
        if rotate and retire:
            raise InvalidRequest("first --rotate, then --retire: services may be using the old key at this moment")
        with _as_it_runs(_home(home)) as settings:
            return _run(_master_key(settings, rotate=rotate, retire=retire))


def _home(home: str | None) -> Home:
    return Home(Path(home).absolute()) if home else Home(default_home())


def _key_beside(path: Path) -> Path:
    return path.with_name(path.name + ".key")


def _finding(path: Path, key: str | None, passphrase: str | None) -> FindKey:
    """How the key of a backup is found, once its head has said which kind it is."""
    from services.local.backup import keys

    file = Path(key).absolute() if key else _key_beside(path)
    given = passphrase or os.environ.get(_PASSPHRASE)
    return lambda described: keys.opening_key(described, file=file, passphrase=given)


@contextlib.contextmanager
def _as_it_runs(home: Home) -> Generator[Settings]:
    """The settings that the platform runs with, where it runs: who backs it up must not look into other stores."""
    from services.core.runtime.settings import Settings

    theirs: dict[str, str] = {}
    process = read_live_process(home / "run" / "api.json") or read_live_process(home / "run" / "supervisor.json")
    if process is not None:
        with contextlib.suppress(OSError):
            pairs = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
            theirs = {name: value for name, _, value in (pair.partition("=") for pair in pairs) if _is_ours(name)}
    with _environment({**theirs, "WEFT_HOME": str(home.root)}):
        yield Settings()


def _is_ours(name: str) -> bool:
    return name.startswith("WEFT_") and name != _PASSPHRASE


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _run(work: Awaitable[T]) -> T:
    async def body() -> T:
        return await work

    return asyncio.run(body())


async def _master_key(settings: Settings, *, rotate: bool, retire: bool) -> dict[str, Any]:
    from services.core.bootstrap import wiring

    records = await wiring.record_store(settings)
    try:
        file = wiring.master_keys(settings)
        secrets = await wiring.secret_store(settings, records)
        rewrapped = refused = 0
        retired: list[str] = []
        with file.changing() if rotate or retire else contextlib.nullcontext():
            if rotate:
                file.add()
            if rotate or retire:
                rewrapped, refused = await secrets.rewrap()
            if retire:
                if refused:
                    raise Conflict(f"{refused} secrets cannot be read; write them again before a key is retired")
                retired = [one for one in file.keys().ids if one != file.keys().current.id]
                file.keep_only_current()
            known, wrapped = file.keys(), await secrets.wrapped_by()
        return {
            "file": str(file.path), "current": known.current.id, "rewrapped": rewrapped, "refused": refused,
            "retired": retired, "keys": [{"id": one, "secrets": wrapped.get(one, 0)} for one in known.ids],
        }  # fmt: skip
    finally:
        await records.close()
