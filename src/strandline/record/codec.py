"""The batch codec in one place: encode records, decode batches.

``columns``, ``encode``, ``encode_arrow`` and ``decode`` hold the code; other packages use this
module.
"""

from strandline.record.columns import (
    BATCH_RECORDS_MAX,
    FILLER_OFFSETS_MAX,
    HEADER_NAME_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    MESSAGE_ID_HEADER,
    NOBODY,
    Headers,
    Stamp,
    as_id,
)
from strandline.record.decode import decode_batches, decode_record
from strandline.record.encode import encode_filler, encode_records
from strandline.record.encode_arrow import encode_again, encode_arrow

__all__ = [
    "BATCH_RECORDS_MAX",
    "FILLER_OFFSETS_MAX",
    "HEADER_NAME_BYTES_MAX",
    "MESSAGE_ID_BYTES_MAX",
    "MESSAGE_ID_HEADER",
    "NOBODY",
    "Headers",
    "Stamp",
    "as_id",
    "decode_batches",
    "decode_record",
    "encode_again",
    "encode_arrow",
    "encode_filler",
    "encode_records",
]
