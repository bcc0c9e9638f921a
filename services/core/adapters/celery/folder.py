"""Hints in a folder: kombu's transport, but each message appears whole.

kombu makes the file of a message first and writes it afterwards. A worker that reads the file in between gets nothing:
the hint is lost, and logged as a message that is no hint.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]  # kombu names it in two ways
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        hidden = Path(self.data_folder_out, f".{name}")  # a name in which no reader recognises a message
        try:
            hidden.write_text(dumps(payload))  # type: ignore[no-untyped-call]
            hidden.rename(hidden.with_name(name))
        except OSError as error:
            with suppress(OSError):
                hidden.unlink()
            raise ChannelError(f"a hint cannot be written: {error}") from error


class Transport(filesystem.Transport):
    Channel = Channel
