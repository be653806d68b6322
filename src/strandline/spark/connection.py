"""Access of Spark's processes to a broker: one client per process, retries, whole ranges.

Rules: Spark fails a query on any exception and retries nothing on the driver, so temporary errors
(such as a broker restart) are retried here until ``retryTimeoutMs``; an interrupted read continues
at the next offset, so that no record is repeated. Clients are kept per process and never pickled.
Must not know Spark.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from operator import methodcaller
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

import strandline.client
from strandline.api.admin import StreamInfo
from strandline.client.retry_policy import RetryDeadline
from strandline.core.metadata.internal_streams import is_internal
from strandline.errors import (
    DataLossError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    StrandlineError,
    UnknownStreamError,
)
from strandline.spark.arrow import to_spark_batches
from strandline.spark.offset_options import PartitionKey, TimeSpec
from strandline.spark.options import (
    ReadOptions,
)
from strandline.spark.planning import (
    OffsetRange,
    Offsets,
    PartitionExtent,
    StreamExtent,
    identities,
    joined,
)
from strandline.values.schema import SchemaVersion, ValueFormat

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WAIT_ROUND_S = 0.1
"""The time of one round in which all streams of a read are asked for records, one after another."""

CONSTANTS = ("stream", "partition")
"""Columns of a Spark read that have the same value in all records of a range."""

# Forked workers must not share their parent's sockets, hence the process id in the key.
_clients: dict[tuple[int, str], strandline.client.Client] = {}
_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


@contextlib.contextmanager
def stopped_by(event: threading.Event) -> Iterator[None]:
    """Let an event end the waits for a broker that does not answer, in this context."""
    token = _stop.set(event)
    try:
        yield
    finally:
        _stop.reset(token)


def _pause(retry: RetryDeadline, error: StrandlineError, *, parent: int) -> None:
    """Sleep before the next attempt.

    Raises:
        StrandlineError: ``error`` itself, if it is permanent, the timeout has passed, or the
            user has stopped the query.
    """
    # A worker whose Spark was killed must not retry for minutes.
    if not error.retriable or os.getppid() != parent:
        raise error
    is_first = not retry.is_failing
    now_s = time.monotonic()
    pause_s = retry.pause_s(error, now_s)
    if is_first:
        logger.info("%s; retrying for %.0f s", error.message, retry.left_s(now_s))
    stop = _stop.get()
    if stop is None:
        time.sleep(pause_s)
    elif stop.wait(pause_s):
        raise error


def client_of(server: str) -> strandline.client.Client:
    """Return this process's client of the broker at ``server``, connected on first use."""
    key = (os.getpid(), server)
    if key not in _clients:
        _clients[key] = strandline.client.connect(server)
    return _clients[key]


def forget_client(server: str) -> None:
    """Drop this process's client, so that the next use reconnects."""
    client = _clients.pop((os.getpid(), server), None)
    if client is not None:
        client.close()


def with_retries(
    server: str, action: Callable[[strandline.client.Client], T], *, timeout_ms: int
) -> T:
    """Return the result of ``action`` on this process's client, retrying temporary errors.

    Raises:
        StrandlineError: a permanent error, or the last one after the timeout.
    """
    retry, parent = RetryDeadline(timeout_ms / 1e3), os.getppid()
    while True:
        try:
            return action(client_of(server))
        except StrandlineError as error:
            forget_client(server)
            _pause(retry, error, parent=parent)


def schema_versions(
    server: str, stream: str, *, kind: ValueFormat, timeout_ms: int
) -> Sequence[SchemaVersion]:
    """Return the versions of a stream's schema, ascending; empty if the stream has no schema.

    Raises:
        InvalidConfigError: the schema is for values of another format.
        UnknownStreamError: there is no such stream.
        UnavailableError: the broker could not be reached in time.
    """
    found = with_retries(server, lambda client: client.schemas.list(stream), timeout_ms=timeout_ms)
    if found and found[-1].format != kind:
        raise InvalidConfigError(
            f"the schema of stream {stream!r} is of {found[-1].format} values, and they are to be "
            f"decoded as {kind}: write {found[-1].format}, or give 'schema'"
        )
    return found


def schemas_of(options: ReadOptions, *, kind: ValueFormat) -> dict[str, Sequence[SchemaVersion]]:
    """Return the versions of the schema of each stream of a read; empty if none has one.

    Raises:
        InvalidConfigError: one is of another format, or is missing where others have one.
        UnknownStreamError: there is no such stream, or none that matches the pattern.
        UnavailableError: the broker could not be reached in time.
    """
    names = [options.stream] if options.stream else [each.name for each in _several(options)]
    timeout_ms = options.retry_timeout_ms
    found = {
        name: schema_versions(options.server, name, kind=kind, timeout_ms=timeout_ms)
        for name in names
    }
    without = [name for name, versions in found.items() if not versions]
    if without and len(without) < len(found):
        raise InvalidConfigError(
            f"stream {without[0]!r} has no schema, and other streams of the table have one: set it "
            f"with 'strandline stream schema set {without[0]} FILE', or give 'schema'"
        )
    return {} if without else found


