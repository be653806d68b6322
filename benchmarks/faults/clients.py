"""One publisher's connection to each system: appends one record and waits for its ack.

Rules: `NoAckError` covers a rejection as well as no answer; the connection is made anew for the
next append. `RETRIES` says whether a record may be sent again: where the system recognizes it.
"""

from __future__ import annotations

import socket
from typing import Any, Protocol, Self

from benchmarks.peers.natswire import NatsError, NatsRequests
from benchmarks.peers.process import LOOPBACK

TIMEOUT_S = 3.0
STREAM = "bench"


class NoAckError(RuntimeError):
    """A record was rejected, or nobody answered."""


class Appender(Protocol):
    """One connection, used by one thread."""

    retries: bool
    """Whether a record that got no ack is sent again under the same id."""

    def append(self, key: str, value: bytes) -> None:
        """Returns when the record is acknowledged.

        Raises:
            NoAckError: it was rejected, or there was no answer in time.
        """

    def close(self) -> None:
        """Closes the connection."""


class NatsAppender:
    """Publishes to JetStream, or to Strandline by NATS, with a message id."""

    retries = True

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: NatsRequests | None = None

    def append(self, key: str, value: bytes) -> None:
        """Returns at the PubAck."""
        try:
            if self._connection is None:
                self._connection = NatsRequests(LOOPBACK, self._port, TIMEOUT_S)
            headers = f"NATS/1.0\r\nNats-Msg-Id: {key}\r\n\r\n".encode()
            reply = self._connection.request(STREAM, value, headers)
        except (OSError, NatsError, ValueError) as error:
            self.close()
            raise NoAckError(str(error)) from error
        if "error" in reply:
            raise NoAckError(str(reply["error"].get("description", reply["error"])))

    def close(self) -> None:
        """Closes the connection; the next append opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RedisCommands:
    """One connection that sends a command and reads its reply (RESP2)."""

    def __init__(self, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), timeout_s)
        self._stream = self._socket.makefile("rb")

    def call(self, *words: bytes) -> Any:
        """Sends a command; returns its reply.

        Raises:
            OSError: no reply, or an error reply.
        """
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self._socket.sendall(b"".join(parts))
        return self._reply()

    def _reply(self) -> Any:
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("redis-server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise OSError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self._stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        return rest

    def close(self) -> None:
        """Closes the connection."""
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RedisAppender:
    """XADD. Redis Streams know no message ids: a record without an ack is not sent again."""

    retries = False

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: RedisCommands | None = None

    def append(self, key: str, value: bytes) -> None:
        """Returns at the reply."""
        del key
        try:
            if self._connection is None:
                self._connection = RedisCommands(self._port)
            self._connection.call(b"XADD", STREAM.encode(), b"*", b"d", value)
        except OSError as error:
            self.close()
            raise NoAckError(str(error)) from error

    def close(self) -> None:
        """Closes the connection; the next append opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class KafkaAppender:
    """An idempotent producer with one record under way; it retries on its own."""

    retries = False

    def __init__(self, port: int) -> None:
        self._port = port
        self._producer: Any = None

    def append(self, key: str, value: bytes) -> None:
        """Returns at the delivery report."""
        from confluent_kafka import KafkaException, Producer

        del key
        settings = {
            "bootstrap.servers": f"{LOOPBACK}:{self._port}",
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": int(TIMEOUT_S * 1000),
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        outcome: list[object] = []
        try:
            if self._producer is None:
                self._producer = Producer(settings)
            self._producer.produce(
                STREAM, value, partition=0, on_delivery=lambda error, _: outcome.append(error)
            )
            self._producer.flush(TIMEOUT_S + 1)
        except KafkaException as error:
            outcome.append(error)
        if not outcome or outcome[0] is not None:  # a KafkaError cannot be compared with None
            self.close()
            raise NoAckError(str(outcome[0]) if outcome else "no delivery report in time")

    def close(self) -> None:
        """Drops the producer with what it still holds; the next append makes another."""
        self._producer = None
