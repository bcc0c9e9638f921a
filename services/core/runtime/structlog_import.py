"""Imports structlog without rich, before another module of a service's package imports it.

structlog imports rich and pygments where they are installed, to print tracebacks in colours. The services write JSON,
and the import would take a tenth of the processor time of their start.
"""

from __future__ import annotations

import importlib
import sys


def import_structlog() -> None:
    """Imports structlog. Does nothing if rich is already imported. A later import of rich succeeds."""
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # Python's mark of a module that cannot be imported
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
