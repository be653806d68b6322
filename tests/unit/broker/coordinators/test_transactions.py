"""Transactions on one broker: what readers see, and what survives a crash."""

import asyncio

import pyarrow as pa
import pytest

from strandline.api.groups import GROUPS_STREAM
from strandline.broker.coordinators import transactions
from strandline.core.groups.transactions import PendingOffsets
from strandline.errors import (
    BatchSupersededError,
    FingerprintMismatchError,
    InvalidRequestError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionPreparedError,
    UnavailableError,
    UnknownTransactionError,
    UnstableOffsetCommitError,
)
from strandline.record.batch import Attributes, header_of
from strandline.record.codec import Stamp, encode_records
from strandline.types import ProducerStamp

DAY_NS = 86_400 * 10**9


@pytest.fixture
def ask(broker, tx):
    return tx.Asker(broker)


async def written(ask, kit, id_, *partitions, values=("a", "b"), **options):
    """A transaction that has written to partitions, and is open."""
    answers = kit.Answers()
    who = await ask.begin(id_, **options)
    await ask.add(id_, who, *(partition.name for partition in partitions))
    for partition in partitions:
        ask.write(who, partition, answers, *(f"{partition.name}{value}" for value in values))
    await answers.wait(len(partitions))
    assert not answers.errors
    return who


async def test_a_commit_shows_the_records_of_every_partition(broker, make_stream, ask, tx, kit):
    """Before it none is seen, afterwards all of them are, in streams of their own."""
    one, two = await make_stream(broker, "one"), await make_stream(broker, "two")
    who = await written(ask, kit, "pay", one, two)
    assert tx.seen(one) == tx.seen(two) == []
    await ask.end("pay", who, is_commit=True)
    assert tx.seen(one) == ["one/0a", "one/0b"]
    assert tx.seen(two) == ["two/0a", "two/0b"]


async def test_aborted_records_are_never_shown(partition, ask, tx, kit, answers):
    """Other records wait for the end of the transaction, and only they are seen."""
    kit.put(partition, answers, "before")
    who = await written(ask, kit, "pay", partition)
    kit.put(partition, answers, "between")
    await answers.wait(2)
    assert tx.seen(partition) == ["before"]
    assert partition.last_stable_offset < partition.high_watermark
    await ask.end("pay", who, is_commit=False)
    assert tx.seen(partition) == ["before", "between"]
    assert partition.last_stable_offset == partition.high_watermark


async def test_transactions_interleave(partition, ask, tx, kit):
    """Each is seen or not by its own outcome; reading goes as far as the first that is open."""
    first = await written(ask, kit, "first", partition, values="1")
    second = await written(ask, kit, "second", partition, values="2")
    third = await written(ask, kit, "third", partition, values="3")
    await ask.end("second", second, is_commit=True)
    await ask.end("third", third, is_commit=False)
    assert tx.seen(partition) == []
    await ask.end("first", first, is_commit=True)
    assert tx.seen(partition) == ["s/01", "s/02"]


async def test_a_reader_may_begin_inside_what_is_hidden(partition, ask, tx, kit, answers):
    """An offset of a marker, or of an aborted record, leads to the next record that counts."""
    who = await written(ask, kit, "pay", partition)
    await ask.end("pay", who, is_commit=False)
    kit.put(partition, answers, "after")
    await answers.wait(1)
    for offset in range(5):
        assert tx.seen(partition, offset) == ["after"]
    assert partition.read(partition.last_stable_offset, 100).size == 0


async def test_records_get_in_only_where_the_transaction_is_open(
    broker, make_stream, ask, tx, kit, answers
):
    """Not into a partition it was not let into, not after its end, not without a coordinator."""
    one, two = await make_stream(broker, "one"), await make_stream(broker, "two")
    who = await written(ask, kit, "pay", one)
    ask.write(who, two, answers, "remote_error")
    await ask.end("pay", who, is_commit=True)
    ask.write(who, one, answers, "late")
    await answers.wait(2)
    assert answers.codes == {"remote_error": "producer_fenced", "late": "producer_fenced"}
    assert tx.seen(one) == ["one/0a", "one/0b"]


