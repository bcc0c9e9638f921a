"""Which SDK this is."""

from __future__ import annotations

from typing import Final

SDK_VERSION: Final = "0.1.0"
"""As in pyproject.toml (a test compares them): reading the installed distribution's takes longer than a request."""
