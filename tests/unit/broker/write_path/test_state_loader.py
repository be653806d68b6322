"""State that is read back from a log: at once if that is short, on a thread if it is long."""

import asyncio
import threading
from functools import partial

import pyarrow as pa
import pytest

from strandline.broker.read_path import transaction_visibility
from strandline.broker.read_path.ends import wait_until_caught_up
from strandline.broker.read_path.transaction_visibility import PartitionTransactions
from strandline.broker.write_path import duplicates, state_loader
from strandline.broker.write_path.producer_state import ProducerStates
from strandline.broker.write_path.state_loader import StateLoader
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.state import TransactionalProducer
from strandline.errors import StillLoadingError, UnavailableError
from strandline.record.codec import decode_batches
from strandline.types import ProducerStamp
from tests.kit.waiting import until_async


def much():
    """More than is read at once."""
    return state_loader.INLINE_BYTES + 1


@pytest.fixture
def taken():
    return []


@pytest.fixture
def replay(taken):
    return StateLoader(taken.append, what="message ids of s/0")


class Slow:
    """A load that waits for the test."""

    def __init__(self, result=None):
        self.result = result
        self.may_end = threading.Event()
        self.thread = None
        self.was_wanted = None

    def __call__(self, is_wanted):
        self.thread = threading.get_ident()
        assert self.may_end.wait(30)
        self.was_wanted = is_wanted()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


until = partial(until_async, seconds=30)


async def test_a_little_is_read_at_once(replay, taken):
    """Nothing is rejected for it."""
    replay.read(
        lambda is_wanted: is_wanted() and "state", size_bytes=lambda: state_loader.INLINE_BYTES
    )
    assert taken == ["state"]


async def test_much_is_read_on_a_thread(replay, taken):
    """Requests meanwhile get a retriable error, and no second load begins."""
    first = Slow("state")
    for slow in (first, Slow("of nobody"), Slow("of nobody")):
        with pytest.raises(StillLoadingError, match="message ids of s/0"):
            replay.read(slow, size_bytes=much)
    assert replay.is_under_way
    assert taken == []
    first.may_end.set()
    await until(lambda: taken)
    assert taken == ["state"]
    assert first.thread != threading.get_ident()
    assert not replay.is_under_way


async def test_a_load_that_was_cancelled_is_ignored(replay, taken):
    """It sees that it is not wanted; another one may begin at once, and counts."""
    old, new = Slow("old"), Slow("new")
    with pytest.raises(StillLoadingError):
        replay.read(old, size_bytes=much)
    await until(lambda: old.thread)
    replay.cancel()
    with pytest.raises(StillLoadingError):
        replay.read(new, size_bytes=much)
    old.may_end.set()
    new.may_end.set()
    await until(lambda: taken)
    assert taken == ["new"]
    assert old.was_wanted is False


async def test_a_failure_is_reported_once_and_then_retried(replay, taken):
    """By the next request."""
    failing = Slow(UnavailableError("unreadable"))
    failing.may_end.set()
    with pytest.raises(StillLoadingError):
        replay.read(failing, size_bytes=much)
    await until(lambda: not replay.is_under_way)
    with pytest.raises(UnavailableError, match="unreadable"):
        replay.read(lambda _: "state", size_bytes=lambda: 0)
    replay.read(lambda _: "state", size_bytes=lambda: 0)
    assert taken == ["state"]


# At a partition


@pytest.fixture
def long_log(monkeypatch):
    """Takes every log for long; loads wait for the test, and note their thread."""
    loads = {"threads": set(), "may_end": threading.Event()}
    monkeypatch.setattr(state_loader, "INLINE_BYTES", -1)

    def held(load):
        def run(*args, **kwargs):
            loads["threads"].add(threading.get_ident())
            assert loads["may_end"].wait(30)
            return load(*args, **kwargs)

        return run

    for name in ("load_window", "load_producers"):
        monkeypatch.setattr(duplicates, name, held(getattr(duplicates, name)))
    return loads


def put(partition, answers, token, numbers, *values):
    """Append numbered values."""
    partition.append_arrow(
        pa.record_batch({"value": [value.encode() for value in values]}),
        ack_sink=answers,
        token=token,
        producer=ProducerStamp(*numbers),
    )


async def test_a_new_leader_reads_on_a_thread(open_broker, make_stream, kit, long_log):
    """Until then publishes with ids wait and numbered ones are rejected; repeats are found."""
    answers = kit.Answers()
    broker = await open_broker()
    partition = await make_stream(broker)
    long_log["may_end"].set()

    async def until_stored(append, token):
        while token not in answers.acks:
            answers.errors.pop(token, None)
            append(token)
            await until(lambda: token in answers.acks or token in answers.errors)
            await asyncio.sleep(0.01)

    def with_id(name):
        headers = [("Nats-Msg-Id", name.encode())]
        return lambda token: partition.append(
            b"v",
            subject="s",
            headers=headers,
            message_id=name,
            ack_sink=answers,
            token=token,
        )

    await until_stored(with_id("m1"), "m1")
    await until_stored(lambda token: put(partition, answers, token, (7, 0, 0), "a", "b"), "p1")
    kit.abandon(broker)
    long_log["may_end"].clear()
    long_log["threads"].clear()

    broker = await open_broker()
    partition = broker.stream("s").partition(0)
    put(partition, answers, "early number", (7, 0, 2), "c")
    partition.append(b"plain", subject="s", ack_sink=answers, token="plain")
    await until(lambda: "plain" in answers.acks)
    with_id("m1")("m1 again")
    assert answers.codes == {"early number": "still_loading"}
    assert "m1 again" not in answers.acks
    long_log["may_end"].set()
    await until(lambda: "m1 again" in answers.acks)
    await until_stored(with_id("m2"), "m2")
    await until_stored(lambda token: put(partition, answers, token, (7, 0, 0), "a", "b"), "again")
    await until_stored(lambda token: put(partition, answers, token, (7, 0, 2), "c"), "p2")
    assert threading.get_ident() not in long_log["threads"]
    assert len(long_log["threads"]) == 1
    assert answers.acks["m1 again"] == answers.acks["m1"]
    assert answers.acks["again"] == answers.acks["p1"]
    assert kit.values(partition) == [b"v", b"a", b"b", b"plain", b"v", b"c"]


