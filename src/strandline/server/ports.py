"""Ports for brokers that have to know of each other before they start."""

import contextlib
import secrets
import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, below those that the system gives to whoever asks for any."""
    found: list[int] = []
    while len(found) < count:
        port = secrets.choice(range(20_000, 32_000))
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found
