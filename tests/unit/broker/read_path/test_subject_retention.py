"""Per-subject retention of a running broker: at once for readers, later for the disk."""

import pytest

from strandline.broker.write_path.pending import CommitWaiter
from strandline.config import StreamConfig
from strandline.encryption.master_keys import MasterKey, MasterKeys
from strandline.errors import InvalidConfigError
from strandline.record.batch import HEADER_BYTES, read_header
from strandline.record.codec import decode_batches

pytestmark = pytest.mark.usefixtures("without_spares")


@pytest.fixture
async def retained(open_broker, answers, kit):
    """A broker with a stream that keeps two records of each subject, and a way to put some."""
    keys = MasterKeys(lambda: (MasterKey(b"o" * 32),))

    async def make(**settings):
        broker = await open_broker(cleaner_interval_ms=10**9, master_keys=keys)
        config = StreamConfig(
            name="s", subject="s.>", segment_bytes=64 << 10, max_records_per_subject=2, **settings
        )
        partition = (await broker.create_stream(config)).partition(0)
        return broker, partition

    async def put(partition, *subjects, **options):
        for subject in subjects:
            token = len(answers.order)
            kit.put(partition, answers, token, subject=f"s.{subject}", **options)
            await answers.wait(token + 1)

    make.put = put
    make.keys = keys
    return make


def seen(partition, start=0):
    """The offsets that readers see."""
    found, offset, end = [], start, partition.last_stable_offset
    while offset < end:
        buffer = partition.read(offset, 1 << 16)
        if not buffer.size:
            break
        for batch in decode_batches(buffer, columns=["offset"]):
            found += [each for each in batch.column(0).to_pylist() if each >= offset]
        offset = found[-1] + 1
    return found


async def test_readers_see_the_newest_of_each_subject(retained):
    """As soon as a newer record is acknowledged, the oldest beyond the limit is gone."""
    _, partition = await retained()
    await retained.put(partition, "a", "b", "a")
    assert seen(partition) == [0, 1, 2]
    await retained.put(partition, "a")
    assert seen(partition) == [1, 2, 3]
    assert seen(partition, 2) == [2, 3]
    await retained.put(partition, "b", "b", "b", "b")
    assert seen(partition) == [2, 3, 6, 7]


async def test_compaction_frees_what_nobody_sees(retained, open_broker):
    """Segments shrink, readers see the same, and so does a broker that opens the log again."""
    broker, partition = await retained()
    for number in range(300):
        await retained.put(partition, f"k{number % 7}", value=bytes(1000))
    await retained.put(partition, "one", "two")
    done = CommitWaiter()
    partition.sequences.purge("s.k0", partition.last_stable_offset, ack_sink=done, token=None)
    await done.wait()
    before, size = seen(partition), partition.log.size_bytes
    assert len(before) == 14
    await broker._checkpoints.checkpoint()
    await broker._cleaner.clean()
    assert partition.log.size_bytes < size / 3
    assert seen(partition) == before
    assert broker.telemetry.compaction_records > 200
    await broker.stop()
    again = await open_broker(cleaner_interval_ms=10**9)
    partition = again.stream("s").partition(0)
    assert seen(partition) == before
    await retained.put(partition, "one", "one")
    assert before[-2] not in seen(partition)


async def test_encrypted_subjects_are_retained_alike(retained):
    """What is kept is known of an encrypted log, too, and what is served opens."""
    broker, partition = await retained(encryption=True)
    for number in range(200):
        await retained.put(partition, f"k{number % 3}", value=bytes(1000))
    await broker._checkpoints.checkpoint()
    await broker._cleaner.clean()
    assert seen(partition) == list(range(194, 200))


