"""The batch codec in one place: encode records, decode batches.

``encode`` and ``decode`` hold the code; this is the door other packages use.
"""

from strandline.record.decode import decode_batches
from strandline.record.encode import (
    BATCH_RECORDS_MAX,
    FILLER_OFFSETS_MAX,
    MESSAGE_ID_HEADER,
    NOBODY,
    Headers,
    Stamp,
    as_id,
    encode_arrow,
    encode_filler,
    encode_one,
    encode_records,
)

__all__ = [
    "BATCH_RECORDS_MAX",
    "FILLER_OFFSETS_MAX",
    "MESSAGE_ID_HEADER",
    "NOBODY",
    "Headers",
    "Stamp",
    "as_id",
    "decode_batches",
    "encode_arrow",
    "encode_filler",
    "encode_one",
    "encode_records",
]
