"""Validation of record batches from clients, before any of their rows is used.

Arrow trusts the offsets inside a batch, so a malicious batch could make it read outside its memory.
So a batch is validated completely first, then its sizes, subjects and headers are checked.

Rules: runs on the call's thread, vectorised, so that the loop receives only valid batches. A
dictionary or view column may refer to one large value a million times, so its expanded size is
checked before it is expanded.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.api.put import normalise
from strandline.api.routing import default_subject
from strandline.config import LimitsConfig
from strandline.errors import InvalidRecordError, RecordTooLargeError
from strandline.record.codec import HEADER_NAME_BYTES_MAX, MESSAGE_ID_BYTES_MAX
from strandline.record.schema import SUBJECT_TYPE
from strandline.record.subjects import has_wildcard, validate_subject

KNOWN_SUBJECTS_MAX = 100_000
PLAIN_SUBJECTS_MAX = 128 << 20
"""Bytes of a batch's subjects that do not count: they become a dictionary, and are expanded only
for a moment."""


class BatchChecker:
    """A checker for the batches of one put.

    Args:
        limits: the broker's limits.
        stream_subject: the stream's subject, used for rows without one.
    """

    def __init__(self, limits: LimitsConfig, stream_subject: str) -> None:
        self._limits = limits
        self._default = default_subject(stream_subject)
        self._fills_missing = has_wildcard(stream_subject)
        self._known: set[str] = set()

    def check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the validated batch, with the column types of a put.

        Raises:
            InvalidRecordError: the batch is malformed, has wrong columns or types, or has a header
                without a name.
            RecordTooLargeError: the batch or a record exceeds its limit.
            InvalidSubjectError: a row's subject is malformed.
        """
        if batch.nbytes > self._limits.batch_bytes:
            raise RecordTooLargeError(
                f"batch of {batch.nbytes} bytes; limits.batch_bytes is "
                f"{self._limits.batch_bytes}: send smaller batches"
            )
        try:
            batch.validate(full=True)
        except pa.ArrowException as error:
            raise InvalidRecordError(f"not a valid Arrow batch: {error}") from error
        self._check_plain_size(batch)
        batch = normalise(batch)
        self._check_sizes(batch)
        names = batch.schema.names
        if "headers" in names:
            _check_headers(batch.column("headers"))
        if "message_id" in names:
            _check_length(batch.column("message_id"), MESSAGE_ID_BYTES_MAX, "message id")
        return self._with_subjects(batch)

    def _check_plain_size(self, batch: pa.RecordBatch) -> None:
        """Reject a batch that would exceed the limit once dictionaries and views are expanded."""
        limit, size = self._limits.batch_bytes, 0
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name != "subject":
                size += referred_bytes(column)
            elif not _stays_as_it_is(column):
                size += max(0, referred_bytes(column) - PLAIN_SUBJECTS_MAX)
        if size > limit:
            raise RecordTooLargeError(
                f"batch of {size} bytes, once each row has its own value; limits.batch_bytes is "
                f"{limit}: send smaller batches"
            )

    def _check_sizes(self, batch: pa.RecordBatch) -> None:
        """Reject records whose key, value and headers together exceed ``limits.record_bytes``."""
        limit = self._limits.record_bytes
        sizes = pc.fill_null(pc.binary_length(batch.column("value")), 0)
        if "key" in batch.schema.names:
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(batch.column("key")), 0))
        if "headers" in batch.schema.names:
            sizes = pc.add(sizes, header_bytes(batch.column("headers")))
        largest = pc.max(sizes).as_py() or 0
        if largest > limit:
            raise RecordTooLargeError(
                f"record of {largest} bytes; limits.record_bytes is {limit}: make it smaller, or "
                "raise that"
            )

    def _with_subjects(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with checked subjects; rows without one get the default."""
        at = batch.schema.get_field_index("subject")
        if at < 0:
            if not self._fills_missing:
                return batch
            return batch.append_column("subject", self._defaults(batch.num_rows))
        column = batch.column(at)
        if column.null_count == batch.num_rows:
            return batch.set_column(at, "subject", self._defaults(batch.num_rows))
        if column.null_count:
            column = column.cast(pa.string()).fill_null(self._default).dictionary_encode()
            batch = batch.set_column(at, "subject", column)
        if column.dictionary.null_count:
            raise InvalidRecordError(
                "the dictionary of column 'subject' contains null; make the rows null instead"
            )
        if len(column.dictionary) > batch.num_rows:
            column = column.cast(pa.string()).dictionary_encode()
            batch = batch.set_column(at, "subject", column)
        for subject in column.dictionary.to_pylist():
            if subject not in self._known:
                self._learn(subject)
        return batch

    def _learn(self, subject: str) -> None:
        """Check a subject when it first appears in the put."""
        validate_subject(subject)
        if len(self._known) >= KNOWN_SUBJECTS_MAX:
            self._known.clear()
        self._known.add(subject)

    def _defaults(self, rows: int) -> pa.Array:
        """Return a subject column that holds the default in every row."""
        zeros = pa.repeat(pa.scalar(0, pa.int32()), rows)
        return pa.DictionaryArray.from_arrays(zeros, pa.array([self._default], pa.string()))


def referred_bytes(column: pa.Array) -> int:
    """Return the total size of the values that the rows refer to; 0 for a plain column."""
    kind = column.type
    if pa.types.is_map(kind):
        return referred_bytes(column.keys) + referred_bytes(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return referred_bytes(column.flatten())
    if pa.types.is_struct(kind):
        return sum(map(referred_bytes, column.flatten()))
    if pa.types.is_dictionary(kind) and _has_lengths(kind.value_type):
        lengths = pa.array(_lengths(column.dictionary), pa.int64())
        return pc.sum(lengths.take(column.indices)).as_py() or 0
    return int(_lengths(column).sum()) if _is_view(kind) else 0


def _lengths(column: pa.Array) -> Any:
    """Return the size in bytes of each value of a text, bytes or view column; int64, 0 for null."""
    if not _is_view(column.type):
        lengths = pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
        return lengths.to_numpy(zero_copy_only=False)
    views = np.frombuffer(column.buffers()[1], dtype="<i4").reshape(-1, 4)
    found = views[column.offset : column.offset + len(column), 0].astype(np.int64)
    return np.where(np.asarray(column.is_valid()), found, 0)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _stays_as_it_is(subjects: pa.Array) -> bool:
    """Return whether the subjects are a dictionary already and can be used unchanged."""
    if subjects.type != SUBJECT_TYPE or subjects.null_count:
        return False
    return len(subjects.dictionary) <= len(subjects)


def _has_lengths(kind: pa.DataType) -> bool:
    """Return whether a type's values are bytes or text stored in the column itself."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_fixed_size_binary(kind)
        or _is_view(kind)
    )


def _check_headers(headers: pa.Array) -> None:
    """Reject headers without a name, or with a name that no NATS client could send."""
    if headers.null_count == len(headers):
        return
    names = headers.keys
    if names.null_count:
        raise InvalidRecordError("a header has no name; give it one, or leave it out")
    _check_length(names, HEADER_NAME_BYTES_MAX, "header name")


def _check_length(texts: pa.Array, limit: int, what: str) -> None:
    """Reject texts longer than a limit."""
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > limit:
        raise InvalidRecordError(f"a {what} is longer than {limit} bytes; shorten it")


def header_bytes(headers: pa.Array) -> pa.Array:
    """Return the size in bytes of each row's header names and values, int32; 0 without headers."""
    if headers.null_count == len(headers):
        return pa.repeat(pa.scalar(0, pa.int32()), len(headers))
    sizes = [
        sum(len(name.encode()) + len(value) for name, value in pairs or ())
        for pairs in headers.to_pylist()
    ]
    return pa.array(sizes, pa.int32())
