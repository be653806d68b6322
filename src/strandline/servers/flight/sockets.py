"""The accepted connections of a gRPC server, found and shut down through their descriptors.

gRPC waits for every call before it stops and does not limit connections, and pyarrow has no option
for either. Shutting down a connection's socket ends its calls at once, like a broken network.

Rules: only connected sockets of this process whose local port is the listener's are touched. Works
on Linux; on other systems no connection is found.
"""

import contextlib
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
    """A client's address and port; an IPv4 address mapped into IPv6 is in IPv4 notation."""

    host: str
    port: int


def peers_of(port: int) -> set[PeerAddress]:
    """Return the clients that are connected to the listener on ``port``."""
    return {peer for _, peer in _connections(port)}


def cut_connections(port: int, peers: Collection[PeerAddress] | None = None) -> int:
    """Shut down accepted connections of the listener on ``port``; return their number.

    Args:
        port: the listener's port.
        peers: the clients to disconnect; None means all.
    """
    count = 0
    for descriptor, peer in _connections(port):
        if peers is None or peer in peers:
            with contextlib.suppress(OSError):  # another thread has closed it
                connection = socket.socket(fileno=descriptor)
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
                finally:
                    connection.detach()
    return count


def _connections(port: int) -> Iterator[tuple[int, PeerAddress]]:
    """Yield the descriptor and client of each accepted connection."""
    if not DESCRIPTORS.is_dir():
        return
    for name in STORAGE_DESCRIPTORS.open(lambda: os.listdir(DESCRIPTORS)):  # noqa: PTH208  one call
        peer = _peer(int(name), port)
        if peer is not None:
            yield int(name), peer


def _peer(descriptor: int, port: int) -> PeerAddress | None:
    """Return the client of a descriptor if it is a connection of the listener, else None.

    gRPC keeps the descriptor.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return None  # another thread has closed it
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        host, peer_port = connection.getpeername()[:2]
        if connection.getsockname()[1] != port:
            return None
    except OSError:
        return None  # a listening socket, or another thread has closed it
    finally:
        connection.detach()
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return PeerAddress(str(mapped or address), peer_port)
