"""The record accumulator: records become batches, which are ready by size and age."""

import pytest

from strandline.client.producer.accumulator import ProducerRecord, RecordAccumulator


def record(number: int) -> ProducerRecord:
    """Return a record with this value."""
    return ProducerRecord(str(number).encode(), None, None, None, None)


def accumulator(**changes) -> RecordAccumulator:
    """An accumulator with small limits."""
    limits = {
        "batch_bytes": 100,
        "batch_records": 5,
        "linger_s": 1.0,
        "delivery_timeout_s": 30.0,
    }
    return RecordAccumulator(**{**limits, **changes})


def test_the_first_record_of_a_batch_is_news():
    """The sender must set its timer; the next records need no attention."""
    held = accumulator()
    assert held.add(0, record(1), None, size=10, now_s=0.0)
    assert not held.add(0, record(2), None, size=10, now_s=0.1)
    assert held.add(1, record(3), None, size=10, now_s=0.1)


@pytest.mark.parametrize(
    ("sizes", "ready"), [([60, 40], 1), ([1] * 5, 1), ([1] * 4, 0), ([500], 1)]
)
def test_a_batch_is_ready_when_it_is_large_enough(sizes, ready):
    """By bytes or by records, whichever comes first; one large record is a batch."""
    held = accumulator()
    for number, size in enumerate(sizes):
        held.add(0, record(number), None, size=size, now_s=0.0)
    assert len(list(held.take_ready(0.0))) == ready


def test_a_batch_is_ready_when_it_is_old_enough():
    """Linger counts from the batch's first record."""
    held = accumulator()
    held.add(0, record(1), None, size=1, now_s=10.0)
    held.add(0, record(2), None, size=1, now_s=10.9)
    assert held.due_s() == 11.0
    assert not list(held.take_ready(10.9))
    [batch] = held.take_ready(11.0)
    assert [item.value for item in batch.records] == [b"1", b"2"]
    assert batch.deadline_s == 40.0
    assert not held
    assert held.size == 0
    assert held.due_s() is None


def test_flushing_takes_everything():
    """Whatever is open goes out at once."""
    held = accumulator()
    for partition in range(3):
        held.add(partition, record(partition), None, size=1, now_s=0.0)
    assert sorted(batch.partition for batch in held.take_ready(0.0, everything=True)) == [0, 1, 2]


def test_records_that_may_go_anywhere_fill_one_batch_after_another():
    """Spreading single records would make many small batches."""
    held = accumulator()
    chosen = []
    for number in range(15):
        partition = held.sticky_partition(3)
        chosen.append(partition)
        held.add(partition, record(number), None, size=1, now_s=0.0)
    assert chosen == [1] * 5 + [2] * 5 + [0] * 5


def test_records_with_message_ids_and_without_share_no_batch():
    """A batch with ids gets no sequence."""
    held = accumulator()
    for has_id in (False, True, True, False):
        message_id = "m" if has_id else None
        held.add(0, record(0)._replace(message_id=message_id), None, size=1, now_s=0.0)
    batches = list(held.take_ready(0.0, everything=True))
    assert [(batch.rows, batch.has_ids) for batch in batches] == [(1, False), (2, True), (1, False)]
