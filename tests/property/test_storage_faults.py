"""Corruption of a log is found, named and never served, and intact batches are served.

The machine test next to this one loses what was never synced; here bytes that were durable change.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import CorruptBatchError
from strandline.record.batch import Attributes, check_batch, read_header
from strandline.record.codec import Stamp, decode_batches, encode_records
from strandline.storage.compaction import Compactor
from strandline.storage.disk import Disk
from strandline.storage.inspect import inspect_directory
from strandline.storage.log import Log
from strandline.storage.offset_index import KIND_OFFSETS, decode_index
from strandline.storage.scan import OFFSET_MAX

shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 300)), min_size=1, max_size=25)
keys = st.sampled_from([None, b"a", b"b", b"c"])


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory for all examples; each uses its own subdirectory."""
    with tempfile.TemporaryDirectory(prefix="strandline-") as name:
        yield Path(name)


def fresh(directory: Path) -> Path:
    """A directory of its own for one example."""
    return Path(tempfile.mkdtemp(dir=directory)) / "log"


def open_log(path: Path, at=None, *, segment_bytes: int = 1500) -> Log:
    return Log.open(path, disk=Disk(), segment_bytes=segment_bytes, segment_age_ms=0, at=at)


def write(path: Path, shape: list[tuple[int, int]]) -> tuple[Log, list[bytes]]:
    """A log of batches of the given counts and sizes, all in its files."""
    log, batches = open_log(path), []
    for count, size in shape:
        base = log.log_end_offset
        values = [b"%d:" % (base + i) + bytes(size) for i in range(count)]
        batch = bytes(encode_records(values, ["s"], Stamp(base, 0, base)))
        log.append(batch, read_header(batch))
        batches.append(batch)
    log.checkpoint()
    return log, batches


def serve(log: Log, bytes_max: int) -> tuple[list[bytes], list[CorruptBatchError]]:
    """Everything a reader gets that steps over holes, and the holes."""
    offset, served, holes = int(log.log_start_offset), [], []
    while offset < log.log_end_offset:
        try:
            part = log.read(offset, bytes_max)
        except CorruptBatchError as error:
            holes.append(error)
            offset = max(error.next_offset, offset + 1)
            continue
        at = 0
        while at < len(part.buffer):
            length = check_batch(part.buffer, at).length
            served.append(bytes(part.buffer[at : at + length]))
            at += length
        offset = part.next_offset
    return served, holes


@given(shape=shapes, data=st.data(), bytes_max=st.integers(0, 3000), sealed=st.booleans())
def test_corrupt_batches_are_reported_and_all_others_served(
    directory, shape, data, bytes_max, sealed
):
    """Any bytes of any batches overwritten: exactly the touched ones are missing, and named."""
    log, batches = write(fresh(directory), shape)
    if sealed:
        log.roll()
    corrupt = set(data.draw(st.sets(st.integers(0, len(batches) - 1), max_size=4)))
    places = {}
    for segment in log.segments:
        at = 0
        contents = bytearray(segment.path.read_bytes()) if segment.size else bytearray()
        while at < segment.size:
            number = len(places)
            places[number] = (segment.path, at)
            length = len(batches[number])
            if number in corrupt:
                first = data.draw(st.integers(0, length - 1))
                junk = data.draw(st.binary(min_size=1, max_size=min(20, length - first)))
                changed = bytes(
                    b ^ (j or 1) for b, j in zip(contents[at + first :], junk, strict=False)
                )
                contents[at + first : at + first + len(junk)] = changed
            at += length
        if segment.size:
            segment.path.write_bytes(contents)
    served, holes = serve(log, bytes_max)
    assert served == [b for n, b in enumerate(batches) if n not in corrupt]
    named = {(Path(hole.file), hole.position) for hole in holes}
    assert named <= {places[number] for number in corrupt}
    assert bool(named) == bool(corrupt)
    reports = inspect_directory(log.directory, verify=True)
    found = {(f.file, f.position) for report in reports for f in report.findings}
    assert named <= found


