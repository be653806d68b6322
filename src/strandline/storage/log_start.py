"""The file with a log's start offset: the number and its checksum."""

from typing import Final

from strandline.checksum import crc32c

START_NAME: Final = "log-start"


def format_start(offset: int) -> bytes:
    """Return the contents of the file for a start offset."""
    number = b"%d" % offset
    return b"%b %08x\n" % (number, crc32c(number))


def parse_start(data: bytes) -> int | None:
    """Return the start offset in the file's contents, or None if they are corrupt."""
    number, _, _ = data.partition(b" ")
    return int(number) if number.isdigit() and data == format_start(int(number)) else None