# Transactions


@pytest.fixture
def held_back(monkeypatch):
    """Indexes of transactions are read back when the test lets them be, and note their thread."""
    held = {"threads": set(), "may_end": threading.Event(), "failures": []}
    monkeypatch.setattr(state_loader, "INLINE_BYTES", -1)
    monkeypatch.setattr(transaction_visibility, "RETRY_S", 0.01)
    read_back = PartitionTransactions.read_back

    def slow(transaction_index, is_wanted):
        held["threads"].add(threading.get_ident())
        assert held["may_end"].wait(30)
        if held["failures"]:
            raise held["failures"].pop()
        return read_back(transaction_index, is_wanted)

    monkeypatch.setattr(PartitionTransactions, "read_back", slow)
    return held


async def mark(partition, answers, kind, producer, token):
    partition.mark(kind, producer, ack_sink=answers, token=token)
    await until(lambda: token in answers.acks or token in answers.errors)


def add(partition, answers, token, producer):
    """Append a record of a transaction."""
    partition.append_arrow(
        pa.record_batch({"value": [token.encode()]}),
        ack_sink=answers,
        token=token,
        producer=ProducerStamp(producer.producer_id, producer.epoch, 0),
        is_transactional=True,
    )


@pytest.mark.parametrize("failures", [[], [UnavailableError("out of memory")]])
async def test_transactions_are_read_back_on_a_thread(
    open_broker, make_stream, kit, held_back, failures
):
    """Nothing is stable and no transaction let in before; what is stored meanwhile is known then,
    an abort hides what it did, and a load that fails is tried again."""
    answers, ours, theirs = kit.Answers(), TransactionalProducer(5, 0), TransactionalProducer(6, 0)
    broker = await open_broker()
    partition = await make_stream(broker)
    held_back["may_end"].set()
    partition.committed.keep_transaction_index(0)
    await until(lambda: not partition.transaction_index.is_loading)
    partition.duplicates.producers = ProducerStates()
    await mark(partition, answers, MarkerKind.BEGIN, ours, "begin")
    add(partition, answers, "lost", ours)
    await until(lambda: "lost" in answers.acks)
    await mark(partition, answers, MarkerKind.ABORT, ours, "abort")
    await mark(partition, answers, MarkerKind.BEGIN, theirs, "open")

    held_back["may_end"].clear()
    held_back["threads"].clear()
    held_back["failures"] += failures
    partition.committed.keep_transaction_index(0)
    kit.put(partition, answers, "meanwhile")
    await until(lambda: "meanwhile" in answers.acks)
    assert (partition.high_watermark, partition.last_stable_offset) == (5, 0)
    assert not partition.knows_end
    with pytest.raises(StillLoadingError, match="transactions are still being loaded"):
        partition.read(4, 1 << 20)
    await mark(partition, answers, MarkerKind.COMMIT, theirs, "too early")
    add(partition, answers, "early", theirs)
    assert answers.codes == {"too early": "still_loading", "early": "still_loading"}
    with pytest.raises(StillLoadingError):
        await wait_until_caught_up(partition, patience_s=0.01)

    held_back["may_end"].set()
    await wait_until_caught_up(partition)
    assert partition.last_stable_offset == 3
    await mark(partition, answers, MarkerKind.COMMIT, theirs, "commit")
    assert partition.last_stable_offset == 6
    seen = decode_batches(partition.read(0, 1 << 20), columns=["value"])
    assert [value for rows in seen for value in rows.column("value").to_pylist()] == [b"meanwhile"]
    assert held_back["threads"]
    assert threading.get_ident() not in held_back["threads"]


async def test_what_is_truncated_while_transactions_are_read_back_is_forgotten(
    open_broker, make_stream, kit
):
    """The load may have read the old records; the new ones in their place count."""
    answers, ours = kit.Answers(), TransactionalProducer(5, 0)
    partition = await make_stream(await open_broker())
    partition.committed.keep_transaction_index(0)
    kit.put(partition, answers, "first")
    await until(lambda: "first" in answers.acks)
    await mark(partition, answers, MarkerKind.BEGIN, ours, "begin")
    transaction_index = PartitionTransactions(partition.log, start=0, high_watermark=1)
    found = transaction_index.read_back()
    assert [each.kind for each in found] == [MarkerKind.BEGIN]
    transaction_index.forget_from(1)
    transaction_index.take(found)
    transaction_index.commit(2)
    assert (transaction_index.last_stable_offset, transaction_index.open_count) == (2, 0)
