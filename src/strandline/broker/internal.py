"""Streams of the broker's own: their names begin with two underscores.

Rules: users may read them; they are created, written and deleted by the broker alone, and no
subject leads into them.
"""

from strandline.errors import InvalidRequestError

PREFIX = "__"


def is_internal(name: str) -> bool:
    """Whether a stream is the broker's own."""
    return name.startswith(PREFIX)


def check_public(name: str) -> None:
    """Refuse to let a user change a stream of the broker's own.

    Raises:
        InvalidRequestError: it is one.
    """
    if is_internal(name):
        raise InvalidRequestError(
            f"streams whose names begin with {PREFIX!r}, such as {name!r}, are the broker's own"
        )
