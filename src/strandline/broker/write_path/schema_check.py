"""The check of values against their stream's schema, before records are accepted.

Rules: any thread may check. A partition checks records when it accepts them, on the loop. A caller
with many records checks them before, on its own thread, and passes on the verdict; it is valid
while the stream has the same schema versions. Records that a replica copies, markers of
transactions, and records without a value are not checked.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from strandline.errors import SchemaMismatchError
from strandline.values.fits import misfit_finder
from strandline.values.schema import SchemaVersion


class SchemaVerdict(NamedTuple):
    """The result of checking the values of a batch."""

    check: "SchemaCheck"
    """The check that was made."""
    error: SchemaMismatchError | None


class SchemaCheck:
    """The check of the values of one stream.

    Args:
        stream: the stream's name.
        versions: the versions of its schema, ascending; at least one.
    """

    def __init__(self, stream: str, versions: Sequence[SchemaVersion]) -> None:
        self._stream = stream
        self.versions = versions

    def value(self, value: bytes | None) -> SchemaMismatchError | None:
        """Return why a value does not fit the schema, or None."""
        reason = self._find(value)
        return None if reason is None else SchemaMismatchError(self._message(value, reason))

    def values(self, values: Sequence[bytes | None]) -> SchemaMismatchError | None:
        """Return the error of the first value that does not fit, or None."""
        find = self._find
        for row, value in enumerate(values):
            if (reason := find(value)) is not None:
                message = self._message(value, reason)
                if len(values) == 1:
                    return SchemaMismatchError(message)
                return SchemaMismatchError.of_row(row, message)
        return None

    def batch(self, batch: pa.RecordBatch) -> SchemaVerdict:
        """Check the column ``value`` of a batch."""
        return SchemaVerdict(self, self.values(batch.column("value").to_pylist()))

    def error_of(
        self, batch: pa.RecordBatch, verdict: SchemaVerdict | None
    ) -> SchemaMismatchError | None:
        """Return the error of a batch; a valid verdict saves checking it again."""
        if verdict is None or verdict.check is not self:
            verdict = self.batch(batch)
        return verdict.error

    @cached_property
    def _find(self) -> Callable[[bytes | None], str | None]:
        # Compiled at the first record: imports libraries that only this format needs.
        return misfit_finder(self.versions)

    def _message(self, value: bytes | None, reason: str) -> str:
        if value == b"":
            reason = "the value is empty; a record that deletes its key has none at all, which is "
            reason += "None in Python, 'publish --tombstone' on the command line and the header "
            reason += "'Strandline-Tombstone: true' in NATS"
        return (
            f"does not fit version {self.versions[-1].version} of the schema of stream "
            f"{self._stream!r}: {reason}; publish what fits ('strandline stream schema show "
            f"{self._stream}'), or set a version that has it"
        )
