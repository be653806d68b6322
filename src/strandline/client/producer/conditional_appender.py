"""Compare-and-append: a record is stored only if its offset is the expected one.

Each record is sent in a call of its own to its partition's leader. Rules: the call is retried while
there is no leader, or the leader is still loading. A record that was sent and not answered is never
sent again: a second attempt could not tell its own first attempt from another writer's record.
"""

import queue

from strandline.api.put import BatchTag, PutAck, PutRequest
from strandline.api.status import from_body
from strandline.client.cluster_client import ClusterClient
from strandline.client.deadline import limited
from strandline.client.producer.accumulator import ProducerRecord, RecordProducerBatch
from strandline.client.producer.put_stream import PutStream
from strandline.client.producer.table_batches import batch_of_records
from strandline.client.reader.results import Ack, AckFuture
from strandline.client.retry_policy import call_with_retries
from strandline.errors import (
    DisconnectedError,
    InvalidRequestError,
    NotLeaderError,
    RequestTimeoutError,
    StrandlineError,
    UnknownPartitionError,
)

UNKNOWN = "whether the record was stored is unknown: read the record at the expected offset"


class ConditionalAppender:
    """Appends single records to partitions; safe to use from several threads.

    Args:
        brokers: the brokers of the cluster.
        timeout_s: how long to try to append a record.
    """

    def __init__(self, brokers: ClusterClient, *, timeout_s: float) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s

    def close(self) -> None:
        """Close the connections; has no effect when repeated."""
        self._brokers.close()

    def append(
        self, stream: str, partition: int, record: ProducerRecord, *, expected_offset: int | None
    ) -> Ack:
        """Append a record and return its offset.

        Args:
            stream: the stream's name.
            partition: the partition's number.
            record: the record to store.
            expected_offset: the offset that the record must get; None: any offset.

        Raises:
            WrongLastSequenceError: the next offset is another one.
            DisconnectedError, RequestTimeoutError: the record may have been stored.
            StrandlineError: the record was not stored.
        """
        pending: RecordProducerBatch[AckFuture[Ack]] = RecordProducerBatch(
            partition, now_s=0, deadline_s=0
        )
        pending.records.append(record)
        tag = BatchTag(sequence=0, partition=partition, expected_offset=expected_offset)

        def should_retry(error: StrandlineError) -> bool:
            if error.retriable:
                self._brokers.metadata.forget(stream)
            return error.is_rejection  # otherwise the record may be stored

        return call_with_retries(
            lambda: self._attempt(stream, pending, tag),
            timeout_s=self._timeout_s,
            should_retry=should_retry,
            before_retry=self._brokers.metadata.ask_another,
        )

    def _attempt(
        self,
        stream: str,
        pending: RecordProducerBatch[AckFuture[Ack]],
        tag: BatchTag,
    ) -> Ack:
        """Send the record once.

        Raises:
            StrandlineError: as for ``append``; after a rejection the record may be sent again.
        """
        batch = batch_of_records(pending)
        answers: queue.SimpleQueue[PutAck | None] = queue.SimpleQueue()
        address = self._leader(stream, pending.partition)
        connection = self._brokers.connection(address)
        try:
            put = PutStream(
                connection,
                PutRequest(stream=stream, partition=pending.partition),
                batch.schema,
                on_ack=answers.put,
                on_end=lambda _: answers.put(None),
            )
        except DisconnectedError as error:  # the put could not begin, so nothing was sent
            connection.reset()
            raise NotLeaderError(f"cannot reach {address}: {error.message}") from error
        put.write(batch, tag)
        try:
            ack = answers.get(timeout=max(0.1, limited(self._timeout_s)))
        except queue.Empty:
            connection.reset()
            raise RequestTimeoutError(f"{address} did not answer; {UNKNOWN}") from None
        failure = put.finish()
        if ack is None:
            connection.reset()
            if isinstance(failure, InvalidRequestError):
                raise failure  # the broker rejected the call and stored nothing
            why = "closed the call" if failure is None else f"did not answer: {failure.message}"
            raise DisconnectedError(f"{address} {why}; {UNKNOWN}")
        if ack.error is not None:
            raise from_body(ack.error)
        if ack.ranges:
            return Ack.at(ack.ranges[0].offset, ack.ranges[0].partition)
        return Ack.at(ack.offsets[0], ack.partitions[0], duplicate=bool(ack.duplicates))

    def _leader(self, stream: str, partition: int) -> str:
        """Return the address of a partition's leader.

        Raises:
            NotLeaderError: the partition has no leader now.
            StrandlineError: there is no such partition, or no broker answers.
        """
        leaders = self._brokers.leaders(self._brokers.known_routes(stream))
        if partition not in leaders:  # it may have been added since the last lookup
            leaders = self._brokers.leaders(self._brokers.routes(stream))
        if partition not in leaders:
            raise UnknownPartitionError(
                f"stream {stream!r} has no partition {partition}; it has 0 to {len(leaders) - 1}"
            )
        if not leaders[partition]:
            raise NotLeaderError(f"{stream}/{partition} has no leader now; retry")
        return leaders[partition]