async def test_a_producer_that_takes_over_fences_the_other(partition, ask, tx, kit, answers):
    """Its open transaction is aborted, and it can neither write, end nor begin."""
    old = await written(ask, kit, "pay", partition, values="old")
    new = await written(ask, kit, "pay", partition, values=["new"])
    ask.write(old, partition, answers, "zombie")
    await answers.wait(1)
    assert answers.codes == {"zombie": "producer_fenced"}
    for refused in (
        ask.end("pay", old, is_commit=True),
        ask.add("pay", old, partition.name),
        ask.begin("pay", after=old),
    ):
        with pytest.raises(ProducerFencedError):
            await refused
    await ask.end("pay", new, is_commit=True)
    assert tx.seen(partition) == ["s/0new"]


async def test_a_transaction_is_aborted_when_its_time_is_over(
    broker, partition, ask, tx, kit, clock
):
    """Readers continue after it; a metric and an error report it."""
    who = await written(ask, kit, "slow", partition, timeout_ms=5_000)
    broker.refresh_telemetry()
    assert broker.telemetry.transactions_open == 1
    clock.advance_ms(5_001)
    await kit.until(lambda: broker.telemetry.transactions_timed_out["slow"] == 1)
    await kit.until(lambda: partition.last_stable_offset == partition.high_watermark)
    assert tx.seen(partition) == []
    broker.refresh_telemetry()
    assert broker.telemetry.transactions_open == 0
    with pytest.raises(TransactionAbortedError, match="5000 ms"):
        await ask.end("slow", who, is_commit=True)


@pytest.mark.parametrize("shift", [3650 * DAY_NS, -3650 * DAY_NS])
async def test_a_timeout_does_not_follow_the_wall_clock(
    broker, partition, ask, tx, kit, clock, shift
):
    """Set forward it ends no transaction early, and set back it keeps none open."""
    right = clock.now_ns()
    who = await written(ask, kit, "kept", partition, timeout_ms=5_000)
    clock.set_wall_clock(right + shift)
    clock.advance_ms(4_000)
    await asyncio.sleep(0.1)
    await ask.end("kept", who, is_commit=True)
    await kit.until(lambda: tx.seen(partition) == ["s/0a", "s/0b"])
    await written(ask, kit, "late", partition, timeout_ms=5_000)
    clock.set_wall_clock(right)
    clock.advance_ms(5_001)
    await kit.until(lambda: partition.last_stable_offset == partition.high_watermark)
    assert tx.seen(partition) == ["s/0a", "s/0b"]


async def test_timeouts_are_counted_by_name_up_to_a_limit(broker, monkeypatch):
    """A scrape does not grow with the names of producers."""
    monkeypatch.setattr(transactions, "LABELS_MAX", 2)
    for name in ("one", "two", "three", "two", "four"):
        broker.transactions._count_timeout(name)
    assert broker.telemetry.transactions_timed_out == {"one": 1, "two": 2, "others": 2}


async def test_everything_is_known_again_after_a_crash(open_broker, make_stream, tx, kit, clock):
    """Committed records are seen, aborted ones are not, and open transactions time out."""
    broker = await open_broker()
    partition, ask = await make_stream(broker), tx.Asker(broker)
    who = await written(ask, kit, "one", partition, values="1")
    await ask.end("one", who, is_commit=True)
    who = await written(ask, kit, "two", partition, values="2")
    await ask.end("two", who, is_commit=False)
    who = await written(ask, kit, "three", partition, values="3", timeout_ms=1_000)
    kit.abandon(broker)

    broker = await open_broker()
    partition, ask = broker.stream("s").partition(0), tx.Asker(broker)
    assert tx.seen(partition) == ["s/01"]
    assert partition.last_stable_offset < partition.high_watermark
    assert await ask.read(lambda state: state.transactions["one"].status.is_commit)
    clock.advance_ms(1_001)
    await kit.until(lambda: partition.last_stable_offset == partition.high_watermark)
    assert tx.seen(partition) == ["s/01"]
    with pytest.raises(TransactionAbortedError):
        await ask.end("three", who, is_commit=True)


