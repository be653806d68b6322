"""Filtered reads of a running broker pass over what the subject index excludes."""

import pytest

from strandline.api.tickets import ReadRequest
from strandline.config import StreamConfig
from strandline.encryption.master_keys import MasterKey, MasterKeys
from strandline.reading.cursor import Cursor, PartitionRange
from strandline.types import Offset

pytestmark = pytest.mark.usefixtures("without_spares")

RECORDS, NEEDLES = 600, (7, 300, 301, 555)


@pytest.fixture
async def filled(open_broker, answers, kit):
    """A broker, and a way to fill a stream whose records have subjects in turn, and needles."""

    async def fill(**settings):
        keys = MasterKeys(lambda: (MasterKey(b"o" * 32),))
        broker = await open_broker(cleaner_interval_ms=10**9, master_keys=keys)
        config = StreamConfig(name="s", subject="s.>", segment_bytes=64 << 10, **settings)
        partition = (await broker.create_stream(config)).partition(0)
        for number in range(RECORDS):
            subject = "s.needle" if number in NEEDLES else f"s.hay.{number % 9}"
            kit.put(partition, answers, number, subject=subject, value=bytes(1000))
            await answers.wait(number + 1)
        await broker._checkpoints.checkpoint()
        return broker, partition

    return fill


def read(partition, pattern, start=0, stop=RECORDS):
    """The offsets that a read delivers, and how many bytes of batches it looked at."""
    size, plain_read = 0, partition.read

    def counting(offset, bytes_max, **options):
        nonlocal size
        found = plain_read(offset, bytes_max, **options)
        size += found.size
        return found

    partition.read = counting
    extent = PartitionRange(partition, Offset(start), Offset(stop), may_move=False)
    request = ReadRequest(stream="s", subject=pattern, columns=["offset"])
    cursor, offsets = Cursor(request, extent, names=["offset"]), []
    while not cursor.is_done:
        for batch, _ in cursor.read():
            offsets += batch.column(0).to_pylist()
    del partition.read
    return offsets, size


async def test_few_matching_records_cost_little(filled):
    """Only their batches are read, from sealed segments and the active one."""
    _, partition = await filled()
    assert len(partition.log.segments) > 5
    offsets, size = read(partition, "s.needle")
    assert offsets == list(NEEDLES)
    assert size < 20_000
    assert read(partition, "s.needle", 8, 301) == ([300], size // 4)
    assert read(partition, "s.none")[0] == []
    hay, size = read(partition, "s.hay.*")
    assert hay == [n for n in range(RECORDS) if n not in NEEDLES]
    assert size > RECORDS * 1000, "most records match: they are read in a row"


async def test_the_cleaner_indexes_what_is_sealed(filled, data_dir):
    """So that the first filtered read need not; what is removed is made again when asked for."""
    broker, partition = await filled()
    assert not list(data_dir.rglob("*.subjects"))
    await broker._cleaner.clean()
    sealed = len(partition.log.segments) - 1
    files = sorted(data_dir.rglob("*.subjects"))
    assert len(files) == sealed
    files[0].unlink()
    for segment in partition.log.segments:
        segment.release()
    assert read(partition, "s.needle")[0] == list(NEEDLES)
    assert len(list(data_dir.rglob("*.subjects"))) == sealed


async def test_an_encrypted_stream_has_no_subject_in_clear(filled, data_dir):
    """Its index files are encrypted, too, and serve the same reads."""
    broker, partition = await filled(encryption=True)
    await broker._cleaner.clean()
    files = list(data_dir.rglob("*.subjects"))
    assert len(files) == len(partition.log.segments) - 1
    for path in data_dir.rglob("*"):
        assert not path.is_file() or b"s.needle" not in path.read_bytes(), path
    for segment in partition.log.segments:
        segment.release()
    made = {path: path.stat().st_mtime_ns for path in files}
    offsets, size = read(partition, "s.needle")
    assert offsets == list(NEEDLES)
    assert size < 20_000
    assert {path: path.stat().st_mtime_ns for path in files} == made, "they were believed"


async def test_a_deleted_stream_leaves_no_index(filled, data_dir):
    """The directory goes as a whole."""
    broker, _ = await filled()
    await broker._cleaner.clean()
    await broker.delete_stream("s")
    await broker.stop()
    assert not list(data_dir.rglob("*.subjects"))


async def test_compaction_replaces_the_index(filled, answers, kit):
    """A compacted segment gets an index of what is left."""
    broker, partition = await filled(compact=True)
    await broker._cleaner.clean()
    for number in NEEDLES:
        assert number in read(partition, "s.needle")[0]
    token = len(answers.order)
    for number in range(300):
        kit.put(partition, answers, token + number, subject="s.needle", key=b"k", value=bytes(1000))
        await answers.wait(token + number + 1)
    await broker._checkpoints.checkpoint()
    assert len(read(partition, "s.needle", 0, RECORDS + 300)[0]) == 304
    await broker._cleaner.clean()
    assert broker.telemetry.compaction_records > 100
    found, _ = read(partition, "s.needle", 0, RECORDS + 300)
    assert found[:4] == list(NEEDLES)
    assert found[-1] == RECORDS + 299
    assert len(found) < 204
