"""Who calls: the token in a call's headers, or the certificate of its connection.

Rules: headers reach calls only through Flight's middleware, which is installed where access is
checked and nowhere else, as it costs every call some Python. A header that is no bearer token is a
wrong token, not none. Who shows nothing that counts is refused there, before anything else is
waited for: a call without messages would keep its thread as long as its client likes.
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
    """Keeps the token of one call."""

    def __init__(self, token: str | None) -> None:
        self.token = token


class _TokenReader(fl.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """Takes the token out of a call's headers.

    Args:
        access: who is known.
        has_certificates: whether who shows no token has shown a certificate instead.
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
    """The token in some headers; empty, which is no token, if there is something else instead."""
    found = [
        value for name, values in headers.items() if name.lower() == HEADER for value in values
    ]
    if not found:
        return None
    return bearer_token(found[0]) if len(found) == 1 and isinstance(found[0], str) else ""


def middleware(access: Access, *, has_certificates: bool) -> dict[str, fl.ServerMiddlewareFactory]:
    """What the Flight server needs for ``asker_of``.

    Args:
        access: who may come in.
        has_certificates: whether TLS lets in only who shows a certificate.
    """
    if not access.is_on:
        return {}
    return {MIDDLEWARE: _TokenReader(access, has_certificates=has_certificates)}


def asker_of(context: fl.ServerCallContext, access: Access) -> Caller:
    """Who makes a call.

    Raises:
        UnauthenticatedError: nobody who is known here.
    """
    if not access.is_on:
        return access.identify(ClientCredentials())
    # With TLS that asks for certificates, gRPC has verified this one; else it is empty.
    name = context.peer_identity().decode("utf-8", "replace")
    return access.identify(
        ClientCredentials(context.get_middleware(MIDDLEWARE).token, name or None)
    )
