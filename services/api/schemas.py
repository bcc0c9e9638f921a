"""The JSON of an explanation, which ``explain`` writes."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class ExplainJson(TypedDict):
    id: str
    status: str
    summary: str
    reason: str
    message: str
    pending_reason: str
    queue_position: NotRequired[int]
    hints: list[str]
