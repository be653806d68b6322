"""A minimal synchronous NATS client: a request waits for its reply. For administration and faults.

Rules: blocking sockets with a timeout; no reconnects.
"""

from __future__ import annotations

import json
import secrets
import socket
from typing import Any, Self

TIMEOUT_S = 30.0
OPTIONS = json.dumps({"verbose": False, "pedantic": False, "headers": True, "protocol": 1})


class NatsError(RuntimeError):
    """The server refused, or nobody answered."""


class NatsRequests:
    """One connection, with one request under way."""

    def __init__(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self._connection = socket.create_connection((host, port), timeout_s)
        self._stream = self._connection.makefile("rb")
        self._number = 0
        self.inbox = f"_INBOX.{secrets.token_hex(8)}"  # of nobody else: replies are routed by it
        try:
            self._stream.readline()
            self._connection.sendall(f"CONNECT {OPTIONS}\r\nSUB {self.inbox}.* 1\r\n".encode())
        except OSError:
            self.close()
            raise

    def send(self, data: bytes) -> None:
        """Send operations of the protocol as they are."""
        self._connection.sendall(data)

    def request(self, subject: str, payload: bytes, headers: bytes = b"") -> dict[str, Any]:
        """Sends a message; returns the JSON reply.

        Raises:
            NatsError: the server refused it, nobody listens, or the connection ended.
            OSError: the connection failed, or no reply came in time.
        """
        self._number += 1
        inbox = f"{self.inbox}.{self._number}".encode()
        verb, sizes = (b"HPUB", b"%d " % len(headers)) if headers else (b"PUB", b"")
        line = b"%b %b %b %b%d\r\n" % (
            *(verb, subject.encode(), inbox),
            *(sizes, len(headers) + len(payload)),
        )
        self._connection.sendall(line + headers + payload + b"\r\n")
        while line := self._stream.readline():
            words = line.split()
            if line.startswith((b"MSG ", b"HMSG ")):
                body = self._stream.read(int(words[-1]))
                self._stream.readline()
                if words[1] != inbox:
                    continue  # of a request that was given up
                if line.startswith(b"HMSG ") and (status := body[: int(words[-2])].split()[1:2]):
                    raise NatsError(f"nobody answers {subject}: status {status[0].decode()}")
                reply: dict[str, Any] = json.loads(body)
                return reply
            if line.startswith(b"-ERR"):
                raise NatsError(line.decode().strip())
            if line.startswith(b"PING"):
                self._connection.sendall(b"PONG\r\n")
        raise NatsError(f"the server closed the connection before it answered {subject}")

    def close(self) -> None:
        """Closes the connection."""
        self._stream.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(host: str, port: int, subject: str, body: object) -> dict[str, Any]:
    """Sends `body` as JSON to `subject` and returns the JSON reply."""
    with NatsRequests(host, port) as connection:
        return connection.request(subject, json.dumps(body).encode())
