"""A minimal synchronous NATS client: one request, one reply. For stream administration only.

Rules: blocking sockets with a timeout; one connection per request; no reconnects.
"""

from __future__ import annotations

import json
import socket
from typing import Any

TIMEOUT_S = 30.0


class NatsError(RuntimeError):
    """The server refused, or nobody answered."""


def request(host: str, port: int, subject: str, body: object) -> dict[str, Any]:
    """Sends `body` as JSON to `subject` and returns the JSON reply."""
    payload = json.dumps(body).encode()
    options = json.dumps({"verbose": False, "pedantic": False, "headers": True, "protocol": 1})
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        stream = connection.makefile("rb")
        stream.readline()
        connection.sendall(
            f"CONNECT {options}\r\nSUB _INBOX.admin 1\r\n"
            f"PUB {subject} _INBOX.admin {len(payload)}\r\n".encode()
            + payload
            + b"\r\n"
        )
        while line := stream.readline():
            words = line.split()
            if line.startswith(b"MSG "):
                reply: dict[str, Any] = json.loads(stream.read(int(words[-1])))
                return reply
            if line.startswith(b"-ERR"):
                raise NatsError(line.decode().strip())
            if line.startswith(b"PING"):
                connection.sendall(b"PONG\r\n")
    raise NatsError(f"the server closed the connection before it answered {subject}")
