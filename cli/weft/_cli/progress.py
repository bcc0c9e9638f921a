"""Bars for what takes long: uploads and downloads. On stderr, and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

OnBytes = Callable[[int, int], None]


@contextmanager
def transfer_bar(title: str, *, shown: bool) -> Generator[OnBytes, None, None]:
    """A bar for the block; call what it gives with (bytes done, bytes in all)."""
    if not shown or not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, whole: progress.update(task, completed=done, total=whole)


@contextmanager
def upload_bar(*, shown: bool) -> Generator[OnBytes, None, None]:
    with transfer_bar("upload", shown=shown) as on_bytes:
        yield on_bytes