async def test_what_was_aborted_stays_hidden_though_the_clock_was_set_back(
    open_broker, make_stream, tx, kit, clock
):
    """After a restart, too: times do not say where the first transaction of a log can be."""
    broker = await open_broker()
    partition, ask = await make_stream(broker), tx.Asker(broker)
    await ask.end("one", await written(ask, kit, "one", partition), is_commit=True)
    await broker.stop()

    clock._now_ns -= 3_600 * 10**9
    broker = await open_broker()
    both, ask = [broker.stream("s").partition(0), await make_stream(broker, "t")], tx.Asker(broker)
    await ask.end("two", await written(ask, kit, "two", *both), is_commit=False)
    kit.put(both[1], kit.Answers(), "plain")
    await kit.until(lambda: tx.seen(both[1]) == ["plain"])
    await broker.stop()

    broker = await open_broker()
    assert tx.seen(broker.stream("s").partition(0)) == ["s/0a", "s/0b"]
    assert tx.seen(broker.stream("t").partition(0)) == ["plain"]


async def test_a_first_transaction_reads_no_log_back(broker, partition, ask, tx, kit, answers):
    """Earlier records belong to no transaction; later ones count."""
    kit.put(partition, answers, *"abc")
    await answers.wait(3)
    await broker.quiesce()
    reads = []
    partition.log.read = lambda offset, *_, **__: reads.append(offset)
    who = await ask.begin("one")
    assert partition.transaction_index is not None
    assert not reads
    del partition.log.read
    await ask.add("one", who, partition.name)
    ask.write(who, partition, answers, "x")
    await answers.wait(4)
    await ask.end("one", who, is_commit=False)
    kit.put(partition, answers, "d")
    await kit.until(lambda: tx.seen(partition) == ["a", "b", "c", "d"])


async def test_a_copy_may_be_given_a_transaction_before_it_hears_of_any(partition, answers, kit):
    """Replicated records are hidden from the first batch on."""
    kit.put(partition, answers, "a")
    await answers.wait(1)
    assert partition.transaction_index is None
    plain = encode_records([b"b"], ["s"], Stamp(1, 0, 1))
    partition.log.append(bytes(plain), header_of(plain))
    partition.copied([plain])
    assert partition.transaction_index is None
    stamp = Stamp(
        2, 0, 1, producer=ProducerStamp(7, 0, 0), attributes=int(Attributes.TRANSACTIONAL)
    )
    ours = encode_records([b"c"], ["s"], stamp)
    partition.log.append(bytes(ours), header_of(ours))
    partition.copied([ours])
    partition.commit(3)
    assert (partition.last_stable_offset, partition.high_watermark) == (2, 3)


async def test_positions_count_with_their_transaction_after_a_crash(open_broker, tx, kit):
    """Those of a committed one do, and those of one that was left open do when it is committed."""
    broker = await open_broker()
    ask = tx.Asker(broker)
    await broker.groups.prepare_place()
    found = {}
    for id_, offset in (("one", 7), ("two", 9)):
        who = found[id_] = await ask.begin(id_)
        await ask.add(id_, who, (GROUPS_STREAM, 0))
        transaction = PendingOffsets(who.producer_id, who.epoch)
        await broker.groups.commit(id_, {"in": {0: offset}}, transaction=transaction)
        assert await broker.groups.committed_offsets(id_) == {}
    await ask.end("one", found["one"], is_commit=True)
    kit.abandon(broker)

    broker = await open_broker()
    ask = tx.Asker(broker)
    assert await broker.groups.committed_offsets("one") == {"in": {0: 7}}
    with pytest.raises(UnstableOffsetCommitError, match=str(found["two"])):
        await broker.groups.describe("two", must_be_decided=True)
    await ask.end("two", found["two"], is_commit=True)
    assert await broker.groups.committed_offsets("two") == {"in": {0: 9}}
    with pytest.raises(ProducerFencedError):
        await broker.groups.commit("two", {"in": {0: 11}}, transaction=transaction)


async def test_a_prepared_transaction_waits_for_its_decision(
    open_broker, make_stream, tx, kit, clock
):
    """It outlives its time, a crash and other producers; its staged id ends it."""
    broker = await open_broker()
    partition, ask = await make_stream(broker), tx.Asker(broker)
    who = await written(ask, kit, "pay", partition, timeout_ms=1_000)
    await ask.prepare("pay", who)
    kit.abandon(broker)

    broker = await open_broker()
    partition, ask = broker.stream("s").partition(0), tx.Asker(broker)
    clock.advance_ms(1_000_000)
    with pytest.raises(TransactionPreparedError, match=str(who)):
        await ask.begin("pay")
    with pytest.raises(UnknownTransactionError):
        await ask.end_staged("pay", (who.producer_id, who.epoch + 1), is_commit=True)
    assert tx.seen(partition) == []
    for _ in range(2):  # a repeat is answered
        await ask.end_staged("pay", (who.producer_id, who.epoch), is_commit=True)
    assert tx.seen(partition) == ["s/0a", "s/0b"]
    with pytest.raises(UnknownTransactionError):
        await ask.end_staged("pay", (who.producer_id, who.epoch), is_commit=False)


