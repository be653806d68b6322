"""gRPC's own framing inside an HTTP/2 stream: a flag, a length, a message. Pure.

Rules: a length is checked before anything is gathered for it; compressed messages are refused, as
the broker announces that it takes none.
"""

import struct

from strandline.servers.grpc.status import GrpcStatus, OversizeError, RpcError

PREFIX = struct.Struct(">BI")
PREFIX_BYTES = PREFIX.size
_TIMEOUT_UNITS = {
    b"H": 3600.0,
    b"M": 60.0,
    b"S": 1.0,
    b"m": 1e-3,
    b"u": 1e-6,
    b"n": 1e-9,
}
TIMEOUT_DIGITS_MAX = 8


def framed(message: bytes) -> bytes:
    """A message with its prefix."""
    return PREFIX.pack(0, len(message)) + message


class Deframer:
    """Cuts what comes on a stream into messages.

    Args:
        message_bytes_max: of one message.
    """

    __slots__ = ("_buffer", "_max")

    def __init__(self, message_bytes_max: int) -> None:
        self._max = message_bytes_max
        self._buffer = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no message is half received."""
        return not self._buffer

    @property
    def buffered_bytes(self) -> int:
        """Of a message that is half received."""
        return len(self._buffer)

    def clear(self) -> None:
        """Forget what is half received: there will be no more."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now.

        Raises:
            RpcError: compressed.
            OversizeError: longer than allowed.
        """
        buffer = self._buffer
        if not buffer and len(data) >= PREFIX_BYTES:  # the usual case: one whole message
            is_compressed, length = PREFIX.unpack_from(data)
            if length == len(data) - PREFIX_BYTES <= self._max and not is_compressed:
                return [data[PREFIX_BYTES:]]
        buffer += data
        found: list[bytes] = []
        position, size = 0, len(buffer)
        while size - position >= PREFIX_BYTES:
            is_compressed, length = PREFIX.unpack_from(buffer, position)
            if is_compressed:
                raise RpcError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not taken")
            if length > self._max:
                text = f"message of {length} bytes; at most {self._max} are taken"
                raise OversizeError(GrpcStatus.RESOURCE_EXHAUSTED, text)
            start = position + PREFIX_BYTES
            if size - start < length:
                break
            position = start + length
            found.append(bytes(buffer[start:position]))
        if position:
            del buffer[:position]
        return found


def timeout_s(text: bytes) -> float | None:
    """Seconds of a ``grpc-timeout`` header; None if it is not one."""
    digits, unit = text[:-1], text[-1:]
    if not digits.isdigit() or len(digits) > TIMEOUT_DIGITS_MAX or unit not in _TIMEOUT_UNITS:
        return None
    return int(digits) * _TIMEOUT_UNITS[unit]
