"""Any corruption of a journal, and the whole recovery over it.

What has a checksum that is not right is corruption that disks do; what has one that is, though its
lengths lie, no disk does, but it reaches the code behind the checksums, which must not fall over.
"""

import struct
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import given, note
from hypothesis import strategies as st

from strandline.errors import CorruptBatchError, StrandlineError
from strandline.record.batch import check_batch, iter_headers, read_header
from strandline.record.codec import Stamp, encode_records
from strandline.storage.disk import Disk
from strandline.storage.journal_file import (
    ENTRY_BYTES,
    FILE_HEADER_BYTES,
    PART_BYTES,
    ScannedEntry,
)
from strandline.storage.journal_scan import scan_directory
from strandline.storage.log import Log
from strandline.storage.recovery import LogPlan, Recovered, recover
from strandline.types import LogId

SEGMENT_BYTES = 1500
JOURNAL_BYTES = 8 << 10
READ_MAX = 2 << 20
WRITTEN_MAX = 1 << 20
MEMORY_MAX = 4 << 20
IDS = [LogId(1), LogId(2)]

parts = st.tuples(st.sampled_from(IDS), st.sampled_from([1, 30, 300]))
lives = {
    "turns": st.lists(st.lists(parts, min_size=1, max_size=3), min_size=2, max_size=24),
    "checkpoint_at": st.one_of(st.none(), st.integers(0, 20)),
    "is_written": st.booleans(),
}


class Counted(Disk):
    """A disk without syncs that limits the bytes read and written at once."""

    syncs_plainly = False

    def __init__(self) -> None:
        self.written = 0
        self._entropy = 0

    def fdatasync(self, fd):
        pass

    def sync_directory(self, path):
        pass

    def drop_cache(self, fd):
        pass

    def pread(self, fd, length, position):
        assert length <= READ_MAX, "no length that lies is read"
        return super().pread(fd, length, position)

    def pwrite(self, fd, data, position):
        self.written += len(data)
        super().pwrite(fd, data, position)

    def entropy(self, length):
        self._entropy += 1
        return self._entropy.to_bytes(length, "little")


class Place(NamedTuple):
    """The position and contents of a journal entry."""

    file: Path
    entry: ScannedEntry
    batches: list[tuple[LogId, bytes]]


class Life:
    """A data directory with its appended and acked batches, and their positions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = Counted()
        self.appended: dict[LogId, list[bytes]] = {log_id: [] for log_id in IDS}
        self.durable: dict[LogId, int] = dict.fromkeys(IDS, 0)
        self.now: Recovered | None = None
        self.places: list[Place] = []
        self.stored = b""
        """What segment files held at the end."""

    def recover(self) -> Recovered:
        self.now = None
        self.disk.written = 0
        plans = {i: LogPlan(self.path / "logs" / str(i), SEGMENT_BYTES, 0) for i in IDS}
        self.now = recover(self.path, plans, disk=self.disk, file_bytes=JOURNAL_BYTES)
        assert self.disk.written < WRITTEN_MAX, "not more is written than there was, and a file"
        return self.now

    def live(self, turns, *, checkpoint_at: int | None) -> None:
        """Run group commits, each synced, and perhaps a checkpoint that recycles files."""
        for number, turn in enumerate(turns):
            self.turn(turn)
            if number == checkpoint_at:
                checkpointer = self.now.checkpointer
                pending = checkpointer.begin(self.now.logs)
                checkpointer.write(pending)
                checkpointer.finish(pending)
                self.durable = {i: len(batches) for i, batches in self.appended.items()}

    def turn(self, turn) -> None:
        parts = []
        for log_id, size in turn:
            log = self.now.logs[log_id]
            base = log.log_end_offset
            value = (b"%d:%d:" % (log_id, base)).ljust(size, b".")
            batch = bytes(encode_records([value], ["s"], Stamp(base, 0, base)))
            log.append(batch, read_header(batch))
            self.appended[log_id].append(batch)
            parts.append((log_id, batch))
        self.now.journal.append(parts)
        self.now.journal.sync()

    def die(self, *, is_written: bool) -> None:
        """Kill the process: segments keep what was written to them, perhaps nothing."""
        if is_written:
            for log in self.now.logs.values():
                log.write_pending()
        last = self.now.journal.last_sequence
        self.now = None
        scan = scan_directory(self.path / "journal", disk=self.disk, after_sequence=0)
        for file in scan.files:
            for entry in map(file.entry, file.positions):
                batches = [(log_id, bytes(part)) for log_id, part in entry.parts(file.view)]
                self.places.append(Place(file.path, entry, batches))
        assert self.places[-1].entry.sequence == last
        self.stored = b"".join(path.read_bytes() for path in self.path.glob("logs/*/*.log"))

    def served(self) -> dict[LogId, list[bytes]]:
        """Return the records that readers get when they skip corruption."""
        return {log_id: list(serve(self.now.logs[log_id])) for log_id in IDS}


def serve(log: Log) -> Iterator[bytes]:
    """The batches of a log, those behind holes too."""
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        try:
            part = log.read(offset, 1000)
        except CorruptBatchError as error:
            offset = max(error.next_offset, offset + 1)
            continue
        for position, header in iter_headers(part.buffer):
            check_batch(part.buffer, position)
            yield bytes(part.buffer[position : position + header.length])
        offset = part.next_offset


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory for all examples; each uses its own subdirectory."""
    with tempfile.TemporaryDirectory(prefix="strandline-") as name:
        yield Path(name)