async def test_parts_are_published_together(broker, make_stream, ask, tx, kit):
    """Those that are named, once; the others are discarded, and the number must grow."""
    one, two = await make_stream(broker, "one"), await make_stream(broker, "two")
    for part, partition in (("p1", one), ("p2", two), ("loser", one)):
        who = await written(ask, kit, part, partition, values=[part], batch=("job", 4))
        await ask.prepare(part, who)
    assert tx.seen(one) == tx.seen(two) == []
    published = await ask.publish("job", 4, "f", "p1", "p2")
    assert not published.is_repeat
    assert tx.seen(one) == ["one/0p1"]
    assert tx.seen(two) == ["two/0p2"]

    again = await ask.publish("job", 4, "f")
    assert again.is_repeat
    nobody = await ask.begin("late", batch=("job", 4))
    assert nobody.producer_id == -1, "there is nothing to stage any more"
    with pytest.raises(FingerprintMismatchError):
        await ask.publish("job", 4, "g")
    with pytest.raises(BatchSupersededError):
        await ask.publish("job", 3, "f")
    with pytest.raises(UnknownTransactionError):
        await ask.publish("job", 5, "f", "loser")
    assert (await ask.publish("job", 9, "none")).publication.batch == 9


async def test_a_stream_may_be_deleted_under_a_transaction(broker, make_stream, ask, tx, kit):
    """Its marker is not needed; the commit makes the rest visible."""
    one, two = await make_stream(broker, "one"), await make_stream(broker, "two")
    who = await written(ask, kit, "pay", one, two)
    await broker.delete_stream("two")
    again = await make_stream(broker, "two")
    await ask.end("pay", who, is_commit=True)
    assert tx.seen(one) == ["one/0a", "one/0b"]
    assert tx.seen(again) == []
    assert again.high_watermark == 0


async def test_a_failed_disk_leaves_nothing_half_decided(broker, partition, ask, tx, kit, disk):
    """The caller retries; after reopening the same request succeeds."""
    who = await written(ask, kit, "pay", partition)
    disk.fail("sync", "journal", times=1)
    with pytest.raises(UnavailableError):
        await ask.end("pay", who, is_commit=True)
    await kit.until(lambda: broker.admission.write_error is None)
    await ask.end("pay", who, is_commit=True)
    assert tx.seen(partition) == ["s/0a", "s/0b"]


@pytest.mark.usefixtures("without_spares")  # whose creation would meet the full disk instead
async def test_a_full_disk_delays_a_marker(broker, make_stream, ask, tx, kit, disk):
    """The decision is final; the marker follows when there is space, and readers continue."""
    one = await make_stream(broker, "one")
    who = await written(ask, kit, "pay", one)
    await kit.until(lambda: broker.committer.is_idle)
    disk.fail("write", "logs/00000001", code=28, times=2)
    await ask.end("pay", who, is_commit=True)
    assert tx.seen(one) == ["one/0a", "one/0b"]


async def test_the_coordinators_stream_grows_no_more_than_its_state(
    broker, ask, monkeypatch, open_broker, kit, tx
):
    """After many entries the state is rewritten, and older entries are deleted."""
    monkeypatch.setattr("strandline.core.coordinator_effects.REWRITE_ENTRIES_MIN", 20)
    who = None
    for _ in range(30):
        who = await ask.begin("busy", after=who)
        await ask.end("busy", who, is_commit=True)
    home = broker.stream("__transactions").partition(0)
    await kit.until(lambda: home.log_end_offset - home.log_start_offset < 40)
    assert home.log_start_offset > 0
    kit.abandon(broker)
    ask = tx.Asker(await open_broker())
    assert (await ask.begin("busy", after=who)).epoch == 30


