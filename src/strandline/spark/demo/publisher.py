"""Publishes messages to NATS until each one is acknowledged, through every failure.

A plain NATS client of a hundred lines: it shows that publishing needs only NATS. A window of
unacknowledged messages keeps it fast. A message is sent again, with the same ``Nats-Msg-Id``,
when the connection breaks, when there is no responder, and when no answer comes in time; the broker
stores it once.

Rules: runs on a thread of its own; a message counts only with its PubAck. Must not know the
content.
"""

import json
import re
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

from strandline.errors import RequestTimeoutError
from strandline.spark.demo.flights import FlightMessage

_WINDOW = 4096
_BURST = 512
_ACK_TIMEOUT_S = 5.0
_REFUSED_WAIT_S = 0.1
_GIVE_UP_S = 120.0
_CONNECT = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True,
            "lang": "python", "version": "1", "name": "strandline-demo"}  # fmt: skip
_ANSWER = re.compile(rb"(MSG|HMSG) \S+\.(\d+) \d+ (?:(\d+) )?(\d+)\r\n")


class FlightPublisher(threading.Thread):
    """Publishes ``messages`` in order, up to the row that ``allow`` last set.

    Args:
        address: host and port of a NATS server.
        messages: what to publish.
    """

    def __init__(self, address: tuple[str, int], messages: Iterable[FlightMessage]) -> None:
        super().__init__(name="publisher", daemon=True)
        self._address = address
        self._source: Iterator[FlightMessage] = iter(messages)
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._unacked: dict[int, FlightMessage] = {}
        self._again: deque[int] = deque()
        self._next = 0
        self._limit = 0
        self._stopping = threading.Event()
        self._last_ack_s = self._last_resend_s = self._hold_until_s = time.monotonic()
        self.acked = 0
        self.duplicates = 0
        self.resent = 0
        self.reconnects = 0
        self._finished = False
        self.failure: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Return whether every message is acknowledged."""
        return self._finished and not self._unacked

    def allow(self, limit: int) -> None:
        """Allow the first ``limit`` messages to be sent."""
        self._limit = limit

    def stop(self) -> None:
        """End soon, even with unacknowledged messages."""
        self._stopping.set()

    def run(self) -> None:
        """Connect, publish, reconnect; ends once everything is acknowledged."""
        try:
            while not (self.is_done or self._stopping.is_set()):
                try:
                    self._converse()
                except OSError:
                    self._check_acknowledged()
                    self.reconnects += 1
                    self._stopping.wait(0.2)
        except BaseException as error:  # noqa: BLE001 -- shown by the thread that waits for us
            self.failure = error

    def _converse(self) -> None:
        """Publish over one connection until it breaks or everything is acknowledged."""
        with socket.create_connection(self._address, timeout=5) as link:
            link.sendall(f"CONNECT {json.dumps(_CONNECT)}\r\nSUB {self._inbox}.* 1\r\n".encode())
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(30)
            # Messages unanswered by the last connection go first, in order.
            self._again = deque(sorted(self._unacked))
            buffer = bytearray()
            answers = select.poll()  # select() fails in a process with more than 1,024 files
            answers.register(link, select.POLLIN)
            while not self._stopping.is_set():
                burst = self._burst()
                if burst:
                    link.sendall(burst)
                elif self.is_done:
                    return
                if answers.poll(0 if burst else 50):
                    data = link.recv(1 << 18)
                    if not data:
                        raise ConnectionResetError
                    buffer += data
                    self._take_answers(buffer, link)
                self._resend_unanswered()

    def _burst(self) -> bytes:
        """Return the next messages in wire form, as far as window and limit allow."""
        parts: list[bytes] = []
        is_held = time.monotonic() < self._hold_until_s
        while self._again and len(parts) < _BURST and not is_held:
            number = self._again.popleft()
            if number in self._unacked:
                self.resent += 1
                parts.append(self._encode(number, self._unacked[number]))
        while len(self._unacked) < _WINDOW and self._next < self._limit and len(parts) < _BURST:
            message = next(self._source, None)
            if message is None:
                self._finished = True
                break
            if not self._unacked:
                self._last_ack_s = time.monotonic()
            self._unacked[self._next] = message
            parts.append(self._encode(self._next, message))
            self._next += 1
        return b"".join(parts)

    def _encode(self, number: int, message: FlightMessage) -> bytes:
        headers = f"NATS/1.0\r\nNats-Msg-Id: {message.message_id}\r\n\r\n".encode()
        total = len(headers) + len(message.payload)
        line = f"HPUB {message.subject} {self._inbox}.{number} {len(headers)} {total}\r\n"
        return b"%b%b%b\r\n" % (line.encode(), headers, message.payload)

    def _take_answers(self, buffer: bytearray, link: socket.socket) -> None:
        """Process every complete answer in ``buffer``; return the rest."""
        place = 0
        while (end := buffer.find(b"\r\n", place)) >= 0:
            line = bytes(buffer[place : end + 2])
            found = _ANSWER.fullmatch(line)
            if found is None:
                if line.startswith(b"PING"):
                    link.sendall(b"PONG\r\n")
                place = end + 2
                continue
            size = int(found[4])
            if len(buffer) < end + 2 + size + 2:
                break
            header = int(found[3] or 0)
            self._settle(int(found[2]), bytes(buffer[end + 2 + header : end + 2 + size]))
            place = end + 2 + size + 2
        del buffer[:place]

    def _settle(self, number: int, body: bytes) -> None:
        """Count a message as stored, or send it again: no responder, or a rejection."""
        if number not in self._unacked:
            return
        if b'"seq"' not in body or b'"error"' in body:
            self._again.append(number)
            self._hold_until_s = time.monotonic() + _REFUSED_WAIT_S
            self._check_acknowledged()
            return
        del self._unacked[number]
        self.acked += 1
        self.duplicates += b'"duplicate":true' in body.replace(b" ", b"")
        self._last_ack_s = time.monotonic()

    def _resend_unanswered(self) -> None:
        """Send everything again if no answer has come for a while."""
        now = time.monotonic()
        silence_s = now - max(self._last_ack_s, self._last_resend_s)
        if self._unacked and not self._again and silence_s > _ACK_TIMEOUT_S:
            self._again = deque(sorted(self._unacked))
            self._last_resend_s = now

    def _check_acknowledged(self) -> None:
        if self._unacked and time.monotonic() - self._last_ack_s > _GIVE_UP_S:
            raise RequestTimeoutError(f"no acknowledgement for {_GIVE_UP_S:.0f} s")
