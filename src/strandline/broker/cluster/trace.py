"""The trace of a broker: its file, and links that send a vector clock before each frame.

Rules: only a broker that writes a trace sends clocks; other brokers ignore them. A clock is a frame
of its own, right before the frame it belongs to: links keep the order, so no other format changes.
See docs/traces.md.
"""

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from strandline.broker.cluster.channels import TRACE
from strandline.broker.peers.frame import Data, Frame
from strandline.broker.peers.link import PeerLinks
from strandline.core.replication.trace import Trace
from strandline.errors import UNDECODABLE, InvalidConfigError, InvalidRecordError
from strandline.types import BrokerId

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, int]).decode


def open_trace(path: str, host: str) -> Trace | None:
    """Open the trace file of a broker for appending; return None without a path.

    Raises:
        InvalidConfigError: the file cannot be written.
    """
    if not path:
        return None
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidConfigError(f"cluster.trace: cannot write {path}: {error.strerror}") from error
    # Each event is one write at the file's end, so that several brokers may share the file.
    return Trace(host, lambda event: os.write(fd, event.encode()))


def take_clock(trace: Trace, frame: Frame) -> None:
    """Decode the clock of the next frame.

    Raises:
        InvalidRecordError: the frame is not a clock.
    """
    try:
        trace.received(_decode(frame.header))
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a clock: {error}") from error


class TracedLinks(PeerLinks):
    """Links that send this broker's vector clock before every frame.

    Args:
        trace: has the clock.
        *args: those of ``PeerLinks``.
        **options: those of ``PeerLinks``.
    """

    def __init__(self, trace: Trace, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._trace = trace

    def send(
        self, broker: BrokerId, channel: int, header: bytes, *, attachments: Sequence[Data] = ()
    ) -> bool:
        """Send a frame, and before it this broker's vector clock."""
        super().send(broker, TRACE, _encode(self._trace.clock))
        return super().send(broker, channel, header, attachments=attachments)
