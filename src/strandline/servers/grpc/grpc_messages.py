"""The framing of gRPC messages inside an HTTP/2 stream: a flag, a length, the message. Pure.

Rules: a length is checked before data is buffered for it. Compressed messages are rejected, because
the broker does not announce a compression.
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
    """Return a message with its prefix."""
    return PREFIX.pack(0, len(message)) + message


class Deframer:
    """A parser that splits a stream into messages.

    Args:
        message_bytes_max: the limit of one message.
    """

    __slots__ = ("_buffer", "_max")

    def __init__(self, message_bytes_max: int) -> None:
        self._max = message_bytes_max
        self._buffer = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no message is incomplete."""
        return not self._buffer

    @property
    def buffered_bytes(self) -> int:
        """The bytes of the incomplete message."""
        return len(self._buffer)

    def clear(self) -> None:
        """Drop the incomplete message."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete with these bytes.

        Raises:
            RpcError: a message is compressed.
            OversizeError: a message is too long.
        """
        buffer = self._buffer
        if not buffer and len(data) >= PREFIX_BYTES:  # usually the data is one complete message
            is_compressed, length = PREFIX.unpack_from(data)
            if length == len(data) - PREFIX_BYTES <= self._max and not is_compressed:
                return [data[PREFIX_BYTES:]]
        buffer += data
        found: list[bytes] = []
        position, size = 0, len(buffer)
        while size - position >= PREFIX_BYTES:
            is_compressed, length = PREFIX.unpack_from(buffer, position)
            if is_compressed:
                raise RpcError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported")
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
    """Return the seconds of a ``grpc-timeout`` header; None if it is invalid."""
    digits, unit = text[:-1], text[-1:]
    if not digits.isdigit() or len(digits) > TIMEOUT_DIGITS_MAX or unit not in _TIMEOUT_UNITS:
        return None
    return int(digits) * _TIMEOUT_UNITS[unit]
