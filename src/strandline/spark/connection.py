"""The one door from Spark's processes to a broker: one client a process, retries, whole ranges.

Rules: Spark fails a query on any exception and retries nothing on the driver, so whatever may pass
(a broker that restarts) is retried here until ``retryTimeoutMs`` is over; a read that was cut goes
on at the next offset, so that no record comes twice. Clients are kept per process and never
pickled. Must not know Spark.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

import strandline.client
from strandline.errors import (
    DataLossError,
    OffsetOutOfRangeError,
    StrandlineError,
)
from strandline.protocol.admin import StreamInfo
from strandline.spark.options import ReadOptions
from strandline.spark.planning import OffsetRange, Offsets, PartitionState, StreamState

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BACKOFF_FIRST_S = 0.05
_BACKOFF_LARGEST_S = 2.0

# Forked workers must not share their parent's sockets, hence the process id in the key.
_clients: dict[tuple[int, str], strandline.client.Client] = {}


class Retry:
    """Decides how long to wait before the next try, and when to give up.

    Args:
        timeout_ms: how long failures may go on without any success in between.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._failing_since: float | None = None
        self._wait_s = _BACKOFF_FIRST_S
        self._parent = os.getppid()

    def succeeded(self) -> None:
        """Something worked: the clock starts anew with the next failure."""
        self._failing_since = None
        self._wait_s = _BACKOFF_FIRST_S

    def wait_or_raise(self, error: StrandlineError) -> None:
        """Sleep a little longer than last time.

        Raises:
            StrandlineError: ``error`` itself, if it will not pass or has lasted too long.
        """
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        is_over = now + self._wait_s - self._failing_since > self._timeout_s
        # A worker whose Spark was killed must not go on asking for minutes.
        is_orphan = os.getppid() != self._parent
        if not error.retriable or is_over or is_orphan:
            raise error
        time.sleep(self._wait_s)
        self._wait_s = min(self._wait_s * 2, _BACKOFF_LARGEST_S)


def client_of(server: str) -> strandline.client.Client:
    """This process's client of the broker at ``server``, connected when first used."""
    key = (os.getpid(), server)
    if key not in _clients:
        _clients[key] = strandline.client.connect(server)
    return _clients[key]


def forget_client(server: str) -> None:
    """Drop this process's client, so that the next use connects anew."""
    client = _clients.pop((os.getpid(), server), None)
    if client is not None:
        client.close()


def with_retries(
    server: str, action: Callable[[strandline.client.Client], T], *, timeout_ms: int
) -> T:
    """What ``action`` returns for this process's client, tried again while errors may pass.

    Raises:
        StrandlineError: one that will not pass, or the last one when the time is over.
    """
    retry = Retry(timeout_ms)
    while True:
        try:
            return action(client_of(server))
        except StrandlineError as error:
            forget_client(server)
            retry.wait_or_raise(error)


def stream_state(options: ReadOptions) -> StreamState:
    """Which stream it is, and where each of its partitions starts and ends now.

    Raises:
        UnknownStreamError: there is no such stream.
        UnavailableError: the broker could not be reached in time.
    """
    info = _stream_info(options)
    return StreamState(
        identity=identity_of(info),
        partitions=tuple(
            PartitionState(
                partition=each.partition,
                log_start_offset=each.log_start_offset,
                high_watermark=each.high_watermark,
                size_bytes=each.size_bytes,
                log_end_offset=each.log_end_offset,
            )
            for each in info.partitions
        ),
        is_compacted=info.config.compact,
    )


def identity_of(info: StreamInfo) -> str:
    """What tells a stream from others, also from those of its name before and after it."""
    return f"{info.name}@{info.created_ns}"


