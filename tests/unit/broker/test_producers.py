"""Idempotent producers at a broker: one copy of each batch through retries, failures, restarts."""

import asyncio

import pyarrow as pa

from strandline.types import ProducerStamp


def put(partition, answers, token, numbers, *values):
    """Append numbered values; ``numbers`` is (producer id, epoch, sequence)."""
    partition.append_arrow(
        pa.record_batch({"value": [value.encode() for value in values]}),
        ack_sink=answers,
        token=token,
        producer=ProducerStamp(*numbers),
    )


async def test_a_batch_sent_again_is_acked_where_it_is(partition, answers, kit):
    """While it waits, and later; it is stored once and counted as a duplicate."""
    put(partition, answers, "first", (7, 0, 0), "a", "b")
    put(partition, answers, "at once", (7, 0, 0), "a", "b")
    put(partition, answers, "next", (7, 0, 2), "c")
    await answers.wait(3)
    put(partition, answers, "later", (7, 0, 2), "c")
    await answers.wait(4)
    assert answers.acks == {"first": 0, "at once": 0, "next": 2, "later": 2}
    assert answers.duplicates == {"at once", "later"}
    assert kit.values(partition) == [b"a", b"b", b"c"]


async def test_gaps_and_fenced_producers_are_rejected(partition, answers, kit):
    """With codes of their own, and nothing is stored."""
    put(partition, answers, "a", (7, 1, 0), "a")
    put(partition, answers, "gap", (7, 1, 2), "c")
    put(partition, answers, "old", (7, 0, 0), "z")
    put(partition, answers, "many", (7, 1, 1), *["v"] * 65_536)
    await answers.wait(4)
    assert answers.codes == {
        "gap": "out_of_order_sequence",
        "old": "producer_fenced",
        "many": "invalid_record",
    }
    assert kit.values(partition) == [b"a"]


async def test_what_was_not_stored_is_stored_by_the_retry(
    open_broker, make_stream, disk, answers, kit
):
    """After a full disk the same numbers are the next ones again, in their order."""
    broker = await open_broker()
    partition = await make_stream(broker)
    put(partition, answers, "a", (7, 0, 0), "a")
    await answers.wait(1)
    disk.fill(".log")
    big = "x" * (200 << 10)  # more than is gathered in memory before it is written
    put(partition, answers, "full", (7, 0, 1), *[big] * 6)
    put(partition, answers, "behind", (7, 0, 7), "b")
    await answers.wait(3)
    assert answers.codes == {"full": "disk_full", "behind": "disk_full"}
    disk.heal()
    put(partition, answers, "behind again", (7, 0, 7), "b")
    put(partition, answers, "again", (7, 0, 1), *[big] * 6)
    put(partition, answers, "in order", (7, 0, 7), "b")
    await answers.wait(6)
    assert answers.codes["behind again"] == "out_of_order_sequence"
    assert answers.acks == {"a": 0, "again": 1, "in order": 7}


async def test_a_restart_forgets_no_producer(open_broker, make_stream, answers, kit):
    """Also after a kill: the state is in the log."""
    broker = await open_broker()
    partition = await make_stream(broker)
    put(partition, answers, "a", (7, 2, 0), "a", "b")
    await answers.wait(1)
    kit.abandon(broker)
    broker = await open_broker()
    partition = broker.stream("s").partition(0)
    put(partition, answers, "again", (7, 2, 0), "a", "b")
    put(partition, answers, "next", (7, 2, 2), "c")
    put(partition, answers, "old", (7, 1, 0), "z")
    await answers.wait(4)
    assert answers.acks == {"a": 0, "again": 0, "next": 2}
    assert answers.codes == {"old": "producer_fenced"}


async def test_producer_ids_are_never_given_out_twice(open_broker, kit):
    """Not to two at once, nor after a crash."""
    broker = await open_broker()
    found = await asyncio.gather(*(broker.new_producer_id() for _ in range(1500)))
    kit.abandon(broker)
    broker = await open_broker()
    found.append(await broker.new_producer_id())
    assert len(set(found)) == 1501
    assert min(found) > 0
