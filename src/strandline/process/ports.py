"""Free ports for brokers that must know each other's ports before they start."""

import contextlib
import secrets
import socket
from collections import deque
from typing import Final

_RECENT: Final[deque[int]] = deque(maxlen=1000)
"""Ports returned recently, which a broker may not have bound yet."""


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, below the range of ephemeral ports."""
    found: list[int] = []
    while len(found) < count:
        port = secrets.choice(range(20_000, 32_000))
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _RECENT:
                _RECENT.append(port)
                found.append(port)
    return found