def offsets_at_time(options: ReadOptions, timestamp_ns: int) -> Offsets:
    """For each partition the first record stored at or after a time, or its end.

    Raises:
        UnknownStreamError: there is no such stream.
        UnavailableError: the broker could not be reached in time.
    """
    # Rounded up, as every record before the time must stay out.
    microseconds = -(-timestamp_ns // 1000)
    found = with_retries(
        options.server,
        lambda client: client.offsets(
            options.stream, _EPOCH + timedelta(microseconds=microseconds)
        ),
        timeout_ms=options.retry_timeout_ms,
    )
    return dict(sorted(found.items()))


def wait_for_records(options: ReadOptions, beyond: Offsets) -> None:
    """Return once a partition has a record at its offset or after, or ``longPollMs`` is over.

    Raises:
        UnknownStreamError: there is no such stream.
        UnavailableError: the broker could not be reached in time.
    """
    with_retries(
        options.server,
        lambda client: client.wait_for(
            options.stream, beyond, timeout_s=options.long_poll_ms / 1000
        ),
        timeout_ms=options.retry_timeout_ms,
    )


def read_range(
    options: ReadOptions,
    wanted: OffsetRange,
    columns: Sequence[str],
    *,
    identity: str,
) -> Iterator[pa.RecordBatch]:
    """The records of a range, each once, as the broker's filters let them through.

    Args:
        options: broker, stream, filters, and what to do about lost records.
        wanted: partition and offsets.
        columns: what to read; ``offset`` comes along, because a cut read needs it to go on.
        identity: of the stream that the range was planned on.

    Raises:
        DataLossError: records of the range were deleted, unless ``failOnDataLoss`` is off; or the
            stream was created anew.
        UnavailableError: the broker could not be reached in time.
    """
    asked = list(dict.fromkeys(("offset", *(c for c in columns if c != "partition"))))
    left, records = wanted, 0
    retry = Retry(options.retry_timeout_ms)
    while left.start < left.stop:
        # Also after each interruption: who waits for a broker may find another stream there.
        _refuse_created_anew(options, identity)
        try:
            for batch in _open(options, left, columns=asked):
                if batch.num_rows:
                    yield batch
                    left = replace(left, start=batch.column("offset")[-1].as_py() + 1)
                    records += batch.num_rows
                    retry.succeeded()
        except (OffsetOutOfRangeError, DataLossError) as error:
            left = _after_lost_records(options, left, error=error)
        except StrandlineError as error:
            forget_client(options.server)
            retry.wait_or_raise(error)
        else:
            break
    if records < wanted.records_max:
        _refuse_short_read(options, wanted, records=records)


def stored_offsets(options: ReadOptions, wanted: OffsetRange) -> tuple[int, int, StreamState]:
    """Count the records of a range and add up their offsets; also return the stream as it is then.

    Records that retention has deleted are not counted.

    Raises:
        UnknownStreamError: there is no such stream.
        UnavailableError: the broker could not be reached in time.
    """
    lenient = replace(options, fail_on_data_loss=False)
    state = stream_state(lenient)
    starts = {each.partition: each.log_start_offset for each in state.partitions}
    start = max(wanted.start, starts.get(wanted.partition, 0))
    left = replace(wanted, start=min(start, wanted.stop))
    rows = total = 0
    for batch in read_range(lenient, left, ["offset"], identity=state.identity):
        rows += batch.num_rows
        total += pc.sum(batch.column("offset")).as_py()
    return rows, total, stream_state(lenient)


def _refuse_created_anew(options: ReadOptions, identity: str) -> None:
    """Check that a range's offsets belong to the stream that is there now.

    Raises:
        DataLossError: the stream was deleted and created anew.
    """
    found = identity_of(_stream_info(options))
    if found != identity:
        raise DataLossError(
            f"the read was planned on stream {identity}, but the broker has {found}: offsets of "
            "one mean nothing in the other; load it anew, and of a streaming query start with a "
            "new checkpoint, and a new table or output"
        )


def _stream_info(options: ReadOptions) -> StreamInfo:
    return with_retries(
        options.server,
        lambda client: client.stream_info(options.stream),
        timeout_ms=options.retry_timeout_ms,
    )


def _open(
    options: ReadOptions, wanted: OffsetRange, *, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    return iter(
        client_of(options.server).read(
            options.stream,
            partition=wanted.partition,
            start=wanted.start,
            stop=wanted.stop,
            columns=columns,
            subject=options.subject,
            keys=options.keys,
        )
    )


def _after_lost_records(
    options: ReadOptions, left: OffsetRange, *, error: StrandlineError
) -> OffsetRange:
    """What can be read of a range whose beginning is deleted, or whose end a restored log lacks."""
    found = {state.partition: state for state in stream_state(options).partitions}
    state = found.get(left.partition)
    if options.fail_on_data_loss or state is None or not _is_lost(left, state):
        raise DataLossError(
            f"records from offset {left.start} of {options.stream}/{left.partition} are gone "
            f"({error.message}); raise the stream's retention, or set failOnDataLoss=false to go "
            "on without them"
        ) from error
    # Of an end that may yet turn out to be committed nothing is cut.
    stop = left.stop if left.stop <= state.end_max else state.high_watermark
    return OffsetRange(left.partition, min(max(left.start, state.log_start_offset), stop), stop)


def _is_lost(left: OffsetRange, state: PartitionState) -> bool:
    """Whether a range begins before its log, or ends after it."""
    return left.start < state.log_start_offset or left.stop > state.end_max


def _refuse_short_read(options: ReadOptions, wanted: OffsetRange, *, records: int) -> None:
    """Check that fewer records than offsets have a reason other than a deletion.

    Raises:
        DataLossError: records were deleted while they were read.
    """
    if options.subject is not None or options.keys is not None or not options.fail_on_data_loss:
        return
    info = _stream_info(options)
    starts = {each.partition: each.log_start_offset for each in info.partitions}
    # Compaction leaves gaps, and so do transactions: their markers and what was aborted have
    # offsets. A deletion moves the start of the log.
    if not info.config.compact and starts.get(wanted.partition, 0) > wanted.start:
        raise DataLossError(
            f"{options.stream}/{wanted.partition} gave {records} records of the "
            f"{wanted.records_max} from offset {wanted.start} to {wanted.stop}"
        )
