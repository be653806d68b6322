"""Streams of the broker's own: their names begin with two underscores.

Rules: users may read them; they are created, written and deleted by the broker alone, and no
subject leads into them.
"""

from strandline.core.metadata.image import INTERNAL_PREFIX
from strandline.core.metadata.internal_streams import is_internal
from strandline.errors import InvalidRequestError

__all__ = ["check_public", "is_internal"]


def check_public(name: str) -> None:
    """Refuse to let a user change a stream of the broker's own.

    Raises:
        InvalidRequestError: it is one.
    """
    if is_internal(name):
        raise InvalidRequestError(
            f"streams whose names begin with {INTERNAL_PREFIX!r}, such as {name!r}, are the "
            "broker's own"
        )