def begin(directory: Path, turns, *, checkpoint_at: int | None, is_written: bool) -> Life:
    """Return a run that has just ended."""
    life = Life(Path(tempfile.mkdtemp(dir=directory)) / "data")
    life.recover()
    life.live(turns, checkpoint_at=checkpoint_at)
    life.die(is_written=is_written)
    return life


class Corrupt:
    """The files of a journal while they are being corrupt."""

    def __init__(self, life: Life) -> None:
        self.places = life.places
        self.files = {place.file: bytearray(place.file.read_bytes()) for place in life.places}
        self.first = len(life.places)
        """The first entry that the corruption may concern."""

    def save(self) -> None:
        for path, content in self.files.items():
            if content:
                path.write_bytes(content)
            else:
                path.unlink()

    def overwrite(self, path: Path, position: int, junk: bytes) -> None:
        content = self.files[path]
        end = min(position + len(junk), len(content))
        content[position:end] = junk[: max(end - position, 0)]

    def corrupt(self, data: st.DataObject) -> None:
        """Something that disks do, and people."""
        number = data.draw(st.integers(0, len(self.places) - 1), "entry")
        place = self.places[number]
        kind = data.draw(
            st.sampled_from([self.junk, self.header, self.cut, self.remove, self.copy])
        )
        kind(place, data)
        if kind in (self.header, self.remove):
            number = next(n for n, other in enumerate(self.places) if other.file == place.file)
        self.first = min(self.first, number)

    def junk(self, place: Place, data: st.DataObject) -> None:
        """Bits flipped, or whole sectors of zeros."""
        at = data.draw(st.integers(0, place.entry.length - 1), "at")
        junk = data.draw(st.one_of(st.binary(min_size=1, max_size=60), st.just(bytes(512))), "junk")
        self.overwrite(place.file, place.entry.position + at, junk)

    def header(self, place: Place, data: st.DataObject) -> None:
        """Corrupt a file's header."""
        at = data.draw(st.integers(0, 39), "at")
        self.overwrite(place.file, at, data.draw(st.binary(min_size=1, max_size=40 - at), "junk"))

    def cut(self, place: Place, data: st.DataObject) -> None:
        """A file is too short."""
        del self.files[place.file][place.entry.position + data.draw(st.integers(0, 200), "at") :]

    def remove(self, place: Place, _: st.DataObject) -> None:
        """Remove a file."""
        self.files[place.file].clear()

    def copy(self, place: Place, data: st.DataObject) -> None:
        """Written to a wrong place: an entry or a batch over another, or each over the other."""
        number = data.draw(st.integers(0, len(self.places) - 1), "other")
        other = self.places[number]
        at, of = place.entry.position, other.entry.position
        if data.draw(st.booleans(), "only the batch"):
            at, of = (each.entry.end - len(each.batches[-1][1]) for each in (place, other))
        length = min(place.entry.end - at, other.entry.end - of)
        here, there = (
            self.files[place.file][at : at + length],
            self.files[other.file][of : of + length],
        )
        self.overwrite(place.file, at, bytes(there))
        if data.draw(st.booleans(), "swapped"):
            self.overwrite(other.file, of, bytes(here))
            self.first = min(self.first, number)


@given(**lives, data=st.data())
def test_what_precedes_corruption_is_kept_and_nothing_is_made_up(
    directory, turns, checkpoint_at, is_written, data
):
    """A corrupt journal opens, keeps what was before the corruption, and invents nothing."""
    life = begin(directory, turns, checkpoint_at=checkpoint_at, is_written=is_written)
    corrupt = Corrupt(life)
    for _ in range(data.draw(st.integers(1, 3), "times")):
        corrupt.corrupt(data)
    corrupt.save()
    life.recover()
    served = life.served()
    before = [batch for place in life.places[: corrupt.first] for _, batch in place.batches]
    for log_id in IDS:
        appended = life.appended[log_id]
        assert set(served[log_id]) <= set(appended), "nothing was made up"
        assert served[log_id] == [batch for batch in appended if batch in set(served[log_id])]
        kept = [b for n, b in enumerate(appended) if n < life.durable[log_id] or b in before]
        assert set(kept) <= set(served[log_id]), "nothing was lost that was not corrupt"
    life.appended = {log_id: list(batches) for log_id, batches in served.items()}
    life.turn([(log_id, 30) for log_id in IDS])
    life.recover()
    assert life.served() == life.appended


