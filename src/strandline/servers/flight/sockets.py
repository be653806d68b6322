"""The accepted connections of a gRPC server, found and shut down from below.

gRPC waits for every call before it stops and does not limit connections, and pyarrow offers no way
to make it. Shutting a connection down ends its calls at once, as a broken network would.

Rules: touches connected sockets of this process whose own port is the listener's, nothing else.
Linux only; elsewhere it finds none.
"""

import ipaddress
import os
import socket
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from strandline.storage.descriptors import STORAGE_DESCRIPTORS

DESCRIPTORS = Path("/proc/self/fd")


class PeerAddress(NamedTuple):
    """Address and port of a client; IPv4 in its own notation."""

    host: str
    port: int


def peers_of(port: int) -> set[PeerAddress]:
    """The clients that are connected to the listener on ``port``."""
    return {peer for _, peer in _connections(port)}


def cut_connections(port: int, peers: Collection[PeerAddress] | None = None) -> int:
    """Shut down accepted connections of the listener on ``port``; returns how many.

    Args:
        port: of the listener.
        peers: of these clients; None: of all.
    """
    count = 0
    for descriptor, peer in _connections(port):
        if peers is None or peer in peers:
            connection = socket.socket(fileno=descriptor)
            try:
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
            except OSError:
                pass  # closed meanwhile
            finally:
                connection.detach()
    return count


def _connections(port: int) -> Iterator[tuple[int, PeerAddress]]:
    """Descriptor and client of each accepted connection."""
    if not DESCRIPTORS.is_dir():
        return
    for name in STORAGE_DESCRIPTORS.open(lambda: os.listdir(DESCRIPTORS)):  # noqa: PTH208  in one go
        peer = _peer(int(name), port)
        if peer is not None:
            yield int(name), peer


def _peer(descriptor: int, port: int) -> PeerAddress | None:
    """The client, if this is a connection of the listener; the descriptor stays gRPC's."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return None  # closed meanwhile
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        host, peer_port = connection.getpeername()[:2]
        if connection.getsockname()[1] != port:
            return None
    except OSError:
        return None  # it listens, or was closed meanwhile
    finally:
        connection.detach()
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return PeerAddress(str(mapped or address), peer_port)
