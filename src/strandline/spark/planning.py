"""Planning of reads: start and end, the size of a micro-batch, and its split into tasks.

Rules: pure functions of the broker's report and the user's options, so that a replayed micro-batch
is planned exactly as before; ranges are half-open; an end is never below its start; encoded offsets
have ascending partitions, because Spark compares them as text. Must not know Spark, the client or
the clock.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from strandline.errors import (
    DataLossError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
)
from strandline.spark.offset_options import (
    BEGAN_AT,
    CHECKPOINT_WORDS,
    IDENTITY,
    OUTPUT,
    OffsetSpec,
    PartitionKey,
    parse_partition,
)
from strandline.spark.options import (
    ReadOptions,
)
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

Offsets = dict[PartitionKey, int]
"""An offset for each partition, partitions ascending; all keys of one read have the same form."""
OTHERS_ADVICE = ", and give the offsets of the others in the old one as startingOffsets"
"""The advice in an error about a query that no longer reads one of its streams."""


@dataclass(frozen=True)
class PartitionExtent:
    """The offsets and size of a partition, as reported by the broker."""

    partition: PartitionKey
    log_start_offset: int
    high_watermark: int
    size_bytes: int = 0
    log_end_offset: int = 0
    """The leader's log end, committed or not; 0: unknown."""

    @property
    def end_max(self) -> int:
        """Return the offset below which all committed records are.

        It can be above the high watermark: a new leader has all committed records, and learns only
        later that they are committed.
        """
        return max(self.high_watermark, self.log_end_offset)

    @property
    def record_bytes(self) -> float:
        """Return the estimated bytes of an average record; 0 if unknown."""
        records = self.high_watermark - self.log_start_offset
        return self.size_bytes / records if records > 0 else 0.0


@dataclass(frozen=True)
class OffsetRange:
    """Records ``start <= offset < stop`` of one partition."""

    partition: PartitionKey
    start: int
    stop: int

    @property
    def records_max(self) -> int:
        """Return the number of records in the range, unless compaction removed some."""
        return self.stop - self.start


@dataclass(frozen=True)
class StreamExtent:
    """The partitions of a stream, or of several, as reported by the broker."""

    identity: str
    """Name and creation time of the stream, or of several, separated by commas."""
    partitions: tuple[PartitionExtent, ...]
    is_compacted: bool = False


EncodedOffsets = dict[str, int | str]
"""The offsets of a Spark checkpoint as JSON values, with the stream's identity."""


def encode_offsets(
    offsets: Offsets,
    *,
    identity: str,
    began_at: Offsets | None = None,
    output: str | None = None,
) -> EncodedOffsets:
    """Encode offsets for Spark: text keys, ascending by partition, the identity last.

    Args:
        offsets: the offset of each partition.
        identity: the identity of the stream.
        began_at: the start of this micro-batch, if it is not the end of the one before.
        output: the query's output, if known.
    """
    encoded: EncodedOffsets = {str(partition): offsets[partition] for partition in sorted(offsets)}
    encoded[IDENTITY] = identity
    if began_at is not None:
        encoded[BEGAN_AT] = json.dumps({str(p): began_at[p] for p in sorted(began_at)})
    if output is not None:
        encoded[OUTPUT] = output
    return encoded


def decode_offsets(encoded: Mapping[str, int | str]) -> Offsets:
    """Decode the result of ``encode_offsets``.

    Raises:
        InvalidConfigError: the offsets are another source's.
    """
    if not _is_ours(encoded):
        raise InvalidConfigError(
            f"the checkpoint's offsets are not of format('strandline'): {str(encoded)[:100]}; if "
            "the query read another source before, start with a new checkpoint"
        )
    found = ((_partition(key), offset) for key, offset in encoded.items())
    return dict(sorted((key, int(offset)) for key, offset in found if key is not None))


def offsets_of(encoded: Mapping[str, int | str], options: ReadOptions) -> Offsets:
    """Decode offsets of a checkpoint, which an earlier query of fewer streams may have written.

    Raises:
        InvalidConfigError: the offsets are another source's.
    """
    [*_, only] = identities(str(encoded.get(IDENTITY, ""))) or [""]
    return {
        options.key(*(key if isinstance(key, PartitionName) else (only, key))): offset
        for key, offset in decode_offsets(encoded).items()
    }


def identities(identity: str) -> dict[str, str]:
    """Return the identity of each stream of a ``StreamExtent``, by the stream's name."""
    return {each.rpartition("@")[0]: each for each in identity.split(",")}


