"""Closing at the end of a ``with`` block without hiding the block's own error."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self

from strandline.errors import StrandlineError


class ClosesOnExit(ABC):
    """A context that closes itself; a failure of that is added to the block's error as a note."""

    _failure_means: ClassVar[str] = "records failed"
    """The consequence of such a failure, for the note."""

    @abstractmethod
    def _end_context(self, error: BaseException | None, /) -> None:
        """End the context, after an error of its block or none."""

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
