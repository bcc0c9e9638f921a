"""How a helper sees its learner: beside the shim of one machine, or beside the entry process of a pod."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from services.core.domain.learner import Exit
from services.core.runtime.address import TlsAuthority, TlsFiles

if TYPE_CHECKING:
    from services.helper.metrics_client import IntakeClient
    from services.helper.reporter import Reporter
    from services.helper.usage import UsageReader


class LearnerWatch(Protocol):
    """A context while the learner runs. The other methods work outside of it, too."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def tls(self) -> TlsFiles | TlsAuthority | None:
        """For the address of the metrics service, if it needs TLS."""
        ...

    async def follow_control(self, intake: IntakeClient, reporter: Reporter) -> None:
        """Gets stops to the learner until cancelled; returns at once where another process does."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether the learner's parent runs and waits for ``go``."""
        ...

    def notify(self) -> None:
        """Makes the learner's parent read its files soon: a hint, it reads them by itself."""
        ...

    async def pause(self, *, quick: bool) -> None:
        """Returns when the learner's files are to be read again: soon with ``quick``, else at its end or seldom."""
        ...

    def exit(self, run: int) -> Exit | None:
        """How the learner ended, by its record, or as lost where it is gone without one; None: it has not ended."""
        ...

    @property
    def usage(self) -> UsageReader:
        """Measures what the learner's processes use. Call it once they run."""
        ...

    async def wait_ended(self) -> None:
        """Returns when the helper's process may end."""
        ...