def joined(extents: Sequence[StreamExtent]) -> StreamExtent:
    """Return several streams as one; their partitions have the streams' names."""
    return StreamExtent(
        identity=",".join(sorted(each.identity for each in extents)),
        partitions=tuple(part for each in extents for part in each.partitions),
    )


def _partition(text: str) -> PartitionKey | None:
    """Return the partition that a key of encoded offsets names; None: the key names none."""
    return parse_partition(text, only="" if text.isdecimal() else None)


def _is_ours(encoded: object) -> bool:
    """Return whether a checkpoint's offsets were written by this source."""
    if not isinstance(encoded, Mapping) or not isinstance(encoded.get(IDENTITY), str):
        return False
    return all(
        key in CHECKPOINT_WORDS or (isinstance(offset, int) and _partition(key) is not None)
        for key, offset in encoded.items()
    )


def beginning_of(
    start: Mapping[str, int | str], end: Mapping[str, int | str], options: ReadOptions
) -> Offsets:
    """Return the start of a micro-batch.

    A checkpoint does not have the start of a query's first micro-batch. If that batch is repeated,
    Spark asks again where to begin, and the answer may have changed. So the end of the first batch
    contains its start. The end of a batch contains its start also if the batch has a new stream
    whose first records were deleted earlier.
    """
    began_at = end.get(BEGAN_AT)
    if began_at is None:
        return offsets_of(start, options)
    return offsets_of(json.loads(str(began_at)) | {IDENTITY: end[IDENTITY]}, options)


def keyed(
    offsets: Iterable[tuple[int | str, int]], options: ReadOptions, *, identity: str
) -> Offsets:
    """Return a table's offsets as those of a read, without streams that it does not read.

    Args:
        offsets: the offset of each partition, partitions named as in the table.
        options: the options of the read.
        identity: the identity of the read's streams.
    """
    read = identities(identity)
    found = {options.key_of(partition): offset for partition, offset in offsets}
    return {key: offset for key, offset in found.items() if options.place(key).stream in read}


def check_same_stream(encoded: Mapping[str, int | str], state: StreamExtent) -> None:
    """Check that a checkpoint's offsets belong to the current streams, which may be more.

    Raises:
        DataLossError: a stream was deleted or recreated, or the options no longer name it.
    """
    current = identities(state.identity)
    known = identities(str(encoded[IDENTITY]))
    for name, identity in known.items():
        if current.get(name) == identity:
            continue
        if name not in current and len(known) > 1:
            raise DataLossError(reads_another("the checkpoint", name))
        raise DataLossError(
            f"the checkpoint belongs to stream {identity}, but the broker has "
            f"{current.get(name, state.identity)}: offsets of one mean nothing in the other; start "
            f"with a new checkpoint, and a new table or output{OTHERS_ADVICE * (len(known) > 1)}"
        )


def reads_another(checkpoint: str, name: str) -> str:
    """Return the error for a stream that was deleted, or that the options no longer name."""
    return (
        f"{checkpoint} belongs to a query that reads stream {name}, too: to go on without it, "
        f"start with a new checkpoint{OTHERS_ADVICE}"
    )


def check_same_output(encoded: Mapping[str, int | str], output: str | None) -> None:
    """Check that a checkpoint belongs to this output.

    Raises:
        InvalidConfigError: the query wrote its earlier records to another output.
    """
    noted = encoded.get(OUTPUT)
    if output is not None and noted not in (None, output):
        raise InvalidConfigError(
            f"the checkpoint says what was written to {noted}, but the query writes to {output}, "
            "which would get only what comes from now on; start with a new checkpoint"
        )


def starting_offsets(states: Sequence[PartitionExtent], options: ReadOptions) -> Offsets:
    """Return the start of a new read.

    Raises:
        UnknownPartitionError: the user's offsets name a partition that does not exist.
        OffsetOutOfRangeError: an offset beyond the high watermark.
        DataLossError: an offset below the log start, unless ``failOnDataLoss`` is off.
    """
    resolved = resolve_offsets(states, options.starting_offsets, name="startingOffsets")
    return {
        state.partition: _checked_start(state, resolved[state.partition], options)
        for state in sorted(states, key=lambda state: state.partition)
    }