def stream_state(options: ReadOptions) -> StreamExtent:
    """Return the identity of the streams of a read, and the offsets of their partitions.

    Raises:
        UnknownStreamError: there is no such stream, or none that matches the pattern.
        UnavailableError: the broker could not be reached in time.
    """
    if options.stream is not None:
        return _extent(options, _stream_info(options))
    return joined([_extent(options, info) for info in _several(options)])


def _several(options: ReadOptions) -> list[StreamInfo]:
    """Return the named streams, or those that match the pattern now."""
    if options.stream_pattern is None:
        return [_stream_info(options.of_stream(name)) for name in options.streams]
    names = matching((each.name for each in _all_streams(options)), "*")
    found = []
    for name in matching(names, options.stream_pattern):
        # Deleted since it was listed: a query that has read it notices by its checkpoint.
        with contextlib.suppress(UnknownStreamError):
            found.append(_stream_info(options.of_stream(name)))
    if not found:
        raise UnknownStreamError(
            f"no stream matches streamPattern {options.stream_pattern!r}, a glob of whole names "
            f"such as orders-*; there are: {', '.join(names[:20]) or 'no streams'}"
        )
    return found


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that match a glob, without internal streams."""
    return [name for name in names if fnmatchcase(name, pattern) and not is_internal(name)]


def _all_streams(options: ReadOptions) -> list[StreamInfo]:
    return with_retries(
        options.server, lambda client: client.list_streams(), timeout_ms=options.retry_timeout_ms
    )


def _extent(options: ReadOptions, info: StreamInfo) -> StreamExtent:
    return StreamExtent(
        identity=identity_of(info),
        partitions=tuple(
            PartitionExtent(
                partition=options.key(info.name, each.partition),
                log_start_offset=each.log_start_offset,
                high_watermark=each.high_watermark,
                size_bytes=each.size_bytes,
                log_end_offset=each.log_end_offset,
            )
            for each in info.partitions
        ),
        is_compacted=info.config.has_gaps,
    )


def identity_of(info: StreamInfo) -> str:
    """Return an id that distinguishes streams recreated under the same name."""
    return f"{info.name}@{info.created_ns}"


def offsets_at_times(
    options: ReadOptions, times_ns: TimeSpec, partitions: Iterable[PartitionKey]
) -> Offsets:
    """Return the first offset stored at or after each partition's time, or the partition's end.

    Args:
        options: the options of the read.
        times_ns: one time for all partitions, or a time for some partitions; others are left out.
        partitions: the partitions of the read.

    Raises:
        UnknownStreamError: there is no such stream.
        UnavailableError: the broker could not be reached in time.
    """
    if isinstance(times_ns, int):
        times_ns = dict.fromkeys(partitions, times_ns)
    asked: dict[tuple[str, int], dict[int, int]] = {}
    found: Offsets = {}
    for partition, time_ns in sorted(times_ns.items()):
        stream, number = options.place(partition)
        question = stream, time_ns
        if question not in asked:
            # Rounded up, so that no earlier record is included.
            at = _EPOCH + timedelta(microseconds=-(-time_ns // 1000))
            action = methodcaller("offsets", stream, at)
            asked[question] = with_retries(
                options.server, action, timeout_ms=options.retry_timeout_ms
            )
        found[partition] = asked[question][number]
    return found


def wait_for_records(options: ReadOptions, beyond: Offsets) -> None:
    """Wait until a partition has a record at or after its offset, at most ``longPollMs``.

    Several streams are asked one after another, a short time each.

    Raises:
        UnknownStreamError: there is no such stream.
        UnavailableError: the broker could not be reached in time.
    """
    streams: dict[str, dict[int, int]] = {}
    for partition, offset in beyond.items():
        stream, number = options.place(partition)
        streams.setdefault(stream, {})[number] = offset
    until = time.monotonic() + options.long_poll_ms / 1000
    slice_s = _WAIT_ROUND_S / len(streams) if len(streams) > 1 else options.long_poll_ms / 1000
    while True:
        for stream, offsets in streams.items():
            wait_s = min(slice_s, max(0.0, until - time.monotonic()))
            action = methodcaller("wait_for", stream, offsets, timeout_s=wait_s)
            found = with_retries(options.server, action, timeout_ms=options.retry_timeout_ms)
            if any(found[number] > offset for number, offset in offsets.items()):
                return
        if time.monotonic() >= until:
            return


def read_range(
    options: ReadOptions,
    wanted: OffsetRange,
    columns: Sequence[str],
    *,
    identity: str,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range that pass the broker's filters, each once.

    Args:
        options: broker, stream, filters, and the policy for lost records.
        wanted: the partition and its range of offsets.
        columns: columns to read. ``offset`` is added, since a resumed read needs it; ``CONSTANTS``
            are left out.
        identity: the identity of the range's stream, or of all streams of the read.

    Raises:
        DataLossError: records of the range were deleted, unless ``failOnDataLoss`` is off; or the
            stream was recreated.
        UnavailableError: the broker could not be reached in time.
    """
    stream, partition = options.place(wanted.partition)
    options, wanted = options.of_stream(stream), replace(wanted, partition=partition)
    identity = identities(identity).get(stream, identity)
    asked = list(dict.fromkeys(("offset", *(c for c in columns if c not in CONSTANTS))))
    left, records = wanted, 0
    retry, parent = RetryDeadline(options.retry_timeout_ms / 1e3), os.getppid()
    while left.start < left.stop:
        # Checked after each reconnect: the stream may have been recreated meanwhile.
        _check_not_recreated(options, identity)
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
            _pause(retry, error, parent=parent)
        else:
            break
    if records < wanted.records_max:
        _check_complete(options, wanted, records=records)


