"""Principals: the identities that access rules refer to.

Rules: a principal is only a name; rules about the name (``acl``) say what it may do. Names that
begin with two underscores belong to the broker: no certificate can claim one, and no token can be
created for one. A client without credentials is ``ANONYMOUS``. No rule can contain its empty name,
so it is never allowed anything.
"""

from typing import Final, NamedTuple

from strandline.config import NAME_BYTES_MAX
from strandline.errors import InvalidRequestError

INTERNAL_PREFIX: Final = "__"


class Principal(NamedTuple):
    """A principal, identified by its name."""

    name: str

    @property
    def is_anonymous(self) -> bool:
        """Whether the client presented no credentials."""
        return not self.name

    def __str__(self) -> str:
        return self.name or "(anonymous)"


ANONYMOUS: Final = Principal("")
"""The principal of a client without credentials."""
BOOTSTRAP_ADMIN: Final = Principal("__admin")
"""The principal of the token in the broker's settings; may do everything."""
BROKERS: Final = Principal("__broker")
"""The principal of brokers when they are clients of each other."""


def is_user_name(name: str) -> bool:
    """Return whether certificates and tokens may be for a principal with this name."""
    return is_clean_name(name) and not name.startswith(INTERNAL_PREFIX)


def is_clean_name(name: str) -> bool:
    """Return whether a text is short, printable and not surrounded by white space."""
    is_printable = isinstance(name, str) and name.isprintable() and name == name.strip()
    return is_printable and 0 < len(name.encode()) <= NAME_BYTES_MAX


def check_user_name(name: str) -> None:
    """Reject a name that is not valid for a user.

    Raises:
        InvalidRequestError: the name is invalid; the message says which names are valid.
    """
    if not is_user_name(name):
        raise InvalidRequestError(
            f"{repr(name)[:NAME_BYTES_MAX]} is no name for a principal: it has 1 to "
            f"{NAME_BYTES_MAX} bytes of printable characters, begins and ends with no white "
            f"space, and does not begin with {INTERNAL_PREFIX!r}"
        )
