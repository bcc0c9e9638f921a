"""Unpacks a code archive into a folder."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from weft._choosing import inside, part_file
from weft._download_record import DownloadRecord
from weft._errors import InvalidArchive


def unpack(archive: Path, folder: Path, record: DownloadRecord, *, etag: str, force: bool) -> list[Path]:
    """Unpacks ``archive`` into ``folder`` and removes it. Returns the files, and records them under ``etag``.

    Raises Conflict where local files would be replaced, unless ``force``; then nothing was unpacked.
    """
    try:
        with zipfile.ZipFile(archive) as zipped:
            entries = [entry for entry in zipped.infolist() if not entry.is_dir()]
            targets = [inside(folder, entry.filename) for entry in entries]
            if not force:
                record.check(targets)
            for entry, target in zip(entries, targets, strict=True):
                target.parent.mkdir(parents=True, exist_ok=True)
                part = part_file(target, etag)
                with zipped.open(entry) as source, part.open("wb") as out:
                    shutil.copyfileobj(source, out)
                if entry.external_attr >> 16 & 0o100:
                    part.chmod(part.stat().st_mode | 0o111)
                record.place(part, target, etag)
    except zipfile.BadZipFile as broken:
        raise InvalidArchive(f"{archive} is no zip file ({broken})") from None
    finally:
        archive.unlink(missing_ok=True)
    return targets
