"""The request of a user to the console, and the kinds of answers; plain data."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from strandline.client.client import Client
from strandline.clock import Clock
from strandline.errors import (
    InvalidRequestError,
    NotAllowedError,
    UnauthenticatedError,
    UnknownStreamError,
)
from strandline.servers.http.console.cluster_queries import RateTracker

NOT_ABOUT_A_FIELD: Final = (NotAllowedError, UnauthenticatedError, UnknownStreamError)
"""Errors that are not caused by the value of a form field."""


class Fields:
    """The text values of a query or a form; any of them may be missing.

    Args:
        values: the first value of each name.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> str:
        """Return a value without leading and trailing white space; empty if it is missing."""
        return self._values.get(name, "").strip()

    def raw(self, name: str) -> str:
        """Return a value unchanged; empty if it is missing."""
        return self._values.get(name, "")

    def __contains__(self, name: str) -> bool:
        return bool(self[name])

    def names(self) -> list[str]:
        """The names of the values."""
        return list(self._values)

    def without(self, *names: str) -> dict[str, str]:
        """Return the values that are not empty, except for the given names."""
        return {name: text for name, text in self._values.items() if text and name not in names}

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number of at least 0; ``default`` if it is missing.

        Raises:
            InvalidRequestError: the value is not such a number.
        """
        text = self[name]
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise InvalidRequestError(f"{name} must be a whole number, got {text!r}")
        return int(text)


class ConsoleRequest(NamedTuple):
    """One request of a user."""

    client: Client
    path: Mapping[str, str]
    """The variable parts of the path, such as a stream's name."""
    query: Fields
    form: Fields
    clock: Clock
    rates: RateTracker
    principal: str = ""
    """Empty where access is not checked."""

    @property
    def now_ns(self) -> int:
        """The Unix time in nanoseconds."""
        return self.clock.now_ns()

    @property
    def now_ms(self) -> float:
        """The monotonic time in milliseconds."""
        return self.clock.monotonic_ms()


class Page(NamedTuple):
    """A page to render."""

    template: str
    values: Mapping[str, Any]
    status: int = 200


class Redirect(NamedTuple):
    """Another page to show, after a change."""

    to: str


class Download(NamedTuple):
    """A file for the browser to save."""

    body: bytes
    name: str
    media_type: str


class JsonAnswer(NamedTuple):
    """Data for the console's own script."""

    value: Any


Answer = Page | Redirect | Download | JsonAnswer


class Handler(Protocol):
    """A function that answers requests; it runs on a worker thread and may block."""

    def __call__(self, request: ConsoleRequest, /) -> Answer:
        """Answer one request.

        Raises:
            StrandlineError: the request failed; the message is shown to the user.
        """
        ...


class ConsoleRoute(NamedTuple):
    """A page or an action of the console."""

    method: str
    path: str
    handler: Callable[[ConsoleRequest], Answer]
    form: Callable[[ConsoleRequest], Answer] | None = None
    """For an action: the page with its form, which shows an error of the action."""
