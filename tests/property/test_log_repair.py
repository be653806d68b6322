"""Corruption of any bytes of a log is repaired exactly, or nothing changes."""

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import CorruptBatchError, InvalidRecordError
from strandline.record.batch import read_header
from strandline.record.codec import Stamp, encode_records
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.storage.repair import repair_log

hits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 400), st.integers(0, 255)),
    min_size=1,
    max_size=6,
)
shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 900)), min_size=3, max_size=20)


@pytest.fixture(scope="module")
def directory():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def make_log(directory, shape):
    """A log on disk, and its batches by base offset."""
    log = Log.open(
        Path(tempfile.mkdtemp(dir=directory)),
        disk=Disk(),
        segment_bytes=8000,
        segment_age_ms=10**9,
    )
    batches = {}
    for count, size in shape:
        base = log.log_end_offset
        values = [bytes([65 + base % 26]) * size for _ in range(count)]
        batch = bytes(encode_records(values, ["s"] * count, Stamp(base, 0, base + 1)))
        log.append(batch, read_header(batch))
        batches[base] = batch
    log.checkpoint()
    log.flush()
    return log, batches


def hit(log, places):
    """Overwrite stretches of the files: at a share of all bytes, so long, with this byte."""
    for share, length, byte in places:
        position = int(share * log.size_bytes)
        for segment in log.segments:
            if position < segment.size:
                with segment.path.open("r+b") as file:
                    file.seek(position)
                    file.write(bytes([byte]) * min(length, segment.size - position))
                break
            position -= segment.size


def read(log):
    """Every intact batch, and the ranges that are corrupt."""
    found, holes, offset = {}, [], log.log_start_offset
    while offset < log.log_end_offset:
        try:
            part = log.read(offset, 1)
        except CorruptBatchError as corruption:
            holes.append((corruption.first_offset, corruption.next_offset))
            offset = corruption.next_offset
            continue
        found[part.base_offset] = bytes(part.buffer)
        offset = part.next_offset
    return found, holes


def lent(batches, first, after):
    """Return the batches that another replica sends for a range."""
    return [
        batch
        for base, batch in batches.items()
        if base < after and read_header(batch).next_offset > first
    ]


@settings(max_examples=25)
@given(shape=shapes, places=hits)
def test_a_log_is_whole_again_after_its_holes_were_repaired(directory, shape, places):
    """Hole by hole, from the batches of another replica; intact batches stay as they are."""
    log, batches = make_log(directory, shape)
    hit(log, places)
    for _ in range(len(batches) + 1):
        found, holes = read(log)
        assert found.items() <= batches.items(), "nothing that was not written is served"
        if not holes:
            break
        assert repair_log(log, lent(batches, *holes[0]))
    assert found == batches


@settings(max_examples=15)
@given(shape=shapes, other=shapes, places=hits)
def test_the_batches_of_another_log_are_rejected(directory, shape, other, places):
    """Batches that do not fit to the byte leave the corruption as it was."""
    log, _ = make_log(directory, shape)
    _, strange = make_log(directory, [(count, size + 1000) for count, size in other])
    hit(log, places)
    before, holes = read(log)
    for hole in holes:
        with contextlib.suppress(InvalidRecordError):
            assert not repair_log(log, lent(strange, *hole) or [next(iter(strange.values()))])
    assert read(log) == (before, holes)
