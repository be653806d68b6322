"""The file that keeps a log's start offset: the number and its checksum."""

from typing import Final

from crc32c import crc32c

START_NAME: Final = "log-start"


def format_start(offset: int) -> bytes:
    """The contents of the file."""
    number = b"%d" % offset
    return b"%b %08x\n" % (number, crc32c(number))


def parse_start(data: bytes) -> int | None:
    """The start offset in the file's contents, or None if they are not as written."""
    number, _, _ = data.partition(b" ")
    return int(number) if number.isdigit() and data == format_start(int(number)) else None
