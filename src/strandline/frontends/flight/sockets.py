"""Cutting the connections of a gRPC server that will not end by themselves.

gRPC waits for every call before it stops, and a client that neither reads nor leaves would make it
wait for ever; pyarrow offers no deadline. Shutting the connections down from below ends the calls
at once, as a broken network would.

Rules: touches connected sockets of this process whose own port is the listener's, nothing else.
Linux only; elsewhere it finds none.
"""

import os
import socket
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def cut_connections(port: int) -> int:
    """Shut down every accepted connection of the listener on ``port``; returns how many."""
    if not DESCRIPTORS.is_dir():
        return 0
    return sum(_cut(descriptor, port) for descriptor in DESCRIPTORS.iterdir())


def _cut(descriptor: Path, port: int) -> bool:
    """Shut down one descriptor if it is a connection of the listener."""
    try:
        if not str(descriptor.readlink()).startswith("socket:"):
            return False
        with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            connection.getpeername()
            if connection.getsockname()[1] != port:
                return False
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False  # closed meanwhile, or not connected
    return True
