"""One record that is stored only at the offset where it is expected: optimistic concurrency.

Each record is a call of its own to the leader of its partition. Rules: a leader that is away, does
not lead any more or is still loading is waited out; what was sent and not answered is never sent
again, because a second attempt could not tell its own first from somebody else's record.
"""

import queue
import time

from strandline.client.batching import Record, RecordProducerBatch
from strandline.client.cluster_client import ClusterClient
from strandline.client.deadline import within
from strandline.client.put_stream import PutStream
from strandline.client.results import Ack, AckFuture
from strandline.client.retry import Backoff, is_refusal
from strandline.client.table_batches import batch_of_records
from strandline.errors import (
    DisconnectedError,
    InvalidRequestError,
    NotLeaderError,
    RequestTimeoutError,
    StrandlineError,
    UnknownPartitionError,
)
from strandline.protocol.put import BatchTag, PutAck, PutRequest
from strandline.protocol.status import from_body

UNKNOWN = "whether the record was stored is not known: read what is at the expected offset"


class ConditionalAppender:
    """Appends single records to partitions; safe to use from several threads.

    Args:
        brokers: of the cluster.
        timeout_s: how long a record is tried for.
    """

    def __init__(self, brokers: ClusterClient, *, timeout_s: float) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s

    def close(self) -> None:
        """End the connections; harmless when repeated."""
        self._brokers.close()

    def append(
        self, stream: str, partition: int, record: Record, *, expected_offset: int | None
    ) -> Ack:
        """Store a record; returns where it is.

        Args:
            stream: its name.
            partition: of it.
            record: what to store.
            expected_offset: where; None: wherever it comes to be.

        Raises:
            WrongLastSequenceError: another offset is the next.
            DisconnectedError, RequestTimeoutError: whether it was stored is not known.
            StrandlineError: it was not stored.
        """
        lot: RecordProducerBatch[AckFuture[Ack]] = RecordProducerBatch(
            partition, now_s=0, deadline_s=0
        )
        lot.records.append(record)
        tag = BatchTag(sequence=0, partition=partition, expected_offset=expected_offset)
        backoff = Backoff()
        with within(self._timeout_s) as deadline_s:
            while True:
                try:
                    return self._attempt(stream, lot, tag, deadline_s=deadline_s)
                except StrandlineError as error:
                    now_s = time.monotonic()
                    backoff.failed(now_s)
                    # Only a refusal says for certain that it was not stored.
                    if not is_refusal(error) or backoff.not_before_s >= deadline_s:
                        raise
                    self._brokers.ask_another()
                    time.sleep(backoff.wait_s(now_s))

    def _attempt(
        self,
        stream: str,
        lot: RecordProducerBatch[AckFuture[Ack]],
        tag: BatchTag,
        *,
        deadline_s: float,
    ) -> Ack:
        """Send it once.

        Raises:
            StrandlineError: as ``append``; after a refusal it may be sent again.
        """
        batch = batch_of_records(lot)
        answers: queue.SimpleQueue[PutAck | None] = queue.SimpleQueue()
        address = self._leader(stream, lot.partition)
        connection = self._brokers.connection(address)
        try:
            put = PutStream(
                connection,
                PutRequest(stream=stream, partition=lot.partition),
                batch.schema,
                on_ack=answers.put,
                on_end=lambda _: answers.put(None),
            )
        except DisconnectedError as error:  # nothing was sent
            connection.reset()
            raise NotLeaderError(f"{address} is not reached: {error.message}") from error
        put.write(batch, tag)
        try:
            ack = answers.get(timeout=max(0.1, deadline_s - time.monotonic()))
        except queue.Empty:
            connection.reset()
            raise RequestTimeoutError(f"{address} did not answer; {UNKNOWN}") from None
        failure = put.finish()
        if ack is None:
            connection.reset()
            if isinstance(failure, InvalidRequestError):
                raise failure  # the broker refused the call: it has taken nothing of it
            why = "is gone" if failure is None else f"did not answer: {failure.message}"
            raise DisconnectedError(f"{address} {why}; {UNKNOWN}")
        if ack.error is not None:
            raise from_body(ack.error)
        if ack.ranges:
            return Ack.at(ack.ranges[0].offset, ack.ranges[0].partition)
        return Ack.at(ack.offsets[0], ack.partitions[0], duplicate=bool(ack.duplicates))

    def _leader(self, stream: str, partition: int) -> str:
        """Who leads a partition.

        Raises:
            NotLeaderError: nobody does just now.
            StrandlineError: there is no such, or nobody knows.
        """
        leaders = self._brokers.leaders(self._brokers.routes(stream))
        if partition not in leaders:
            raise UnknownPartitionError(f"stream {stream!r} has no partition {partition}")
        if not leaders[partition]:
            raise NotLeaderError(f"{stream}/{partition} has no leader just now; retry")
        return leaders[partition]