@given(shape=shapes, data=st.data())
def test_any_offset_is_found_again_after_any_truncations(directory, shape, data):
    """Truncated at both ends and reopened, with or without indexes, a log serves every record."""
    path = fresh(directory)
    log, batches = write(path, shape)
    end = log.truncate_to(data.draw(st.integers(0, log.log_end_offset)))
    start = data.draw(st.integers(0, end))
    log.delete_before(start)
    at = log.checkpoint()
    log.flush()
    if data.draw(st.booleans()):
        for index in path.glob("*index"):
            index.unlink()
    again = open_log(path, data.draw(st.sampled_from([at, None])))
    assert (again.log_start_offset, again.log_end_offset) == (start, end)
    kept = [b for b in batches if start < read_header(b).next_offset <= end]
    assert serve(again, 700)[0] == kept
    for offset in range(start, end):
        header = read_header(again.read(offset, 1).buffer)
        assert header.base_offset <= offset < header.next_offset
        bases = [read_header(batch).base_offset for batch in kept]
        wanted = min((base for base in bases if base >= offset), default=end)
        assert again.offset_for_timestamp(offset) == max(start, wanted)


@given(
    batches=st.lists(
        st.lists(st.tuples(keys, st.one_of(st.none(), st.integers(0, 9))), min_size=1, max_size=6),
        min_size=1,
        max_size=12,
    ),
    rolls=st.sets(st.integers(0, 11)),
)
@example(batches=[[(b"a", 1), (b"a", None)], [(b"a", None)]], rolls={0, 1})
def test_compaction_against_a_dictionary(directory, batches, rolls):
    """After compaction each key's newest record is there; no record is altered or made up."""
    log = open_log(fresh(directory), segment_bytes=1 << 20)
    written = []
    for number, records in enumerate(batches):
        values = [None if v is None else b"%d" % v * 100 for _, v in records]
        names = [key for key, _ in records]
        stamp = Stamp(log.log_end_offset, 0, 0)
        batch = bytes(encode_records(values, ["s"], stamp, keys=names))
        written += [
            (len(written) + i, n, v) for i, (n, v) in enumerate(zip(names, values, strict=True))
        ]
        log.append(batch, read_header(batch))
        if number in rolls:
            log.roll()
    at = log.checkpoint()
    log.flush()
    log.mark_checkpointed(at)
    compactor = Compactor(log, disk=Disk(), tombstone_delay_ms=1000)
    newest = {key: (offset, value) for offset, key, value in written if key is not None}
    for now_ns in (0, 10**12, 10**12, 10**12):
        done = compactor.prepare(below=OFFSET_MAX, tombstones_below=OFFSET_MAX, now_ns=now_ns)
        compactor.apply(done)
        found, end = [], 0
        for batch in serve(log, 0)[0]:
            header = read_header(batch)
            assert header.base_offset == end, "compacted or not, a log is dense"
            end = header.next_offset
            if not header.attributes & Attributes.REMOVED:
                for rows in decode_batches(batch, columns=["offset", "key", "value"]):
                    found += zip(*(column.to_pylist() for column in rows.columns), strict=True)
        assert end == len(written)
        assert set(found) <= set(written)
        assert found == sorted(found)
        last = {key: (offset, value) for offset, key, value in found if key is not None}
        for key, (offset, value) in newest.items():
            assert last.get(key) == (offset, value) or (value is None and now_ns > 0)
            assert value is not None or last.get(key, (0, None))[1] is None, "it came back"
        assert [row for row in written if row[1] is None] == [r for r in found if r[1] is None]


@given(junk=st.binary(max_size=400))
def test_any_bytes_as_small_files(directory, junk):
    """Index and start files with any content are rejected or read."""
    assert decode_index(junk, KIND_OFFSETS) is None
    path = fresh(directory)
    path.mkdir()
    (path / "log-start").write_bytes(junk)
    assert open_log(path).log_end_offset == 0
    list(inspect_directory(path, verify=True))


@given(junk=st.binary(max_size=3000), prefix=st.integers(0, 3))
def test_any_bytes_as_a_segment(directory, junk, prefix):
    """A segment file of any content opens; intact batches in it are served, nothing else."""
    path = fresh(directory)
    log, batches = write(path, [(1, 10)] * prefix)
    path.mkdir(exist_ok=True)
    segment = path / f"{0:020d}.log"
    segment.write_bytes(b"".join(batches) + junk)
    again = open_log(path)
    assert serve(again, 500)[0][:prefix] == batches
    list(inspect_directory(path, verify=True))
    del log
