"""The partitioner: CRC-32 of a record's key or subject, modulo the number of partitions.

The client and the broker must agree for ever, so the function is fixed and uses only the
standard library (CRC-32/ISO-HDLC, as in zlib).
"""

import zlib


def partition_of(data: bytes, partitions: int) -> int:
    """Return the partition of a record whose key or subject is ``data``."""
    return zlib.crc32(data) % partitions
