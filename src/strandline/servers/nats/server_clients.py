"""The clients of the child nats-server, as it lists them (its CONNZ).

Rules: the server is asked over a connection of the broker, so it lists the clients of the account
    of
the streams, or all without access control. A client chooses its name, which the server repeats. So
the request asks for few clients at a time, so that the answer is not longer than a message may be.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec

from strandline.api.monitoring import ConnectionInfo
from strandline.config import bracketed
from strandline.errors import UNDECODABLE, UnavailableError

CONNZ: Final = "$SYS.REQ.ACCOUNT.PING.CONNZ"
"""The subject of the request; all servers of a cluster answer unless the request names one."""
CLIENTS_MAX: Final = 1000
DESCRIPTION_BYTES_MAX: Final = 26 << 10
"""The longest description of a client. Its own text is a line of 4 KiB at most, of which each byte
may become six."""
CLIENT: Final = "Client"

Ask = Callable[[bytes, bytes], Awaitable[bytes | None]]
"""A function that sends a request to a subject; it returns the answer, or None without one."""


class _ListedClient(msgspec.Struct, frozen=True):
    cid: int
    ip: str = ""
    port: int = 0
    kind: str = CLIENT
    in_msgs: int = 0


class _ListedClients(msgspec.Struct, frozen=True):
    connections: list[_ListedClient] = []


class _ClientsAnswer(msgspec.Struct, frozen=True):
    data: _ListedClients | None = None


async def server_clients(
    ask: Ask,
    *,
    server: str,
    payload_max: int,
    ours: Collection[int],
    principal_of: Callable[[int], str],
) -> list[ConnectionInfo]:
    """Return the clients of a nats-server, those with the most messages first.

    Args:
        ask: sends a request over one of the broker's connections.
        server: the server's name.
        payload_max: the server's limit of a message.
        ours: the server's numbers of the broker's own connections, which are left out.
        principal_of: returns the principal of a connection by the server's number.

    Raises:
        UnavailableError: the server does not answer, or its answer cannot be decoded.
    """
    found: list[_ListedClient] = []
    count = max(1, min(CLIENTS_MAX, payload_max // DESCRIPTION_BYTES_MAX))
    is_last = False
    while not is_last and len(found) < CLIENTS_MAX:
        request = {"server_name": server, "exact_match": True, "sort": "msgs_from"}
        page = {"offset": len(found), "limit": count}
        more = _decoded(await ask(CONNZ.encode(), msgspec.json.encode(request | page)))
        found += more
        is_last = len(more) < count
    return [
        ConnectionInfo(
            listener="nats",
            address=f"{bracketed(each.ip)}:{each.port}",
            principal=principal_of(each.cid),
            messages=each.in_msgs,
        )
        for each in found[:CLIENTS_MAX]
        if each.kind == CLIENT and each.cid not in ours
    ]


def _decoded(answer: bytes | None) -> list[_ListedClient]:
    try:
        data = msgspec.json.decode(answer or b"{}", type=_ClientsAnswer).data
    except UNDECODABLE as error:
        raise UnavailableError(f"nats-server describes its clients otherwise: {error}") from error
    if data is None:
        raise UnavailableError("nats-server does not describe its clients")
    return data.connections
