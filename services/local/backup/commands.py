"""`weft backup`, `weft restore` and `weft master-key` for the command line. They return plain dictionaries.

Imports are inside the functions, so that other commands do not load what only these need.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from services.core.domain.errors import Conflict, InvalidRequest
from services.core.runtime.home import Home, default_home
from services.core.runtime.processes import ProcessIdentity, read_live_process
from services.core.runtime.undo import undo_on_failure

if TYPE_CHECKING:
    from services.core.runtime.settings import Settings
    from services.local.backup.restoring import FindKey

T = TypeVar("T")
Report = Callable[[str], None]
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total)."""
_PASSPHRASE: Final = "WEFT_BACKUP_PASSPHRASE"  # noqa: S105 - its name


def _no_progress(_done: int, _total: int) -> None: ...


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
        progress: Progress = _no_progress,
    ) -> dict[str, Any]:
        """Writes a backup; the platform may run. Returns ``{file, bytes, counts, key, key_made, warnings}``.

        ``target`` is a new file, or a folder. ``key`` is the file of the key that encrypts the secrets; it is created
        if it is missing. Default: the backup's name with ``.key``. With ``passphrase`` (or WEFT_BACKUP_PASSPHRASE)
        there is no key file. Raises Conflict if the target exists, InvalidRequest if the platform does not run and the
        settings name other stores than it used last.
        """
        from services.local.backup import keys, saving
        from services.local.used_stores import refuse_changed_stores

        place = _home(home)
        if not (place / "VERSION").exists():
            raise InvalidRequest(f"there is no platform in {place.root}; name its folder with --home or WEFT_HOME")
        path = Path(target).absolute()
        if path.is_dir():
            path /= time.strftime("weft-%Y%m%d-%H%M%S.backup", time.gmtime())
        if path.exists():
            raise Conflict(f"{path} exists already; choose another name, or name a folder")
        passphrase = passphrase or os.environ.get(_PASSPHRASE)
        if passphrase:
            opens, file, made = keys.from_passphrase(passphrase), None, False
        else:
            file = Path(key).absolute() if key else _key_beside(path)
            opens, made = keys.made_key_file(file)

        def remove_new_key() -> None:
            # A backup that got its name before it was interrupted is whole, and needs its key.
            if made and file is not None and not path.exists():
                file.unlink(missing_ok=True)

        with undo_on_failure(remove_new_key), settings_of_running_platform(place) as settings:
            refuse_changed_stores(settings)
            answer = _run(saving.back_up(settings, path, opens, report=report, progress=progress))
        return {"file": str(path), "key": str(file) if file else "", "key_made": made, **answer}

    def verify_backup(
        self, source: str, *, key: str | None = None, passphrase: str | None = None, progress: Progress = _no_progress
    ) -> dict[str, Any]:
        """Reads and checks every byte. Returns ``{file, head, counts, authentic, warnings}``.

        ``authentic`` is True if the key was available and the HMAC is right. Raises InvalidRequest with the name of the
        first damaged entry.
        """
        from services.local.backup import restoring
        from services.local.backup.archive import Refused

        path = Path(source).absolute()
        find_key = _key_finder(path, key, passphrase)
        try:
            checked = restoring.check(path, find_key, progress=progress)
        except Refused:
            raise
        except InvalidRequest:
            if key or passphrase:
                raise
            checked = restoring.check(path, None, progress=progress)  # integrity only: the key is not available
        return {
            "file": str(path),
            "head": checked.head,
            "counts": checked.counts,
            "authentic": checked.key is not None,
            "warnings": checked.warnings,
        }

    def restore(
        self,
        source: str,
        home: str | None = None,
        *,
        key: str | None = None,
        passphrase: str | None = None,
        halted: bool = False,
        replace: bool = False,
        progress: Progress = _no_progress,
    ) -> dict[str, Any]:
        """Restores a platform. Returns ``{home, counts, head, again, halted, warnings}``.

        ``again`` and ``halted`` are the ids of the jobs that are queued again, or halted.
        """
        from services.core.runtime.settings import Settings
        from services.local.backup import restoring
        from services.local.used_stores import save_stores

        path, place = Path(source).absolute(), _home(home)
        with _environment({"WEFT_HOME": str(place.root)}):
            settings = Settings()
        find_key = _key_finder(path, key, passphrase)
        restored = restoring.restore(settings, path, find_key, halted=halted, over=replace, progress=progress)
        answer = _run(restored)
        save_stores(settings)
        return {"home": str(place.root), **answer}

    def master_key(self, home: str | None = None, *, rotate: bool = False, retire: bool = False) -> dict[str, Any]:
        """Shows, rotates or retires master keys; services may run.

        Returns ``{file, current, keys: [{id, secrets}], rewrapped, refused, retired}``.
        """
        from services.local.used_stores import refuse_changed_stores

        if rotate and retire:
            raise InvalidRequest("first --rotate, then --retire: services may be using the old key at this moment")
        with settings_of_running_platform(_home(home)) as settings:
            refuse_changed_stores(settings)
            return _run(_master_key(settings, rotate=rotate, retire=retire))


def _home(home: str | None) -> Home:
    return Home(Path(home).absolute()) if home else Home(default_home())


def _key_beside(path: Path) -> Path:
    return path.with_name(path.name + ".key")


def _key_finder(path: Path, key: str | None, passphrase: str | None) -> FindKey:
    """A function that finds the key of a backup from the key description in its head."""
    from services.local.backup import keys

    file = Path(key).absolute() if key else _key_beside(path)
    given = passphrase or os.environ.get(_PASSPHRASE)
    return lambda described: keys.opening_key(described, file=file, passphrase=given)


@contextlib.contextmanager
def settings_of_running_platform(home: Home) -> Generator[Settings]:
    """Settings from the environment of the running platform, so that the same stores are opened; else from ours."""
    from services.core.runtime.settings import Settings

    process = read_live_process(home / "run" / "api.json") or read_live_process(home / "run" / "supervisor.json")
    environment = read_settings(process) if process is not None else {}
    with _environment({**environment, "WEFT_HOME": str(home.root)}):
        yield Settings()


def read_settings(process: ProcessIdentity) -> dict[str, str]:
    """The settings in the environment of a process; empty if it has ended or belongs to another user."""
    try:
        pairs = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    variables = (pair.partition("=") for pair in pairs)
    return {name: value for name, _, value in variables if _is_setting(name)}


def _is_setting(name: str) -> bool:
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
    import asyncio

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
                retired = [key_id for key_id in file.keys().ids if key_id != file.keys().current.id]
                file.keep_only_current()
            keys, secrets_by_key = file.keys(), await secrets.wrapped_by()
        return {
            "file": str(file.path),
            "current": keys.current.id,
            "rewrapped": rewrapped,
            "refused": refused,
            "retired": retired,
            "keys": [{"id": key_id, "secrets": secrets_by_key.get(key_id, 0)} for key_id in keys.ids],
        }
    finally:
        await records.close()
