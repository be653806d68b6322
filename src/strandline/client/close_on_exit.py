"""Closing at the end of a ``with`` block without hiding the block's own error."""

from collections.abc import Callable

from strandline.errors import StrandlineError


def close_on_exit(
    end: Callable[[], object], error: BaseException | None, *, otherwise: str
) -> None:
    """Close what a ``with`` block has opened.

    Args:
        end: closes it.
        error: the block's error, if any; a failure of ``end`` is added to it as a note.
        otherwise: the consequence of that failure, for the note.

    Raises:
        StrandlineError: ``end`` failed, and the block did not.
    """
    try:
        end()
    except StrandlineError as failure:
        if error is None:
            raise
        error.add_note(f"also, {otherwise}: {failure.message}")