def read_rows(
    options: ReadOptions, wanted: OffsetRange, target: pa.Schema, *, identity: str
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range as rows of a schema, in batches of 0.5-2 MiB.

    Args:
        options: as for ``read_range``, which also lists the errors.
        wanted: the partition and its range of offsets.
        target: columns of records, in Spark's types.
        identity: the identity of the range's stream.
    """
    batches = read_range(options, wanted, target.names, identity=identity)
    constants = options.place(wanted.partition)._asdict()
    return to_spark_batches(batches, target, constants=constants)


def stored_offsets(options: ReadOptions, wanted: OffsetRange) -> tuple[int, int, StreamExtent]:
    """Count the records of a range and sum their offsets; also return the stream's state.

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


def _check_not_recreated(options: ReadOptions, identity: str) -> None:
    """Check that a range's offsets belong to the current stream.

    Raises:
        DataLossError: the stream was deleted and recreated.
    """
    found = identity_of(_stream_info(options))
    if found != identity:
        raise DataLossError(
            f"the read was planned on stream {identity}, but the broker has {found}: offsets of "
            "one are invalid in the other; load it again, and start a streaming query with a "
            "new checkpoint, and a new table or output"
        )


def _stream_info(options: ReadOptions) -> StreamInfo:
    stream = options.stream
    assert stream is not None
    return with_retries(
        options.server,
        lambda client: client.stream_info(stream),
        timeout_ms=options.retry_timeout_ms,
    )


def _open(
    options: ReadOptions, wanted: OffsetRange, *, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    stream, partition = options.place(wanted.partition)
    return iter(
        client_of(options.server).read(
            stream,
            partition=partition,
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
    """Return the readable part of a range whose start was deleted or whose end does not exist."""
    found = {state.partition: state for state in stream_state(options).partitions}
    state = found.get(left.partition)
    if options.fail_on_data_loss or state is None or not _is_lost(left, state):
        raise DataLossError(
            f"records from offset {left.start} of {options.stream}/{left.partition} are gone "
            f"({error.message}); raise the stream's retention, or set failOnDataLoss=false to go "
            "on without them"
        ) from error
    # An end that may still be committed is kept.
    stop = left.stop if left.stop <= state.end_max else state.high_watermark
    return OffsetRange(left.partition, min(max(left.start, state.log_start_offset), stop), stop)


def _is_lost(left: OffsetRange, state: PartitionExtent) -> bool:
    """Return whether a range begins before its log, or ends after it."""
    return left.start < state.log_start_offset or left.stop > state.end_max


def _check_complete(options: ReadOptions, wanted: OffsetRange, *, records: int) -> None:
    """Check that no record of a range was deleted during the read, if fewer than expected came.

    Raises:
        DataLossError: records were deleted while they were read.
    """
    if options.subject is not None or options.keys is not None or not options.fail_on_data_loss:
        return
    info = _stream_info(options)
    starts = {each.partition: each.log_start_offset for each in info.partitions}
    # Compaction, transaction markers and aborted records leave gaps. A deletion moves the
    # start of the log.
    _, partition = options.place(wanted.partition)
    if not info.config.has_gaps and starts.get(partition, 0) > wanted.start:
        raise DataLossError(
            f"{options.stream}/{wanted.partition} gave {records} records of the "
            f"{wanted.records_max} from offset {wanted.start} to {wanted.stop}"
        )
