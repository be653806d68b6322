r"""The ``NATS/1.0`` header block of a message, converted to and from a list of pairs.

    NATS/1.0[ status[ description]]\r\n  (Name: value\r\n)*  \r\n

Rules: order and repeated names are kept. White space around a value is removed, as by every NATS
client. A malformed block raises ``InvalidRecordError``. Pure.
"""

from strandline.errors import InvalidRecordError
from strandline.record.codec import Headers

VERSION_LINE = b"NATS/1.0"
HEADERS_MAX = 4096
"""The most headers that one message may have."""
NAME_BYTES_MAX = 1024
NO_RESPONDERS_STATUS = VERSION_LINE + b" 503"
"""The beginning of a message that reports that there are no responders; headers may follow."""
NO_RESPONDERS = NO_RESPONDERS_STATUS + b"\r\n\r\n"


def parse_headers(block: bytes) -> Headers:
    """Parse a header block.

    Args:
        block: the bytes from ``NATS/1.0`` through the empty line.

    Raises:
        InvalidRecordError: the block is malformed, or has more than ``HEADERS_MAX`` headers.
    """
    if not block.endswith(b"\r\n\r\n"):
        raise InvalidRecordError("NATS headers do not end with an empty line")
    lines = block[:-4].split(b"\r\n", HEADERS_MAX + 1)
    if len(lines) > HEADERS_MAX + 1:
        raise InvalidRecordError(f"more than {HEADERS_MAX} NATS headers")
    first = lines[0]
    if first != VERSION_LINE and not first.startswith(VERSION_LINE + b" "):
        raise InvalidRecordError("NATS headers do not begin with 'NATS/1.0'")
    headers: Headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or len(name) > NAME_BYTES_MAX or b" " in name:
            raise InvalidRecordError(f"malformed NATS header {line[:40]!r}")
        try:
            headers.append((name.decode(), value.strip(b" \t")))
        except UnicodeDecodeError as error:
            raise InvalidRecordError("a NATS header's name is not UTF-8") from error
    return headers


def encode_headers(headers: Headers) -> bytes:
    """Encode a header block.

    Raises:
        InvalidRecordError: a name or value cannot be encoded.
    """
    lines = [VERSION_LINE]
    for name, value in headers:
        encoded = name.encode()
        if not 0 < len(encoded) <= NAME_BYTES_MAX or any(c in encoded for c in b": \r\n"):
            raise InvalidRecordError(f"not a NATS header name: {name[:40]!r}")
        if b"\r\n" in value or value != value.strip(b" \t"):
            raise InvalidRecordError(f"a NATS header cannot carry the value of {name[:40]!r}")
        lines.append(encoded + b": " + value)
    return b"\r\n".join((*lines, b"", b""))