@given(**lives, data=st.data())
def test_of_corrupt_batches_only_those_are_missing(
    directory, turns, checkpoint_at, is_written, data
):
    """Bits flipped in batches that were synced: all others are served, those not, or repaired."""
    life = begin(directory, turns, checkpoint_at=checkpoint_at, is_written=is_written)
    corrupt, touched = Corrupt(life), set()
    for number in data.draw(st.sets(st.integers(0, len(life.places) - 2), min_size=1, max_size=3)):
        place = life.places[number]
        index = data.draw(st.integers(0, len(place.batches) - 1), "part")
        length = sum(len(batch) for _, batch in place.batches[index:])
        batch = place.batches[index][1]
        at = data.draw(st.integers(0, len(batch) - 1), "at")
        junk = data.draw(st.binary(min_size=1, max_size=min(8, len(batch) - at)), "junk")
        flipped = bytes(b ^ (j or 1) for b, j in zip(batch[at:], junk, strict=False))
        corrupt.overwrite(place.file, place.entry.end - length + at, flipped)
        touched.add(batch)
    corrupt.save()
    life.recover()
    served = life.served()
    for log_id in IDS:
        wanted = [b for b in life.appended[log_id] if b not in touched or b in life.stored]
        assert served[log_id] == wanted


Field = tuple[str, int, str]
FIELDS: tuple[Field, ...] = (
    *(("file", at, form) for at, form in ((8, "<I"), (16, "<Q"), (32, "<Q"))),
    *(("entry", at, "<I") for at in (8, 12, 40, 44, 52)),
    *(("entry", at, "<Q") for at in (16, 24)),
    *(("batch", at, "<I") for at in (8, 24, 28, 36)),
    ("batch", 14, "<H"),
    ("batch", 16, "<Q"),
)
"""In which header, where and in what form it says how long, how many or which."""
EDGES = (0, 1, 80, 1 << 16, 1 << 31, (1 << 32) - 8, (1 << 63) - 1, (1 << 64) - 8)
STEPS = (-8, 8, 512, 1 << 20)
"""What numbers are changed to, and by."""


def change(content: bytearray, position: int, form: str, new: int) -> None:
    bits = 8 * struct.calcsize(form)
    struct.pack_into(form, content, position, new % (1 << bits))


LENGTHS = (("entry", 8), ("entry", 44), ("batch", 8))
"""All that say how long the first batch of an entry is."""


def lie(corrupt: Corrupt, place: Place, field: Field | None, edge: int) -> None:
    """Change a number in a header, or all of ``LENGTHS``; all checksums are right again.

    Args:
        corrupt: the journal.
        place: the entry whose header, batch or file it is.
        field: which number; None for all lengths, so that they agree.
        edge: the new number, or one of ``STEPS`` that is added.
    """
    content, entry = corrupt.files[place.file], place.entry.position
    batch = place.entry.end - sum(len(part) for _, part in place.batches)
    starts = {"file": 0, "entry": entry, "batch": batch}
    for what, at, form in [field] if field else [(*length, "<I") for length in LENGTHS]:
        (old,) = struct.unpack_from(form, content, starts[what] + at)
        new = edge if field and edge in EDGES else old + edge
        change(content, starts[what] + at, form, new)
    (length,) = struct.unpack_from("<I", content, batch + 8)
    checksum = crc32c(bytes(content[batch + 8 : batch + length]))
    change(content, batch + 4, "<I", checksum)
    change(content, entry + ENTRY_BYTES + PART_BYTES * len(place.batches), "<I", checksum)
    (count,) = struct.unpack_from("<I", content, entry + 12)
    table = content[entry + 8 : entry + ENTRY_BYTES + PART_BYTES * count]
    change(content, entry + 4, "<I", crc32c(bytes(table)))
    change(content, 4, "<I", crc32c(bytes(content[8:FILE_HEADER_BYTES])))


def opens_or_is_refused(life: Life) -> None:
    """Twice the same: it opens, or one of our errors says why not; that takes little memory."""
    tracemalloc.start()
    try:
        for _ in range(2):
            life.recover()
            life.served()
    except StrandlineError as error:
        note(f"refused: {error!r}")
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < MEMORY_MAX


@given(**lives, data=st.data())
def test_lies_with_the_right_checksum_break_nothing(
    directory, turns, checkpoint_at, is_written, data
):
    """Whatever a journal says of itself, the code behind its checksums copes."""
    life = begin(directory, turns, checkpoint_at=checkpoint_at, is_written=is_written)
    corrupt = Corrupt(life)
    for _ in range(data.draw(st.integers(1, 3), "lies")):
        place = data.draw(st.sampled_from(life.places), "entry")
        field = data.draw(st.one_of(st.none(), st.sampled_from(FIELDS)), "field")
        lie(corrupt, place, field, data.draw(st.sampled_from(EDGES + STEPS), "edge"))
    corrupt.save()
    opens_or_is_refused(life)


@pytest.mark.parametrize("field", [None, *FIELDS])
def test_each_lie_alone_breaks_nothing(directory, field):
    """Every number of a header, in turn, gets an extreme or a slightly wrong value."""
    for edge in EDGES + STEPS:
        life = begin(directory, [[(LogId(1), 30)]] * 3, checkpoint_at=None, is_written=False)
        corrupt = Corrupt(life)
        lie(corrupt, life.places[1], field, edge)
        corrupt.save()
        opens_or_is_refused(life)
