"""Reads from the metrics service what a job has reported so far, and removes it there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from services.core.adapters.rpc.client import Credential, connect, translating
from services.core.domain.text import storable
from services.core.gen.weft.v1 import metrics_pb2, metrics_pb2_grpc
from services.core.runtime.address import Address

_TIMEOUT_S: Final = 5
_FORGET_S: Final = 60
"""Removing the files of a long job takes a while."""


class Telemetry:
    def __init__(self, address: Address, credential: Credential) -> None:
        self._channel = connect(address, credential)
        self._stub = metrics_pb2_grpc.TelemetryStub(self._channel)

    async def summary(self, job_id: str) -> Mapping[str, Any]:
        """``{lines, points, latest: {name: {value, step}}}``, for a job's document.

        With ``left_out``, bound -> count, if lines or points are beyond a bound of the job.

        NaN and infinities are words, because the document is JSON. Names are storable. Raises Unavailable.
        """
        with translating():
            reply = await self._stub.Summary(metrics_pb2.SummaryRequest(job_id=job_id), timeout=_TIMEOUT_S)
        latest = {
            storable(stored.point.name): {
                "value": _json(stored.point.value),
                "step": stored.point.step if stored.point.HasField("step") else None,
            }
            for stored in reply.latest
        }
        summary = {"lines": reply.lines, "points": reply.points, "latest": latest}
        return {**summary, "left_out": dict(reply.left_out)} if reply.left_out else summary

    async def forget(self, job_id: str) -> None:
        """Removes all logs and metrics of the job. No error where there are none. Raises Unavailable."""
        with translating():
            await self._stub.Forget(metrics_pb2.ForgetRequest(job_id=job_id), timeout=_FORGET_S)

    async def close(self) -> None:
        await self._channel.close()


def _json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
