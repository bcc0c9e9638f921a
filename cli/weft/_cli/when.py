"""Times on the command line: a moment, or how long ago it was."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

_AGO: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


class When(click.ParamType[datetime]):
    """A time (2026-11-21T13:20:00, in local time unless it says otherwise), or how long ago: 90s, 10m, 2h, 1d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        parts = _AGO.fullmatch(text.removesuffix(" ago"))
        try:
            if text and parts is not None:
                days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
                return datetime.now(UTC) - timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
            return datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"'{text}' is no time; write 10m, 2h or 2026-11-21T13:20:00", param, ctx)
