"""Stages of the client: parts of a batch that many processes write and one publishes.

Rules: as ``writing``. A part of a batch that is published already stores nothing.
"""

from types import TracebackType
from typing import Any, NamedTuple, Self

from strandline.client.arguments import offsets_by_partition, text
from strandline.client.close_on_exit import leave
from strandline.client.positions import Offsets, Owner
from strandline.client.table_batches import arrow_batches
from strandline.client.transactional_writer import TransactionalWriter


class StagedPart(NamedTuple):
    """A finished part; plain, so that it travels to whoever publishes."""

    ref: str
    """Empty: the batch was published already, and there was nothing to stage."""
    rows: int


class StagedWrite:
    """One part of a batch. Made by ``Client.stage``.

    Leaving its context without ``finish`` discards it.
    """

    def __init__(self, writing: TransactionalWriter | None) -> None:
        self._writing = writing
        self._rows = 0
        self._part: StagedPart | None = None

    @property
    def is_published(self) -> bool:
        """Whether the batch is published already: then nothing is stored."""
        return self._writing is None

    def append(self, stream: str, value: bytes | str | None, **record: Any) -> None:
        """Append a record; as ``Transaction.append``, whose failure ``finish`` raises.

        Raises:
            StrandlineError: as ``Transaction.append``.
        """
        if self._writing is not None:
            self._writing.watch(self._writing.producer_of(stream).append(value, **record))
        self._rows += 1

    def append_batch(self, stream: str, data: Any, *, partition: int | None = None) -> None:
        """Append rows, of whatever ``Producer.append_batch`` takes; as ``append``.

        Raises:
            StrandlineError: as ``Transaction.append_batch``.
        """
        batches = arrow_batches(data)
        if self._writing is not None:
            producer = self._writing.producer_of(stream)
            for batch in batches:
                self._writing.watch(producer.append_batch(batch, partition=partition))
        self._rows += sum(batch.num_rows for batch in batches)

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Have positions of a group without members count with the part.

        Raises:
            StrandlineError: as ``TransactionalWriter.commit_offsets``.
        """
        name, given = text(group, "a group"), offsets_by_partition(offsets)
        if self._writing is not None:
            self._writing.commit_offsets(name, given, Owner())

    def finish(self) -> StagedPart:
        """Have everything stored, and wait to be published.

        Raises:
            ProducerFencedError, TransactionAbortedError: it was discarded meanwhile, because the
                batch was published without it or because its time was over.
            StrandlineError: a record was not stored.
        """
        if self._part is None:
            ref = ""
            if self._writing is not None:
                self._writing.check_open()
                self._writing.flush()
                self._writing.end("finished")
                self._writing.calls.prepare(self._writing.id, self._writing.producer)
                ref = self._writing.id
            self._part = StagedPart(ref, self._rows)
        return self._part

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._part is not None or self._writing is None:
            return
        leave(self._writing.abort, error, otherwise="the part waits for its timeout")
