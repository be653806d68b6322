"""The handler of the command that lists the files of a read, for readers on this machine.

Rules: only committed bytes that are already in the file are listed. Encrypted records are served
only by the broker.
"""

from collections.abc import Iterable, Iterator

from strandline.api.local import (
    LOCAL_FILES,
    WORTH_BYTES,
    AbortedRange,
    LocalFile,
    LocalFiles,
    LocalPart,
)
from strandline.api.tickets import ReadRequest
from strandline.broker.write_path.partition import Partition
from strandline.errors import CorruptBatchError, UnavailableError
from strandline.reading.cursor import PartitionRange
from strandline.servers.flight.actions import ActionContext, handles
from strandline.servers.flight.plan import ends_needed, plan_read
from strandline.storage.segment import Segment
from strandline.types import Offset

FILES_MAX = 4096
ABORTED_MAX = 4096
NOTHING = LocalFiles(proof_file="", proof="", has_partition_column=False, parts=())


@handles(LOCAL_FILES)
def _local_files(context: ActionContext, request: ReadRequest) -> list[LocalFiles]:
    broker = context.broker
    if request.of_copy:
        stream = broker.copy_of(request.stream)
    else:
        stream = broker.stream(request.stream)
        needed = ends_needed(request, stream)
        context.lifecycle.wait_until_caught_up(needed, context.is_cancelled)
    plan = plan_read(request, stream)
    if not broker.config.local_reads or broker.image.quotas:
        return [NOTHING]  # reads of files cannot be metered
    if request.subject is not None and _is_sparse(plan.ranges, request.subject):
        return [NOTHING]  # the broker has a subject index and need not read every record
    parts = tuple(_part(extent) for extent in plan.ranges if extent.stop is not None)
    if sum(f.size - f.position for part in parts for f in part.files) < WORTH_BYTES:
        return [NOTHING]
    return [
        LocalFiles(
            proof_file=str(broker.proof.path.absolute()),
            proof=broker.proof.text,
            has_partition_column=request.columns is None and "partition" in plan.schema.names,
            parts=parts,
        )
    ]


def _is_sparse(ranges: Iterable[PartitionRange[Partition]], pattern: str) -> bool:
    """Return whether a read would skip most records of its ranges."""
    finders = [(each, each.partition.find_runs(pattern)) for each in ranges]
    return all(
        runs is not None and each.stop is not None and runs.is_sparse(each.start, each.stop)
        for each, runs in finders
    )


def _part(extent: PartitionRange[Partition]) -> LocalPart:
    """Return the part of one partition, with all files that can be read directly."""
    partition, start, stop, may_move = extent
    assert stop is not None, "a read of files has an end"
    end, files = int(start), []
    # Read before the aborted transactions: the broker knows all those below the stable offset.
    stable = partition.last_stable_offset
    aborted = (
        ()
        if partition.transaction_index is None
        else partition.transaction_index.aborted(start, stop)
    )
    if partition.log.sealer is None and len(aborted) <= ABORTED_MAX:
        for file, end_of_file in _files(partition, start, stop, stable=stable):
            files.append(file)
            end = end_of_file
            if len(files) == FILES_MAX:
                break
    return LocalPart(
        partition=partition.name.partition,
        start=start,
        stop=stop,
        end=min(end, stop),
        files=tuple(files),
        log_start_offset=partition.log_start_offset,
        may_move=may_move,
        has_hidden=partition.config.has_gaps or partition.transaction_index is not None,
        aborted=tuple(AbortedRange(*each) for each in aborted),
    )


def _files(
    partition: Partition, start: int, stop: int, *, stable: Offset
) -> Iterator[tuple[LocalFile, int]]:
    """Yield the files with the records from ``start`` on, and the offset where each ends."""
    for segment in partition.log.segments:
        if segment.next_offset <= start:
            continue
        if segment.base_offset >= stop:
            return
        try:
            position = 0
            if segment.base_offset < start:
                place = segment.locate(start, verify=False)
                position = 0 if place is None else place.position
            size, end = _committed(segment, stable)
            inode = segment.inode
        except (UnavailableError, CorruptBatchError):
            return  # a read through the broker reports the error
        if position >= size:
            return
        file = LocalFile(
            path=str(segment.path.absolute()), inode=inode, position=position, size=size
        )
        yield file, end
        if end < segment.next_offset:
            return


def _committed(segment: Segment, last_stable_offset: int) -> tuple[int, int]:
    """Return the size and the end offset of the whole batches of a segment that are committed."""
    written, size = segment.written_bytes, segment.size
    if written == size and segment.next_offset <= last_stable_offset:
        return size, segment.next_offset
    index = segment.index
    end, position = (-1, 0) if index is None else index.floor(last_stable_offset)
    while index is not None and position > written:
        end, position = index.below(end)
    return position, end