async def test_entries_from_before_a_restart_count(broker, monkeypatch, open_broker, kit, tx):
    """A frequently restarted broker still rewrites the state."""
    monkeypatch.setattr("strandline.core.coordinator_effects.REWRITE_ENTRIES_MIN", 20)
    for _ in range(8):
        ask = tx.Asker(broker)
        for _ in range(3):
            who = await ask.begin("busy")
            await ask.end("busy", who, is_commit=True)
        await broker.stop()
        broker = await open_broker()
    home = broker.stream("__transactions").partition(0)
    assert home.log_end_offset > 60
    assert home.log_end_offset - home.log_start_offset < 40


async def test_a_partition_is_let_into_only_by_its_name(ask, broker):
    """An unknown partition is rejected before anything is stored."""
    who = await ask.begin("pay")
    with pytest.raises(InvalidRequestError):
        await ask.add("pay", who, ("nothing", 0))
    await ask.end("pay", who, is_commit=True)


async def test_compaction_keeps_what_an_aborted_record_would_have_replaced(
    broker, make_stream, ask, tx, kit, clock
):
    """Aborted records go and replace nothing; open ones stay, and replace nothing yet."""
    log = await make_stream(broker, "log", compact=True)
    answers = kit.Answers()
    kit.put(log, answers, "old", "kept", key=b"a")
    kit.put(log, answers, "committed below", key=b"b")
    await answers.wait(3)
    aborted = await keyed(ask, kit, log, "aborted", [(b"a", "aborted")])
    await ask.end("aborted", aborted, is_commit=False)
    committed = await keyed(ask, kit, log, "committed", [(b"b", "committed")])
    await ask.end("committed", committed, is_commit=True)
    still_open = await keyed(ask, kit, log, "open", [(b"a", "open"), (b"b", "open b")])
    kit.put(log, answers, "filler")
    await answers.wait(4)
    log.log.roll()
    await broker._checkpoints.checkpoint()
    await broker._cleaner.clean()
    assert broker.telemetry.compaction_records == 3, "old, committed below, aborted"
    assert tx.seen(log) == ["kept", "committed"]
    await ask.end("open", still_open, is_commit=True)
    assert tx.seen(log) == ["kept", "committed", "open", "open b", "filler"]


async def keyed(ask, kit, partition, id_, rows):
    """An open transaction that has written rows of keys and values."""
    who, answers = await ask.begin(id_), kit.Answers()
    await ask.add(id_, who, partition.name)
    keys, values = zip(*rows, strict=True)
    table = pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([value.encode() for value in values], pa.binary()),
        }
    )
    partition.append_arrow(
        table,
        ack_sink=answers,
        token=id_,
        producer=ProducerStamp(who.producer_id, who.epoch, 0),
        is_transactional=True,
    )
    await answers.wait(1)
    assert not answers.errors
    return who


@pytest.mark.parametrize("acks", ["memory", "disk"])
async def test_a_transaction_is_on_disk_whatever_the_stream_promises(
    open_broker, make_stream, tx, kit, acks, disk
):
    """Its markers must outlive a crash, or its end would be missing for ever."""
    broker = await open_broker()
    partition, ask = await make_stream(broker, acks=acks), tx.Asker(broker)
    syncs = disk.count("sync", "journal")
    who = await written(ask, kit, "pay", partition)
    assert disk.count("sync", "journal") >= syncs + 4, "begin, let in, its marker, the records"
    await ask.end("pay", who, is_commit=True)
    assert tx.seen(partition) == ["s/0a", "s/0b"]


async def test_a_readonly_partition_takes_the_end_of_a_transaction(partition, ask, tx, kit):
    """Else its readers would wait until it is writable again."""
    who = await written(ask, kit, "pay", partition)
    partition.block_writes(UnavailableError("readonly"))
    await ask.end("pay", who, is_commit=True)
    assert tx.seen(partition) == ["s/0a", "s/0b"]


async def test_retention_may_remove_the_beginning_of_a_transaction(partition, ask, tx, kit):
    """Reading continues at the log start, and the rest of an aborted one stays hidden."""
    who = await written(ask, kit, "pay", partition, values=["a", "b"])
    partition.log.delete_before(partition.high_watermark)
    assert partition.last_stable_offset == partition.log_start_offset
    assert tx.seen(partition) == []
    await ask.end("pay", who, is_commit=False)
    assert partition.last_stable_offset == partition.high_watermark
