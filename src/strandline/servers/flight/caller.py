"""Identification of callers by the token in the headers or by the connection's certificate.

Rules: only Flight's middleware sees the headers of a call. It costs Python code in every call, so
    it
is installed only where access is checked. A header that is not a bearer token counts as a wrong
token, not as a missing one. The middleware rejects a caller without valid credentials at once:
otherwise a call that sends no messages could hold its thread as long as its client likes.
"""

from collections.abc import Mapping
from typing import Final

import pyarrow.flight as fl

from strandline.broker.access import Access, Caller
from strandline.security.policy import ClientCredentials
from strandline.security.tokens import bearer_token
from strandline.servers.flight.guard import typed_errors

MIDDLEWARE: Final = "token"
HEADER: Final = "authorization"


class _Token(fl.ServerMiddleware):  # type: ignore[misc]  # pyarrow ships no types
    """The token of one call."""

    def __init__(self, token: str | None) -> None:
        self.token = token


class _TokenReader(fl.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """A middleware factory that reads the token from the headers of a call.

    Args:
        access: identifies callers.
        has_certificates: whether TLS has verified a certificate of each client.
    """

    def __init__(self, access: Access, *, has_certificates: bool) -> None:
        self._access = access
        self._has_certificates = has_certificates

    @typed_errors
    def start_call(self, _: object, headers: Mapping[str, list[str | bytes]]) -> _Token:
        token = bearer(headers)
        if token is not None or not self._has_certificates:
            self._access.identify(ClientCredentials(token))
        return _Token(token)


def bearer(headers: Mapping[str, list[str | bytes]]) -> str | None:
    """Return the token in the headers; None without one, empty (invalid) for another scheme."""
    found = [
        value for name, values in headers.items() if name.lower() == HEADER for value in values
    ]
    if not found:
        return None
    return bearer_token(found[0]) if len(found) == 1 and isinstance(found[0], str) else ""


def middleware(access: Access, *, has_certificates: bool) -> dict[str, fl.ServerMiddlewareFactory]:
    """Return the Flight middleware that ``caller_of`` needs.

    Args:
        access: identifies callers.
        has_certificates: whether TLS requires client certificates.
    """
    if not access.is_on:
        return {}
    return {MIDDLEWARE: _TokenReader(access, has_certificates=has_certificates)}


def caller_of(context: fl.ServerCallContext, access: Access) -> Caller:
    """Return the principal who makes a call, with the credentials.

    Raises:
        UnauthenticatedError: the caller has no valid credentials.
    """
    if not access.is_on:
        return access.identify(ClientCredentials())
    # Verified by gRPC if TLS requires certificates, else empty.
    name = context.peer_identity().decode("utf-8", "replace")
    return access.identify(
        ClientCredentials(context.get_middleware(MIDDLEWARE).token, name or None)
    )
