"""The declaration of an admin command: its name, request, results and required permissions.

Every area of the admin API declares its commands next to their structs. Flight's dispatcher, its
ListActions, the client, the CLI and the tests of access control all use these declarations; there
is no other list of commands.

Rule: this module must not import Flight or the broker.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, TypeVar

from strandline.api.required_permissions import Need
from strandline.api.wire import MESSAGE_BYTES_MAX, check_no_body, decode

Q = TypeVar("Q")
A = TypeVar("A")


def no_needs(_: object) -> tuple[Need, ...]:
    """Return no needs: every principal that is named in some rule may run the command."""
    return ()


@dataclass(frozen=True, kw_only=True)
class AdminCommand(Generic[Q, A]):
    """A command of the admin API, which travels as a DoAction of Arrow Flight."""

    name: str
    help: str
    """One sentence about the command's effect."""
    request: type[Q]
    """The type of the body; ``NoneType``: the command has no body."""
    result: type[A]
    """The type of each result; ``NoneType``: the command has no results."""
    needs: Callable[[Q], Iterable[Need]]
    """Returns the permissions that the caller needs, for everything that the request names."""
    producer: Callable[[Q], int | None] | None = None
    """Returns the producer id that a request writes with, which must belong to the caller."""
    visibility: Callable[[A], Need] | None = None
    """Returns the permission to see a result of a list command; None: callers see all results."""
    parse: Callable[[bytes], Q] | None = None
    """Decodes the body, if its type alone cannot express all constraints."""
    answer_bytes_max: int = MESSAGE_BYTES_MAX
    """The longest result that a client accepts."""

    def decode_request(self, body: bytes) -> Q:
        """Decode the body of a request.

        Raises:
            StrandlineError: the body is not a valid request.
        """
        if self.parse is not None:
            return self.parse(body)
        if self.request is NoneType:
            check_no_body(body, self.name)
            return None  # type: ignore[return-value]  # Q is None
        return decode(body, self.request, what=self.name)

    @property
    def description(self) -> str:
        """The description for ListActions, with the fields of request and results."""
        if self.request is NoneType:
            return f"{self.help} No body."
        fields: Any = self.request
        return f"{self.help} Body: {{{', '.join(fields.__struct_fields__)}}}."
