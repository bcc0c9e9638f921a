"""Times as the API writes them. Apart from `_records`, so that commands that only show times need not load it."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str) -> datetime:
    """An RFC 3339 time, aware, in UTC."""
    return datetime.fromisoformat(text)


def time_text(time: datetime) -> str:
    """An RFC 3339 time in UTC with milliseconds and Z, as the API writes it."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
