"""Staged writes of the client: parts of a batch that many processes write and one commits.

Rules: as for ``transactional_writer``. A part of a batch that is already committed stores nothing.
"""

from typing import Any, NamedTuple

from strandline.client.arguments import check_options, offsets_by_partition, text
from strandline.client.close_on_exit import ClosesOnExit
from strandline.client.consumer.offset_store import Offsets, Owner
from strandline.client.producer.producer import APPEND_OPTIONS
from strandline.client.producer.table_batches import arrow_batches
from strandline.client.transactions.transactional_writer import TransactionalWriter


class StagedPart(NamedTuple):
    """A finished part; plain data, to be sent to the process that commits the batch."""

    ref: str
    """The reference for ``commit_staged``; empty: the batch had been committed before."""
    rows: int


class StagedWrite(ClosesOnExit):
    """One part of a batch; see ``Client.stage``.

    Leaving its context without ``finish`` discards the part.
    """

    _failure_means = "the part is discarded at its timeout"

    def __init__(self, writer: TransactionalWriter | None) -> None:
        self._writer = writer
        self._rows = 0
        self._part: StagedPart | None = None

    @property
    def is_published(self) -> bool:
        """Return whether the batch is already committed, so that nothing is stored."""
        return self._writer is None

    def append(self, /, stream: str, value: bytes | str | None, **record: Any) -> None:
        """Append a record as ``Transaction.append`` does, but leave its failure to ``finish``.

        Raises:
            StrandlineError: as for ``Transaction.append``.
        """
        check_options("append", record, APPEND_OPTIONS)
        if self._writer is not None:
            self._writer.watch(self._writer.producer_of(stream).append(value, **record))
        self._rows += 1

    def append_batch(self, stream: str, data: Any, *, partition: int | None = None) -> None:
        """Append rows in a form that ``Producer.append_batch`` accepts.

        Raises:
            StrandlineError: as for ``Transaction.append_batch``.
        """
        batches = arrow_batches(data)
        if self._writer is not None:
            producer = self._writer.producer_of(stream)
            for batch in batches:
                self._writer.watch(producer.append_batch(batch, partition=partition))
        self._rows += sum(batch.num_rows for batch in batches)

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets of a group without members together with the part.

        Raises:
            StrandlineError: as for ``TransactionalWriter.commit_offsets``.
        """
        name, given = text(group, "a group"), offsets_by_partition(offsets)
        if self._writer is not None:
            self._writer.commit_offsets(name, given, Owner())

    def finish(self) -> StagedPart:
        """Wait until all records are stored, and leave the part to be committed.

        Raises:
            ProducerFencedError, TransactionAbortedError: the part was discarded, because the batch
                was committed without it or the part's timeout has passed.
            StrandlineError: a record was not stored.
        """
        if self._part is None:
            ref = ""
            if self._writer is not None:
                self._writer.check_open()
                self._writer.flush()
                self._writer.end("finished")
                self._writer.calls.prepare(self._writer.id, self._writer.producer)
                ref = self._writer.id
            self._part = StagedPart(ref, self._rows)
        return self._part

    def _end_context(self, _: BaseException | None, /) -> None:
        if self._part is None and self._writer is not None:
            self._writer.abort()