def ending_offsets(
    states: Sequence[PartitionExtent], options: ReadOptions, *, starting: Offsets
) -> Offsets:
    """Return the end of a batch read.

    Raises:
        UnknownPartitionError: the user's offsets name a partition that does not exist.
        OffsetOutOfRangeError: an end beyond the high watermark or below the start, unless
            ``failOnDataLoss`` is off and everything up to it was deleted.
    """
    resolved = resolve_offsets(states, options.ending_offsets, name="endingOffsets")
    for state in states:
        end, start = resolved[state.partition], starting[state.partition]
        if end > state.high_watermark:
            raise OffsetOutOfRangeError(
                f"endingOffsets asks for offset {end} of partition {state.partition}, whose "
                f"committed records end at {state.high_watermark}"
            )
        if not options.fail_on_data_loss and end < start == state.log_start_offset:
            logger.warning(
                "records up to %d of partition %d were deleted: nothing of it is read",
                end,
                state.partition,
            )
            resolved[state.partition] = start
        elif end < start:
            raise OffsetOutOfRangeError(
                f"partition {state.partition} would end at offset {end} before it starts at {start}"
            )
    return resolved


def resolve_offsets(states: Sequence[PartitionExtent], spec: OffsetSpec, *, name: str) -> Offsets:
    """Resolve words and numbers to an offset for every partition.

    Args:
        states: every partition of the stream.
        spec: the option's value.
        name: the option. Partitions that it does not name start at the earliest offset and end at
            the latest.

    Raises:
        UnknownPartitionError: the user's offsets name a partition that does not exist.
    """
    if isinstance(spec, dict):
        check_known_partitions(states, spec, name=name)
    unnamed = "earliest" if name == "startingOffsets" else "latest"
    found: Offsets = {}
    for state in sorted(states, key=lambda state: state.partition):
        place = spec.get(state.partition, unnamed) if isinstance(spec, dict) else spec
        if place == "earliest":
            found[state.partition] = state.log_start_offset
        elif place == "latest":
            found[state.partition] = state.high_watermark
        else:
            found[state.partition] = int(place)
    return found


def check_known_partitions(
    states: Sequence[PartitionExtent], named: Iterable[PartitionKey], *, name: str
) -> None:
    """Check that an option names only partitions that exist.

    Raises:
        UnknownPartitionError: a partition does not exist; the message has option and partition.
    """
    known = {state.partition for state in states}
    unknown = set(named) - known
    if unknown:
        there = ", ".join(map(str, sorted(known)))
        raise UnknownPartitionError(
            f"{name} names partition {min(unknown)}, but the stream has {there}"
        )


def with_added(offsets: Offsets, states: Sequence[PartitionExtent]) -> Offsets:
    """Return a query's offsets, and a beginning for each partition that was added since.

    A new stream begins at its log start offset, since the query did not wait for records that were
    deleted earlier. A new partition of a known stream begins at 0, since all its records are due.
    """
    known = {_stream(partition) for partition in offsets}
    added = {
        state.partition: 0 if _stream(state.partition) in known else state.log_start_offset
        for state in states
    }
    return added | offsets


def _stream(partition: PartitionKey) -> str | None:
    return partition.stream if isinstance(partition, PartitionName) else None


def high_watermarks(states: Sequence[PartitionExtent]) -> Offsets:
    """Return each partition's high watermark."""
    ordered = sorted(states, key=lambda state: state.partition)
    return {state.partition: state.high_watermark for state in ordered}


def available_end(
    states: Sequence[PartitionExtent], options: ReadOptions, *, start: Offsets
) -> Offsets:
    """Return the offsets up to which records are committed, never below ``start``.

    Args:
        states: every partition of the stream that the broker knows.
        options: whether lost records are an error.
        start: an offset for each partition; the offset of a new partition that this broker does not
            know yet is kept.

    Raises:
        DataLossError: records after ``start`` are lost, unless ``failOnDataLoss`` is off.
    """
    end = dict(start)
    for state in sorted(states, key=lambda state: state.partition):
        begin = start[state.partition]
        _check_data_loss(state, begin, options)
        end[state.partition] = max(begin, state.high_watermark)
    return end


def check_records_exist(state: PartitionExtent, start: int) -> None:
    """Check that the records from ``start`` on still exist.

    Raises:
        DataLossError: they were deleted, or the partition ends before them.
    """
    if start < state.log_start_offset:
        raise DataLossError(
            f"records {start} to {state.log_start_offset} of partition {state.partition} were "
            "deleted before they were read; raise the stream's retention, or set "
            "failOnDataLoss=false to continue without them"
        )
    if start > state.end_max:
        raise DataLossError(
            f"partition {state.partition} ends at offset {state.end_max}, but records up "
            f"to {start} were read before; the stream was restored from a backup: start with "
            "a new checkpoint, or set failOnDataLoss=false to wait until it has grown past that"
        )


