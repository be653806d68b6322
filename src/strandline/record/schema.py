"""The Arrow shape of records, for brokers and clients alike.

Rules: imports pyarrow only, so that the light client can use it. Subjects are dictionary-encoded
because a batch repeats few of them; a record without headers has null headers.
"""

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from strandline.errors import InvalidRequestError

SUBJECT_TYPE = pa.dictionary(pa.int32(), pa.string())
TIMESTAMP_TYPE = pa.timestamp("ns", tz="UTC")
HEADERS_TYPE = pa.map_(pa.string(), pa.binary())

RECORD_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP_TYPE, nullable=False),
        pa.field("subject", SUBJECT_TYPE, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
PARTITION_FIELD = pa.field("partition", pa.int32(), nullable=False)
COLUMNS: tuple[str, ...] = tuple(RECORD_SCHEMA.names)


def project(columns: Sequence[str] | None, *, with_partition: bool = False) -> pa.Schema:
    """Return the schema of a read that asks for ``columns`` (None: all), in that order.

    ``partition`` may be asked for by name; it comes first when ``with_partition`` adds it.

    Raises:
        InvalidRequestError: an unknown or repeated column.
    """
    names = list(COLUMNS if columns is None else columns)
    if with_partition and "partition" not in names:
        names.insert(0, "partition")
    return _schema_of(tuple(names))


@lru_cache(maxsize=256)
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    """Return the schema of ``project``; cached, because a read needs it for every batch."""
    unknown = [name for name in names if name not in COLUMNS and name != "partition"]
    if unknown:
        valid = ", ".join(("partition", *COLUMNS))
        raise InvalidRequestError(f"unknown column {unknown[0]!r}; columns are: {valid}")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequestError(f"column {twice!r} is asked for twice; name it once")
    return pa.schema(
        [PARTITION_FIELD if name == "partition" else RECORD_SCHEMA.field(name) for name in names]
    )
