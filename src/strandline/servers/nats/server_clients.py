"""The clients of our own nats-server, as it describes them when asked (its CONNZ).

Rules: it is asked over a connection of ours, so it names the clients of the account of the streams,
and without access control all. A client chooses its name, which the server repeats: so it is asked
for few clients at a time, whose description is no longer than a message may be.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec

from strandline.api.monitoring import ConnectionInfo
from strandline.config import bracketed
from strandline.errors import UNDECODABLE, UnavailableError

CONNZ: Final = "$SYS.REQ.ACCOUNT.PING.CONNZ"
"""Every server of a cluster answers it, unless the request names one."""
CLIENTS_MAX: Final = 1000
DESCRIPTION_BYTES_MAX: Final = 26 << 10
"""Of one client. What it says of itself is a line of 4 KiB, of which each byte may become six."""
CLIENT: Final = "Client"

Ask = Callable[[bytes, bytes], Awaitable[bytes | None]]
"""Sends a request to a subject and returns the answer; None: nobody answers."""


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
    """Return the clients of a nats-server, those with most messages first.

    Args:
        ask: sends a request over a connection of ours.
        server: the server's name.
        payload_max: its limit of a message.
        ours: its numbers of the broker's own connections, which are left out.
        principal_of: returns the principal of a connection, by its number.

    Raises:
        UnavailableError: it gives no answer, or one that cannot be decoded.
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
