"""The authorization request that nats-server sends for each client, and its answer.

Rules: a request is accepted only if the broker's own server signed it. An answer is valid for one
connection only: it names a key that the server generated for it. nats-server takes an empty list of
allowed subjects to mean all subjects, so an empty list is sent as a denial of everything. Pure:
this module decides nothing. The protocol is NATS' auth callout.
"""

from typing import Any, Final

import msgspec

from strandline.servers.nats.nkeys import KeyPair, verified_claims

SUBJECT: Final = "$SYS.REQ.USER.AUTH"
CLAIMS_VERSION: Final = 2
UNLIMITED: Final = -1
EVERYTHING: Final = ">"


class _ServerInfo(msgspec.Struct, frozen=True):
    id: str


class _ClientInfo(msgspec.Struct, frozen=True):
    id: int
    host: str = ""
    name: str = ""
    type: str = ""


class _Options(msgspec.Struct, frozen=True):
    auth_token: str = ""
    user: str = ""
    password: str = msgspec.field(default="", name="pass")


class _Tls(msgspec.Struct, frozen=True):
    verified_chains: list[list[str]] = []


class _RequestBody(msgspec.Struct, frozen=True):
    server_id: _ServerInfo
    user_nkey: str
    client_info: _ClientInfo
    connect_opts: _Options
    client_tls: _Tls | None = None


class _Claims(msgspec.Struct, frozen=True):
    nats: _RequestBody


class AuthRequest(msgspec.Struct, frozen=True):
    """A request to authorize a client."""

    server_id: str
    user_key: str
    """The key that the answer must name."""
    connection: int
    """The server's number for the connection."""
    host: str
    token: str
    """The client's token, or its password if it sends a user and a password."""
    user: str
    certificate: str
    """The client's certificate in PEM, which the server has verified; empty without one."""


class Permissions(msgspec.Struct, frozen=True):
    """The subjects that a client may use; a denied subject wins over an allowed one."""

    publish: tuple[str, ...]
    publish_not: tuple[str, ...]
    subscribe: tuple[str, ...]
    subscribe_not: tuple[str, ...]


def decode_request(data: bytes, server_id: str) -> AuthRequest:
    """Decode and verify an authorization request.

    Args:
        data: the received bytes.
        server_id: the id of the broker's own server, which is also the server's public key.

    Raises:
        InvalidRecordError: the request is malformed, or another server has signed it.
    """
    body = verified_claims(data, server_id, _Claims).nats
    chains = body.client_tls.verified_chains if body.client_tls is not None else []
    options = body.connect_opts
    return AuthRequest(
        server_id=body.server_id.id,
        user_key=body.user_nkey,
        connection=body.client_info.id,
        host=body.client_info.host,
        token=options.auth_token or options.password,
        user=options.user,
        certificate=chains[0][0] if chains and chains[0] else "",
    )


def encode_admission(
    request: AuthRequest, permissions: Permissions, *, issuer: KeyPair, account: str, now_s: int
) -> bytes:
    """Return the answer that accepts a client.

    Args:
        request: the authorization request of the client.
        permissions: the client's permissions.
        issuer: the key whose signature the server accepts.
        account: the server's account that the client joins.
        now_s: Unix time in seconds.
    """
    user = {
        "iss": issuer.public,
        "sub": request.user_key,
        "aud": account,
        "iat": now_s,
        "jti": request.user_key,
        "nats": {
            "type": "user",
            "version": CLAIMS_VERSION,
            "pub": _lists(permissions.publish, permissions.publish_not),
            "sub": _lists(permissions.subscribe, permissions.subscribe_not),
            "subs": UNLIMITED,
            "data": UNLIMITED,
            "payload": UNLIMITED,
            "allowed_connection_types": ["STANDARD"],
        },
    }
    return _answer(request, {"jwt": issuer.token(user)}, issuer=issuer, now_s=now_s)


def encode_rejection(request: AuthRequest, reason: str, *, issuer: KeyPair, now_s: int) -> bytes:
    """Return the answer that rejects a client; the reason is for the server's log."""
    return _answer(request, {"error": reason}, issuer=issuer, now_s=now_s)


def _answer(request: AuthRequest, content: dict[str, str], *, issuer: KeyPair, now_s: int) -> bytes:
    claims = {
        "iss": issuer.public,
        "sub": request.user_key,
        "aud": request.server_id,
        "iat": now_s,
        "jti": request.user_key,
        "nats": {"type": "authorization_response", "version": CLAIMS_VERSION, **content},
    }
    return issuer.token(claims).encode()


def _lists(allow: tuple[str, ...], deny: tuple[str, ...]) -> dict[str, Any]:
    if not allow:
        return {"deny": [EVERYTHING]}
    return {"allow": list(allow), "deny": list(deny)}
