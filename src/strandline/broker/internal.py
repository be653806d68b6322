"""Internal streams: their names begin with two underscores.

Rules: users may read them; only the broker creates, writes and deletes them, and no subject is
bound to them.
"""

from strandline.core.metadata.image import INTERNAL_PREFIX
from strandline.core.metadata.internal_streams import is_internal
from strandline.errors import InvalidRequestError

__all__ = ["check_public", "is_internal"]


def check_public(name: str) -> None:
    """Check that a user may change the stream of this name.

    Raises:
        InvalidRequestError: it is an internal stream.
    """
    if is_internal(name):
        raise InvalidRequestError(
            f"streams whose names begin with {INTERNAL_PREFIX!r}, such as {name!r}, are the "
            "broker's own; choose another name"
        )
