"""Leaving a ``with`` block: what ends there must not hide the error that the block ended with."""

from collections.abc import Callable

from strandline.errors import StrandlineError


def leave(end: Callable[[], object], error: BaseException | None, *, otherwise: str) -> None:
    """End what the block was about.

    Args:
        end: does it.
        error: of the block, if it ended with one; a failure of ``end`` becomes a note of it.
        otherwise: what is so if it fails, for that note.

    Raises:
        StrandlineError: it failed, and the block did not.
    """
    try:
        end()
    except StrandlineError as failure:
        if error is None:
            raise
        error.add_note(f"besides, {otherwise}: {failure.message}")
