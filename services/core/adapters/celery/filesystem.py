"""Celery's filesystem transport, made safe for a writer and a reader at the same time.

kombu's own writes a message into the folder that is read, so that a reader may take it half-written, fail on it and
end; moves it through the machine's shared temporary folder on the way out; and looks for its exchanges in the current
directory. Here a message appears by one rename, is claimed by another, and everything lies in one private folder.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any, Final

from kombu.transport import filesystem

_WAIT_AT_MOST_S: Final = 0.25


def options(folder: Path) -> dict[str, Any]:
    """The transport's options. Makes the folders, readable by nobody else."""
    for part in ("queue", "taken", "control"):
        (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        "data_folder_in": str(folder / "queue"),
        "data_folder_out": str(folder / "queue"),
        "processed_folder": str(folder / "taken"),
        "control_folder": str(folder / "control"),
        # Seconds between two looks at an empty folder: half the way a hint makes.
        "polling_interval": 0.05,
    }


def prune(folder: Path) -> int:
    """Removes what killed workers and writers left behind; how many. A living reader's claim lasts a millisecond."""
    count = 0
    for part, pattern in (("taken", "*"), ("queue", ".*")):
        for left in (folder / part).glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                left.unlink()
                count += 1
    return count


class Channel(filesystem.Channel):
    # kombu's own classes differ in the name of the second parameter, and give it by position.
    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:  # type: ignore[override]
        folder = Path(self.data_folder_out)
        # The name begins with the time: messages are read in this order.
        name = f"{time.monotonic_ns():020}_{uuid.uuid4().hex}.{queue}.msg"
        hidden = folder / f".{name}"
        hidden.write_text(json.dumps(payload))
        hidden.rename(folder / name)

    def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ARG002 - kombu's
        folder = Path(self.data_folder_in)
        for name in sorted(path.name for path in folder.iterdir()):
            if name.partition(".")[2] != f"{queue}.msg":
                continue
            claimed = Path(self.processed_folder) / name
            try:
                (folder / name).rename(claimed)
            except FileNotFoundError:  # another reader was first
                continue
            text = claimed.read_text()
            claimed.unlink()
            return json.loads(text)
        raise Empty


class Transport(filesystem.Transport):
    Channel = Channel

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        # Shorter than the worker asks for (2 s), so that it notices SIGTERM sooner.
        at_most = min(timeout or _WAIT_AT_MOST_S, _WAIT_AT_MOST_S)
        super().drain_events(connection, timeout=at_most)  # type: ignore[no-untyped-call]
