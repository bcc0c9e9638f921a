"""Garbage collection of a process that runs for long, after its start."""

from __future__ import annotations

import gc

import services


def end_of_imports() -> None:
    """Collects garbage as often as Python does by default; ``services`` makes it rare while modules are imported.

    Call it once, after the imports and before the process does its work. Collections no longer look through the
    modules that are imported by then.
    """
    gc.freeze()
    gc.set_threshold(*services.GC_THRESHOLDS)