def limit_records(start: Offsets, end: Offsets, *, records_max: int) -> Offsets:
    """Reduce ``end`` so that at most ``records_max`` offsets are taken.

    One record of each partition is taken, if the limit allows, so that a partition with a long
    backlog does not hold up the others. The rest is divided in proportion to the backlogs.
    """
    available = {partition: end[partition] - start[partition] for partition in end}
    if sum(available.values()) <= records_max:
        return end
    waiting = sum(count > 0 for count in available.values())
    first = 1 if waiting <= records_max else 0
    given = {p: min(count, first) for p, count in available.items()}
    rest = {p: count - given[p] for p, count in available.items()}
    shared, total = records_max - sum(given.values()), sum(rest.values())
    shares = {p: given[p] + count * shared // total for p, count in rest.items()}
    # The rest after rounding down goes to the largest remainders, lower partition first.
    left = records_max - sum(shares.values())
    by_remainder = sorted(rest, key=lambda p: (-(rest[p] * shared % total), p))
    for partition in by_remainder[:left]:
        shares[partition] += 1
    return {partition: start[partition] + shares[partition] for partition in end}


def limit_bytes(
    start: Offsets, end: Offsets, *, bytes_max: int, states: Sequence[PartitionExtent]
) -> Offsets:
    """Reduce ``end`` so that about ``bytes_max`` bytes are taken.

    The bytes are estimated by the average size of each partition's records. At least one record is
    taken if there is one.
    """
    available = {partition: end[partition] - start[partition] for partition in end}
    total = waiting_bytes(start, end, states=states)
    if total <= bytes_max:
        return end
    records = int(sum(available.values()) * bytes_max / total)
    return limit_records(start, end, records_max=max(1, records))


def waiting_bytes(start: Offsets, end: Offsets, *, states: Sequence[PartitionExtent]) -> float:
    """Estimate the bytes between two offsets by the average size of records."""
    record_bytes = {state.partition: state.record_bytes for state in states}
    return sum((end[p] - start[p]) * record_bytes.get(p, 0.0) for p in end)


def split_ranges(
    ranges: Iterable[OffsetRange], *, records_max: int | None, partitions_min: int | None
) -> list[OffsetRange]:
    """Split ranges into pieces of nearly equal size; empty ranges are left out.

    Args:
        ranges: at most one per partition.
        records_max: largest piece; None is unlimited.
        partitions_min: minimum number of pieces, if there are enough records.
    """
    wanted = [each for each in ranges if each.records_max > 0]
    total = sum(each.records_max for each in wanted)
    largest = records_max or max(1, total)
    if partitions_min is not None:
        largest = min(largest, max(1, total // partitions_min))
    return [piece for each in wanted for piece in _pieces(each, largest)]


def plan_ranges(start: Offsets, end: Offsets, options: ReadOptions) -> list[OffsetRange]:
    """Return the pieces in which ``start`` to ``end`` is read: a pure function of its arguments.

    A partition without a start was added to the stream since, and is read from its beginning.
    """
    ranges = [OffsetRange(p, start.get(p, 0), end[p]) for p in sorted(end)]
    return split_ranges(
        ranges,
        records_max=options.records_per_partition_max,
        partitions_min=options.partitions_min,
    )


def _pieces(whole: OffsetRange, largest: int) -> list[OffsetRange]:
    count = -(-whole.records_max // largest)
    edges = [whole.start + whole.records_max * i // count for i in range(count + 1)]
    return [OffsetRange(whole.partition, a, b) for a, b in pairwise(edges)]


def _checked_start(state: PartitionExtent, start: int, options: ReadOptions) -> int:
    if start > state.end_max:
        raise OffsetOutOfRangeError(
            f"startingOffsets asks for offset {start} of partition {state.partition}, whose "
            f"committed records end at {state.high_watermark}"
        )
    _check_data_loss(state, start, options)
    return max(start, state.log_start_offset)


def _check_data_loss(state: PartitionExtent, start: int, options: ReadOptions) -> None:
    """Raise an error if records before ``start`` are lost; only log it if the options allow it."""
    if options.fail_on_data_loss:
        check_records_exist(state, start)
    elif start < state.log_start_offset:
        logger.warning(
            "records %d to %d of partition %d were deleted before they were read: continuing "
            "without them",
            start,
            state.log_start_offset,
            state.partition,
        )
