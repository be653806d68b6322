"""How a record finds its partition: CRC-32 of its key or subject, modulo the partitions.

The client and the broker must agree for ever, so the function is fixed and uses only the
standard library (CRC-32/ISO-HDLC, as in zlib).
"""

import zlib


def partition_of(data: bytes, partitions: int) -> int:
    """The partition of a record whose key or subject is ``data``, in ``range(partitions)``."""
    return zlib.crc32(data) % partitions
