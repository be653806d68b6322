"""The wall clock is set, forward and back: windows, ages and timestamps do not suffer for long."""

import pyarrow as pa
import pytest

from strandline.record.codec import MESSAGE_ID_HEADER, decode_batches
from strandline.types import ProducerStamp

pytestmark = pytest.mark.usefixtures("without_spares")

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
YEARS = 3650 * DAY
SHIFTS = [YEARS, -YEARS, DAY, -DAY]


def with_id(name):
    """A record with a message id."""
    return {"message_id": name, "headers": [(MESSAGE_ID_HEADER, name.encode())]}


def timestamps(partition):
    """Of every record, in order; each is a batch of its own."""
    return [
        batch.column(0).cast(pa.int64())[0].as_py()
        for offset in range(partition.high_watermark)
        for batch in decode_batches(partition.read(offset, 1), columns=["timestamp"])
    ]


@pytest.fixture
async def publish(kit, answers):
    """Append a record and wait until it is answered."""

    async def append(partition, token, **options):
        kit.put(partition, answers, token, **options)
        await answers.wait(len(answers.order) + (token not in answers.order))
        return answers

    return append


async def test_timestamps_follow_a_clock_that_is_set_back(open_broker, make_stream, clock, publish):
    """One wrong record keeps its time; the next ones have the right one again."""
    partition = await make_stream(await open_broker())
    now = clock.now_ns()
    clock.set_wall_clock(now + YEARS)
    await publish(partition, "wrong")
    clock.set_wall_clock(now)
    await publish(partition, "right")
    assert timestamps(partition) == [now + YEARS, now]


async def test_a_clock_that_is_set_back_a_little_keeps_timestamps_in_order(
    open_broker, make_stream, clock, publish
):
    """Corrections of less than a second, as time services make them, are not seen."""
    partition = await make_stream(await open_broker())
    now = clock.now_ns()
    await publish(partition, "a")
    clock.set_wall_clock(now - SECOND // 2)
    await publish(partition, "b")
    assert timestamps(partition) == [now, now]


@pytest.mark.parametrize("shift", SHIFTS)
async def test_message_ids_are_known_for_their_window(
    open_broker, make_stream, clock, publish, shift
):
    """As long as the monotonic clock says, however the wall clock is set meanwhile."""
    partition = await make_stream(await open_broker(), dedup_window_ms=1000)
    right = clock.now_ns()
    await publish(partition, "first", **with_id("m"))
    clock.set_wall_clock(right + shift)
    clock.advance_ms(900)
    answers = await publish(partition, "again", **with_id("m"))
    assert answers.duplicates == {"again"}
    clock.set_wall_clock(right)
    clock.advance_ms(200)
    answers = await publish(partition, "later", **with_id("m"))
    assert (answers.duplicates, answers.acks["later"]) == ({"again"}, 1)


@pytest.mark.parametrize("shift", SHIFTS)
async def test_message_ids_after_a_restart(open_broker, make_stream, clock, publish, shift):
    """A record with a wrong time neither blocks the ids before it nor hides those after it."""
    first = await open_broker()
    partition = await make_stream(first, dedup_window_ms=60_000)
    await publish(partition, "old", **with_id("old"))
    clock.advance_ms(100_000)
    await publish(partition, "recent", **with_id("recent"))
    right = clock.now_ns()
    clock.set_wall_clock(right + shift)
    await publish(partition, "wrong", **with_id("wrong"))
    clock.set_wall_clock(right)
    clock.advance_ms(1000)
    await publish(partition, "new", **with_id("new"))
    await first.stop()
    partition = (await open_broker()).stream("s").partition(0)
    for name in ("old", "recent", "wrong", "new"):
        answers = await publish(partition, f"{name} again", **with_id(name))
    assert answers.duplicates == {"recent again", "wrong again", "new again"}


@pytest.mark.parametrize("shift", SHIFTS)
async def test_producers_stay_known(open_broker, make_stream, clock, kit, answers, shift):
    """A change of the wall clock forgets no producer; all sequences continue."""
    partition = await make_stream(await open_broker())
    batch = pa.RecordBatch.from_pydict({"value": [b"v"]})

    async def send(producer, sequence):
        stamp = ProducerStamp(producer, 0, sequence)
        token = (producer, sequence)
        partition.append_arrow(batch, ack_sink=answers, token=token, producer=stamp)
        await answers.wait(len(answers.order) + (token not in answers.order))

    for producer in (1, 2):
        await send(producer, 0)
    clock.set_wall_clock(clock.now_ns() + shift)
    for producer in (1, 2):
        await send(producer, 1)
    assert answers.codes == {}


async def fill(publish, partition, name, count=8):
    """Records of about a sixth of a segment."""
    for number in range(count):
        await publish(partition, f"{name}{number}", value=bytes(10_000))


async def test_retention_is_not_stopped_by_one_record_of_the_future(
    open_broker, make_stream, clock, publish
):
    """Its segment is as old as when it was written, not as its timestamp says."""
    broker = await open_broker(cleaner_interval_ms=10**9)
    partition = await make_stream(broker, retention_age_ms=10_000)
    await broker._cleaner.clean()
    right = clock.now_ns()
    clock.set_wall_clock(right + YEARS)
    await publish(partition, "wrong")
    clock.set_wall_clock(right)
    await fill(publish, partition, "a")
    await broker._cleaner.clean()
    clock.advance_ms(11_000)
    await broker._cleaner.clean()
    assert partition.log_start_offset == 9


@pytest.mark.parametrize("shift", SHIFTS)
async def test_retention_deletes_nothing_early(open_broker, make_stream, clock, publish, shift):
    """Whatever the wall clock says, recently written records stay."""
    broker = await open_broker(cleaner_interval_ms=10**9)
    partition = await make_stream(broker, retention_age_ms=10_000)
    await fill(publish, partition, "a")
    await broker._cleaner.clean()
    right = clock.now_ns()
    clock.set_wall_clock(right + shift)
    await fill(publish, partition, "b")
    await broker._cleaner.clean()
    clock.set_wall_clock(right)
    await fill(publish, partition, "c")
    await broker._cleaner.clean()
    assert partition.log_start_offset == 0


@pytest.mark.parametrize("shift", SHIFTS)
async def test_retention_after_a_restart(open_broker, make_stream, clock, publish, shift):
    """Records of a wrong clock go after the age, counted from the start at the latest."""
    first = await open_broker(cleaner_interval_ms=10**9)
    partition = await make_stream(first, retention_age_ms=10_000)
    right = clock.now_ns()
    clock.set_wall_clock(right + shift)
    await fill(publish, partition, "wrong")
    clock.set_wall_clock(right)
    await fill(publish, partition, "right")
    await first.stop()
    broker = await open_broker(cleaner_interval_ms=10**9)
    partition = broker.stream("s").partition(0)
    await broker._cleaner.clean()
    assert partition.log_start_offset <= 8
    clock.advance_ms(11_000)
    await broker._cleaner.clean()
    assert partition.log_start_offset == 16


async def test_a_segment_begun_by_a_wrong_clock_is_sealed_by_age(
    open_broker, make_stream, clock, publish
):
    """Else a first record of the future would keep it open for years."""
    partition = await make_stream(await open_broker(), segment_age_ms=10_000)
    right = clock.now_ns()
    clock.set_wall_clock(right + YEARS)
    await publish(partition, "wrong")
    clock.set_wall_clock(right)
    await publish(partition, "right")
    assert len(partition.log.segments) == 2
