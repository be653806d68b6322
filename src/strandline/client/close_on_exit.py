"""The end of a ``with`` block: closes its context without hiding the block's own error."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self

from strandline.errors import StrandlineError


class ClosesOnExit(ABC):
    """A context that closes itself; if that fails after an error of the block, it adds a note."""

    _failure_means: ClassVar[str] = "records failed"
    """The consequence of a failure to close, for the note."""

    @abstractmethod
    def _end_context(self, error: BaseException | None, /) -> None:
        """End the context; ``error`` is the error of its block, or None."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end_context(error)
        except StrandlineError as failure:
            if error is None:
                raise
            error.add_note(f"also, {self._failure_means}: {failure.message}")
