"""Celery's filesystem transport, made safe for a writer and a reader at the same time.

kombu's own writes a message into the folder that is read, so that a reader may take it half-written, fail on it and
end; moves it through the machine's shared temporary folder on the way out; and looks for its exchanges in the current
directory. Here a message appears by one rename, is claimed by another, and everything lies in one private folder.

A reader sleeps until the kernel tells it of a rename into the folder (inotify): two hints lie between a submit and the
start of its learner, and looking at the folder often enough would keep a processor busy for nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any, Final

from kombu.transport import filesystem, virtual

from services.core.adapters.celery import poison
from services.core.adapters.celery.broker import QUEUE_AT_MOST

_WAIT_AT_MOST_S: Final = 0.25
"""Shorter than the worker asks for (2 s), so that it notices SIGTERM sooner."""
_LOOK_S: Final = 0.05
"""Between two looks at an empty folder where the kernel does not tell."""
_BUSY_S: Final = 0.01
_EVERY: Final = 100
"""Hints between two looks at the length of the queue."""
_MOVED_TO: Final = 0x80
_EVENTS: Final = 64 * 2**10


def options(folder: Path) -> dict[str, Any]:
    """The transport's options. Makes the folders, readable by nobody else."""
    for part in ("queue", "taken", "control"):
        (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        "data_folder_in": str(folder / "queue"),
        "data_folder_out": str(folder / "queue"),
        "processed_folder": str(folder / "taken"),
        "control_folder": str(folder / "control"),
    }


def recover(folder: Path) -> int:
    """Gives back what killed workers had taken, and removes what killed writers left half-written; how many.

    What a living worker has in hand is given out once more, too: hints may come twice.
    """
    count = 0
    for taken in (folder / "taken").iterdir():
        with contextlib.suppress(FileNotFoundError):
            taken.rename(folder / "queue" / taken.name)
            count += 1
    for left in (folder / "queue").glob(".*"):
        with contextlib.suppress(FileNotFoundError):
            left.unlink()
            count += 1
    return count


class Arrivals:
    """Files that are renamed into a folder, from the moment this is made on."""

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0 and libc.inotify_add_watch(self._fd, os.fsencode(folder), _MOVED_TO) < 0:
            self.close()

    def wait(self, seconds: float) -> None:
        """Until there is one that was not waited for before, at most so long."""
        if self._fd < 0:  # the machine has no more watches to give
            time.sleep(min(seconds, _LOOK_S))
        elif select.select([self._fd], [], [], seconds)[0]:
            os.read(self._fd, _EVENTS)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class QoS(virtual.QoS):
    """A message that was taken lies in a folder of its own until it was acted on: it outlives a worker that did not."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)  # type: ignore[no-untyped-call]
        self._queue, self._taken = Path(channel.data_folder_in), Path(channel.processed_folder)

    def ack(self, delivery_tag: str) -> None:
        (self._taken / delivery_tag).unlink(missing_ok=True)
        super().ack(delivery_tag)  # type: ignore[no-untyped-call]

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's
        if requeue:
            self.give_back(delivery_tag)
        self.ack(delivery_tag)

    def give_back(self, delivery_tag: str) -> None:
        """To its place in the queue."""
        with contextlib.suppress(FileNotFoundError):
            (self._taken / delivery_tag).rename(self._queue / delivery_tag)


class Channel(filesystem.Channel):
    QoS = QoS
    _puts = 0

    # kombu's own classes differ in the name of the second parameter, and give it by position.
    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:  # type: ignore[override]
        folder = Path(self.data_folder_out)
        # The name begins with the time: messages are read in this order.
        name = f"{time.monotonic_ns():020}_{uuid.uuid4().hex}.{queue}.msg"
        hidden = folder / f".{name}"
        hidden.write_text(json.dumps(payload))
        hidden.rename(folder / name)
        self._puts += 1
        if self._puts % _EVERY == 1:
            self._shorten(folder)

    def _shorten(self, folder: Path) -> None:
        waiting = sorted(path.name for path in folder.iterdir())
        for name in waiting[: max(0, len(waiting) - QUEUE_AT_MOST)]:
            (folder / name).unlink(missing_ok=True)

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
            try:
                return self._read(claimed)
            except poison.Poisoned as poisoned:
                poison.dropped(poisoned, claimed.stat().st_size)
                claimed.unlink()
        raise Empty

    def _read(self, claimed: Path) -> Any:
        if claimed.stat().st_size > poison.AT_MOST_BYTES:
            raise poison.Poisoned("size")
        try:
            message = json.loads(claimed.read_bytes())
            # What it is acknowledged by: its file.
            message["properties"]["delivery_tag"] = claimed.name
            self.Message(message, channel=self)  # type: ignore[no-untyped-call]
        except poison.UNREADABLE:
            raise poison.Poisoned("format") from None
        return message

    def _restore(self, message: Any) -> None:
        qos: Any = self.qos
        qos.give_back(message.delivery_tag)


class Transport(filesystem.Transport):
    Channel = Channel
    _arrivals: Arrivals | None = None

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:  # noqa: ARG002 - kombu's
        cycle: Any = self.cycle
        if self._arrivals is None:
            client: Any = self.client
            self._arrivals = Arrivals(Path(client.transport_options["data_folder_in"]))
        deadline = time.monotonic() + min(timeout or _WAIT_AT_MOST_S, _WAIT_AT_MOST_S)
        while True:
            try:
                cycle.get(self._deliver)
            except Empty:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError from None
                # A worker with its hands full finds nothing, either, and nothing arrives when they are free again.
                busy = any(not channel.qos.can_consume() for channel in self.channels or ())
                self._arrivals.wait(min(left, _BUSY_S) if busy else left)
            else:
                return

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)  # type: ignore[no-untyped-call]
        if self._arrivals is not None:
            self._arrivals.close()
            self._arrivals = None