@pytest.mark.parametrize("is_read", [False, True])
async def test_expected_sequences_of_subjects(retained, answers, kit, is_read):
    """Each is the last of its subject, whether committed, applied or only accepted."""
    _, partition = await retained()
    await retained.put(partition, "a", "b")
    if is_read:
        seen(partition)
    first = len(answers.order)
    expected = [("a", 1), ("a", 1), ("a", 3), ("b", 2), ("c", 0), ("c", 0), ("c", 5)]
    for number, (subject, last) in enumerate(expected):
        token = first + number
        kit.put(partition, answers, token, subject=f"s.{subject}", expected_subject_last=last)
    await answers.wait(first + len(expected))
    outcomes = [answers.acks.get(first + n) for n in range(len(expected))]
    assert outcomes == [2, None, 3, 4, 5, None, None]


async def test_expected_sequences_are_known_after_a_restart(retained, open_broker, answers, kit):
    """The first publish that expects one waits until the log is read back."""
    broker, partition = await retained()
    await retained.put(partition, *(f"k{n}" for n in range(50)))
    await broker.stop()
    again = await open_broker(cleaner_interval_ms=10**9)
    partition = again.stream("s").partition(0)
    first = len(answers.order)
    kit.put(partition, answers, first, subject="s.k7", expected_subject_last=7)
    kit.put(partition, answers, first + 1, subject="s.k7", expected_subject_last=8)
    kit.put(partition, answers, first + 2, subject="s.new", expected_subject_last=0)
    kit.put(partition, answers, first + 3, subject="s.k7", expected_subject_last=51)
    await answers.wait(first + 4)
    assert answers.codes == {first: "wrong_last_sequence"}
    assert [answers.acks[first + n] for n in (1, 2, 3)] == [50, 51, 52]


async def test_a_large_log_is_read_back_on_a_thread(retained, open_broker, answers, kit):
    """Publishes that expect something wait for it, and those behind them keep their order."""
    broker, partition = await retained()
    for number in range(500):
        await retained.put(partition, f"k{number}", value=bytes(1000))
    await broker.stop()
    again = await open_broker(cleaner_interval_ms=10**9)
    partition = again.stream("s").partition(0)
    first = len(answers.order)
    kit.put(partition, answers, first, subject="s.k3", expected_subject_last=4)
    kit.put(partition, answers, first + 1, subject="s.k3")
    kit.put(partition, answers, first + 2, subject="s.k3", expected_subject_last=502)
    assert partition.duplicates.held.waiting
    await answers.wait(first + 3)
    assert [answers.acks[first + n] for n in range(3)] == [500, 501, 502]


async def test_records_that_are_too_old_are_hidden_at_once(retained, clock):
    """No segment has gone yet; what was expected of an old record is that there is none."""
    _, partition = await retained(retention_age_ms=60_000)
    await retained.put(partition, "a", "b")
    clock.advance_ms(61_000)
    await retained.put(partition, "c")
    assert seen(partition) == [2]
    await retained.put(partition, "a", expected_subject_last=0)
    assert seen(partition) == [2, 3]


async def test_a_repaired_record_counts_again(retained, clock):
    """While it is corrupt, what it replaced is seen; after the repair it is not."""
    _, partition = await retained()
    await retained.put(partition, "a", "a", "a", "b")
    segment = partition.log.segments[0]
    partition.log.write_pending()
    place = segment.locate(2).position
    length = read_header(segment.view(place, HEADER_BYTES)).length
    intact = bytes(segment.view(place, length))
    segment.put_back(intact[:-1] + b"\xff", place)
    end = partition.last_stable_offset
    partition.retention.catch_up(end)
    assert partition.retention.offsets(()).tolist() == [0, 1, 3]
    segment.put_back(intact, place)
    clock.advance_ms(2_000)
    assert seen(partition) == [1, 2, 3]
    assert partition.retention.position == end


async def test_two_kinds_of_compaction_are_one_too_many(retained):
    """A stream keeps the newest of each key or of each subject."""
    with pytest.raises(InvalidConfigError, match="choose one"):
        await retained(compact=True)


async def test_no_transaction_writes_to_it(retained, answers, tx):
    """Its records would replace others, and then perhaps not."""
    broker, partition = await retained()
    asker = tx.Asker(broker)
    who = await asker.begin("t")
    await asker.add("t", who, partition.name)
    asker.write(who, partition, answers, "v")
    await answers.wait(1)
    assert answers.codes == {"v": "invalid_request"}
