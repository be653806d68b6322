"""Fixtures of the storage tests: batches, a disk that can fail, and a data directory on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.record.batch import read_header
from strandline.record.codec import Stamp, encode_records
from strandline.storage.faulty_disk import FaultyDisk
from strandline.storage.log import Log

MakeBatch = Callable[..., bytes]
OpenLog = Callable[..., Log]


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    """A disk that can be full, fail, and lose unsynced writes."""
    return FaultyDisk(tmp_path / "scratch")


@pytest.fixture
def make_batch() -> MakeBatch:
    """Makes a batch: base offset, number of records, bytes of each value, time, keys."""

    def make(
        base_offset: int, count: int = 1, *, size: int = 20, time_ns: int = 1_000, keys=None
    ) -> bytes:
        values = [(b"%d:" % (base_offset + i)).ljust(size, b".") for i in range(count)]
        stamp = Stamp(base_offset, 0, time_ns)
        return bytes(encode_records(values, ["a.b"], stamp, keys=keys))

    return make


@pytest.fixture
def open_log(tmp_path: Path, disk: FaultyDisk) -> OpenLog:
    """Opens the test's log, with small segments by default."""

    def open_(at=None, *, segment_bytes: int = 1000, segment_age_ms: int = 0) -> Log:
        return Log.open(
            tmp_path / "log",
            disk=disk,
            segment_bytes=segment_bytes,
            segment_age_ms=segment_age_ms,
            at=at,
        )

    return open_


@pytest.fixture
def fill(make_batch: MakeBatch) -> Callable[..., list[bytes]]:
    """Appends batches to a log and returns them."""

    def append(log: Log, batches: int, *, count: int = 2, size: int = 20) -> list[bytes]:
        made = []
        for _ in range(batches):
            batch = make_batch(log.log_end_offset, count, size=size, time_ns=log.log_end_offset)
            log.append(batch, read_header(batch))
            made.append(batch)
        return made

    return append


@pytest.fixture
def read_all() -> Callable[..., bytes]:
    """Everything a log serves from an offset on, read in small pieces."""

    def read(log: Log, offset: int | None = None, *, bytes_max: int = 300) -> bytes:
        at = log.log_start_offset if offset is None else offset
        found = b""
        while at < log.log_end_offset:
            part = log.read(at, bytes_max)
            found += part.buffer
            at = part.next_offset
        return found

    return read
