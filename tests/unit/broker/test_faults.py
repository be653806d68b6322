"""A broker whose disk fails: typed errors, nothing acked is lost, and service comes back.

The disk is real except for the calls a test orders to fail; see ``conftest.RiggedDisk``.
"""

import asyncio
import errno

import pyarrow as pa
import pytest

from strandline.config import LimitsConfig
from strandline.errors import DiskFullError, LogPoisonedError
from strandline.storage.segment import PENDING_BYTES_MAX


@pytest.fixture
def settle(kit):
    """Wait until everything asked so far is answered."""

    async def wait(broker, answers, count):
        await answers.wait(count)
        await broker.quiesce()

    return wait


async def healed(broker, kit):
    """Wait until the broker accepts records again."""
    await kit.until(lambda: broker.admission.write_error is None)


async def test_a_full_disk_for_segments_rejects_and_heals(
    broker, partition, answers, disk, kit, settle
):
    """No space for a segment: disk_full, offsets stay dense, and the next append is stored."""
    kit.put(partition, answers, "a")
    await settle(broker, answers, 1)
    disk.fill("/logs/")
    kit.put(partition, answers, "big", value=bytes(PENDING_BYTES_MAX))
    kit.put(partition, answers, "after")
    await settle(broker, answers, 3)
    assert answers.codes == {"big": "disk_full", "after": "disk_full"}
    assert (partition.next_offset, partition.high_watermark) == (1, 1)
    assert broker.telemetry.disk_full == 1
    disk.heal()
    kit.put(partition, answers, "b")
    await settle(broker, answers, 4)
    assert answers.acks == {"a": 0, "b": 1}
    assert kit.values(partition) == [b"a", b"b"]
    assert broker.telemetry.disk_full == 0


async def test_what_only_the_journal_had_space_for_is_kept(
    broker, partition, answers, disk, kit, settle
):
    """It is acked, though its segment had no space; later records are rejected."""
    disk.fill("/logs/")
    kit.put(partition, answers, "first", value=bytes(40_000))
    await settle(broker, answers, 1)
    kit.put(partition, answers, "second")
    await settle(broker, answers, 2)
    assert (answers.acks, answers.codes) == ({"first": 0}, {"second": "disk_full"})
    assert kit.values(partition) == [bytes(40_000)]
    disk.heal()
    kit.put(partition, answers, "third", value=b"3")
    await settle(broker, answers, 3)
    assert answers.acks == {"first": 0, "third": 1}
    assert kit.values(partition) == [bytes(40_000), b"3"]


async def test_a_full_disk_for_one_partition_spares_the_others(
    broker, make_stream, answers, disk, kit, settle
):
    """A partition that finds no space loses its own records only."""
    one, two = await make_stream(broker, "one"), await make_stream(broker, "two")
    disk.fill(f"/logs/{one.log_id:08d}")
    kit.put(one, answers, "lost", value=bytes(PENDING_BYTES_MAX))
    kit.put(two, answers, "kept", value=bytes(PENDING_BYTES_MAX))
    await settle(broker, answers, 2)
    assert answers.codes == {"lost": "disk_full"}
    assert answers.acks == {"kept": 0}


@pytest.mark.usefixtures("without_spares")
async def test_a_full_disk_for_the_journal_undoes_the_group_commit(
    broker, partition, answers, disk, kit, settle
):
    """Without space for a journal file, the group commit's records are removed from the logs."""
    disk.fill("/journal/")
    kit.put(partition, answers, *range(10))
    await settle(broker, answers, 10)
    assert set(answers.codes.values()) == {"disk_full"}
    assert (partition.next_offset, partition.log_end_offset, partition.high_watermark) == (0, 0, 0)
    disk.heal()
    kit.put(partition, answers, "b")
    await settle(broker, answers, 11)
    assert answers.acks == {"b": 0}
    assert kit.values(partition) == [b"b"]


@pytest.mark.usefixtures("without_spares")
async def test_a_full_disk_that_cannot_even_undo_reopens(
    broker, partition, answers, disk, kit, settle
):
    """If the group commit cannot be undone, everything is answered and the logs are reopened."""
    kit.put(partition, answers, "a", value=bytes(60_000))
    await settle(broker, answers, 1)
    disk.fill("/journal/")
    disk.fail("truncate", "/logs/")
    disk.fail("rename", "/logs/")
    for number in range(3):  # several segments in one turn
        kit.put(partition, answers, number, value=bytes(1 << 20))
    for number in range(3, 7):
        kit.put(partition, answers, number, value=bytes(1 << 20))
    await settle(broker, answers, 8)
    assert answers.acks == {"a": 0}
    disk.heal()
    await healed(broker, kit)
    kit.put(partition, answers, "b")
    await settle(broker, answers, 9)
    stored = kit.values(partition)
    assert stored[answers.acks["b"]] == b"b"
    assert stored[0] == bytes(60_000)


@pytest.mark.usefixtures("without_spares")
async def test_too_many_open_files_costs_the_group_commit_only(
    broker, partition, answers, disk, kit, settle
):
    """Out of descriptors for a journal file: a typed, retriable error, and then service again."""
    disk.fail("create", "/journal/", code=errno.EMFILE)
    kit.put(partition, answers, *range(3))
    await settle(broker, answers, 3)
    assert set(answers.codes.values()) == {"unavailable"}
    disk.heal()
    kit.put(partition, answers, "b")
    await settle(broker, answers, 4)
    assert kit.values(partition) == [b"b"]


async def test_too_many_open_files_for_a_segment_costs_its_records_only(
    broker, partition, answers, disk, kit, settle
):
    """Out of descriptors for a segment: its records get a retriable error, nothing is poisoned."""
    disk.fail("create", ".log", code=errno.EMFILE)
    kit.put(partition, answers, "a", value=bytes(PENDING_BYTES_MAX))
    await settle(broker, answers, 1)
    assert answers.codes == {"a": "unavailable"}
    assert broker.admission.write_error is None
    disk.heal()
    kit.put(partition, answers, "b", value=bytes(40_000))
    await settle(broker, answers, 2)
    assert answers.acks == {"b": 0}


@pytest.mark.usefixtures("without_spares")
@pytest.mark.parametrize("where", ["inline", "thread"])
@pytest.mark.parametrize(("operation", "pattern"), [("write", "/journal/"), ("sync", "/journal/")])
async def test_a_failed_journal_poisons_and_heals(
    broker, partition, answers, disk, kit, settle, where, operation, pattern
):
    """EIO on the journal fails all waiting publishers; acked records stay, and it heals."""
    kit.put(partition, answers, "a")
    await settle(broker, answers, 1)
    if where == "thread":
        kit.by_thread(broker)
    disk.fail(operation, pattern)
    kit.put(partition, answers, *range(8))
    await settle(broker, answers, 9)
    assert set(answers.codes.values()) == {"log_poisoned"}
    assert partition.high_watermark == 1
    kit.put(partition, answers, "refused")
    assert answers.codes["refused"] == "log_poisoned"
    assert broker.telemetry.journal_poisoned == 1
    disk.heal()
    await healed(broker, kit)
    assert broker.telemetry.journal_poisoned == 0
    kit.put(partition, answers, "b")
    await settle(broker, answers, 11)
    stored = kit.values(partition)
    assert stored[0] == b"a"
    assert stored[answers.acks["b"]] == b"b"
    assert set(stored[1:-1]) <= {str(n).encode() for n in range(8)}, "rejected: perhaps stored"


@pytest.mark.usefixtures("on_the_loop")
async def test_everything_drained_is_answered_when_a_segment_fails(
    broker, make_stream, answers, disk, kit, settle
):
    """After EIO on one segment, all partitions of the group commit are answered."""
    first, second = await make_stream(broker, "one"), await make_stream(broker, "two")
    disk.fail("write", f"/logs/{first.log_id:08d}")
    kit.put(first, answers, "a", value=bytes(40_000))
    kit.put(second, answers, "b")
    await answers.wait(2)
    assert answers.codes == {"a": "log_poisoned", "b": "log_poisoned"}
    disk.heal()
    await healed(broker, kit)
    kit.put(second, answers, "c")
    await settle(broker, answers, 3)
    assert kit.values(second)[answers.acks["c"]] == b"c"


@pytest.mark.usefixtures("without_spares")
async def test_an_early_ack_is_not_taken_back(broker, partition, answers, disk, kit, settle):
    """A record acked as 'memory' is not rejected as well when the sync then fails."""
    disk.fail("sync", "/journal/", after=1)  # the first makes the file ready
    kit.put(partition, answers, "early", acks="memory")
    kit.put(partition, answers, "late")
    await settle(broker, answers, 2)
    assert answers.acks == {"early": 0}
    assert answers.codes == {"late": "log_poisoned"}
    disk.heal()
    await healed(broker, kit)
    assert kit.values(partition)[0] == b"early"


@pytest.mark.usefixtures("without_spares")
async def test_reopening_waits_for_a_sync_that_hangs(broker, partition, answers, disk, kit, settle):
    """A sync still in its thread when something else poisons is waited for, then reopened."""
    kit.put(partition, answers, "a")
    await settle(broker, answers, 1)
    kit.by_thread(broker)
    gate = disk.hold("sync", "/journal/")
    kit.put(partition, answers, "b")
    await kit.until(gate.reached.is_set)
    broker.committer.poison(LogPoisonedError("a segment could not be synced"))
    before = broker._storage
    for _ in range(20):
        await kit.until(lambda: True)
    assert broker._storage is before, "not reopened under a running sync"
    gate.released.set()
    await healed(broker, kit)
    assert answers.acks == {"a": 0, "b": 1}, "its sync did succeed"
    kit.put(partition, answers, "c")
    await settle(broker, answers, 3)
    assert kit.values(partition) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ENOMEM])
async def test_a_failed_checkpoint_poisons_and_heals(
    broker, partition, answers, disk, kit, settle, clock, code
):
    """After an error in a checkpoint's sync, appends are rejected until the storage is reopened.

    Tried again, the sync could succeed without what the system has forgotten.
    """
    kit.put(partition, answers, "a")
    await settle(broker, answers, 1)
    disk.fail("sync", "/logs/", code=code)
    clock.advance_ms(60_000)
    await kit.until(lambda: broker.admission.write_error is not None)
    kit.put(partition, answers, "refused")
    assert answers.codes == {"refused": "log_poisoned"}
    disk.heal()
    await healed(broker, kit)
    kit.put(partition, answers, "b")
    await settle(broker, answers, 3)
    assert kit.values(partition) == [b"a", b"b"]


async def test_checkpoints_survive_a_lack_of_descriptors(
    broker, partition, answers, disk, kit, settle, clock
):
    """A checkpoint that cannot open a file is tried again; the schedule does not die of it."""
    disk.fail("create", "checkpoint", code=errno.EMFILE)
    disk.fail("open", "checkpoint", code=errno.EMFILE)
    kit.put(partition, answers, "a")
    await settle(broker, answers, 1)
    clock.advance_ms(60_000)
    tried = disk.count("create", "checkpoint") + disk.count("open", "checkpoint")
    await kit.until(
        lambda: disk.count("create", "checkpoint") + disk.count("open", "checkpoint") > tried
    )
    disk.heal()
    sequence = broker._storage.journal.last_sequence
    clock.advance_ms(60_000)
    await kit.until(lambda: broker._checkpoints._last_sequence == sequence)


async def test_a_checkpoint_happens_though_no_spare_file_fits(
    open_broker, make_stream, answers, disk, kit, clock
):
    """No space for a spare journal file does not keep a checkpoint from freeing old ones."""
    broker = await open_broker()
    partition = await make_stream(broker)
    kit.put(partition, answers, 0, value=bytes(50_000))
    await answers.wait(1)
    await kit.until(lambda: broker._storage.journal.spares)
    disk.fail("create", "/journal/", code=errno.ENOSPC)
    for number in range(1, 5):  # each fills a file
        kit.put(partition, answers, number, value=bytes(50_000))
        await answers.wait(number + 1)
        await kit.until(lambda: broker._storage.journal.spares)
    assert not answers.errors, "the freed file is used again"


@pytest.mark.usefixtures("without_spares")
async def test_unstored_ids_are_forgotten(broker, partition, answers, disk, kit, settle):
    """A rejected record is not remembered: its retry is stored, not called a duplicate."""
    disk.fill("/journal/")
    kit.put(partition, answers, "first", message_id="m")
    await settle(broker, answers, 1)
    disk.heal()
    kit.put(partition, answers, "retry", message_id="m")
    await settle(broker, answers, 2)
    assert answers.acks == {"retry": 0}
    assert not answers.duplicates


@pytest.mark.usefixtures("without_spares")
async def test_ids_stored_before_poisoning_are_known_after_it(
    broker, partition, answers, disk, kit, settle
):
    """After reopening, a retry of a stored record is a duplicate."""
    kit.put(partition, answers, "a", message_id="m", headers=[("Nats-Msg-Id", b"m")])
    await settle(broker, answers, 1)
    disk.fail("sync", "/journal/")
    kit.put(partition, answers, "b", message_id="n", headers=[("Nats-Msg-Id", b"n")])
    await settle(broker, answers, 2)
    disk.heal()
    await healed(broker, kit)
    for name, message_id in (("a again", "m"), ("b again", "n")):
        headers = [("Nats-Msg-Id", message_id.encode())]
        kit.put(partition, answers, name, message_id=message_id, headers=headers)
    await settle(broker, answers, 4)
    assert answers.acks["a again"] == 0
    assert "a again" in answers.duplicates
    assert kit.values(partition).count(b"b") + kit.values(partition).count(b"b again") == 1


@pytest.mark.usefixtures("without_spares")
async def test_reopening_continues_until_the_disk_works(
    broker, partition, answers, disk, kit, settle
):
    """Until then appends are rejected and reopening is retried."""
    kit.put(partition, answers, "before")
    await settle(broker, answers, 1)
    disk.fail("sync", "/journal/")
    disk.fail("open", "/journal/")
    kit.put(partition, answers, "a")
    await settle(broker, answers, 2)
    await kit.until(lambda: disk.count("open", "/journal/") > 2)
    assert broker.admission.write_error is not None
    disk.heal()
    await healed(broker, kit)
    kit.put(partition, answers, "b")
    await settle(broker, answers, 3)
    assert "b" in answers.acks


@pytest.mark.usefixtures("without_spares")
async def test_waiting_readers_hear_of_what_reopening_found(
    broker, partition, answers, disk, kit, settle
):
    """Rejected records that turn out to be stored wake waiting readers."""
    disk.fail("sync", "/journal/", after=1)
    waiting = asyncio.get_running_loop().run_in_executor(None, kit.wait_beyond, partition, 0, 10.0)
    kit.put(partition, answers, "a")
    await settle(broker, answers, 1)
    assert answers.codes == {"a": "log_poisoned"}
    disk.heal()
    await healed(broker, kit)
    assert partition.high_watermark == 1
    assert await asyncio.wait_for(waiting, 60) is True


@pytest.mark.usefixtures("without_spares")
async def test_a_broker_stops_while_its_disk_is_broken(
    broker, partition, answers, disk, kit, settle
):
    """A poisoned broker can be stopped, and the next one has everything that was acked."""
    kit.put(partition, answers, "a")
    await settle(broker, answers, 1)
    disk.fail("sync")
    kit.put(partition, answers, "b")
    await settle(broker, answers, 2)
    await broker.stop()
    kit.put(partition, answers, "late")
    assert "late" in answers.errors


async def test_a_bug_in_a_group_commit_is_no_deadlock(
    broker, partition, answers, kit, settle, monkeypatch
):
    """After any error in a group commit, everyone is answered and the logs are reopened."""
    failures = []
    broker._loop.set_exception_handler(lambda _, context: failures.append(context))
    monkeypatch.setattr(partition.log, "append", None)
    kit.put(partition, answers, "a")
    await answers.wait(1)
    assert answers.codes == {"a": "log_poisoned"}
    assert len(failures) == 1, "and it is reported"
    await healed(broker, kit)
    kit.put(partition, answers, "b")
    await settle(broker, answers, 2)
    assert answers.acks == {"b": 0}


async def test_a_record_that_cannot_be_encoded_harms_no_other(
    broker, make_stream, answers, kit, settle
):
    """It is rejected; the other records may be retried."""
    broker.admission.limits = LimitsConfig(commit_records=5)
    one, two = await make_stream(broker, "one"), await make_stream(broker, "two")
    bad = pa.record_batch({"value": pa.array([1, 2])})
    kit.put(one, answers, "before")
    one.append_arrow(bad, ack_sink=answers, token="bad")
    kit.put(one, answers, "behind")
    one.pending._open = None
    kit.put(one, answers, *range(5))  # these are left to the next turn
    kit.put(two, answers, "beside")
    await settle(broker, answers, 9)
    assert answers.errors.pop("bad").code == "invalid_record"
    assert answers.codes == dict.fromkeys(("behind", *range(5)), "unavailable")
    assert answers.acks == {"before": 0, "beside": 0}
    kit.put(one, answers, "again")
    await settle(broker, answers, 10)
    assert answers.acks["again"] == 1


@pytest.mark.parametrize("times", [1, 1 << 30])
async def test_a_stream_whose_deletion_failed_is_there_after_a_restart(
    open_broker, make_stream, answers, disk, kit, settle, times
):
    """Nothing is acked while it is not certain that the next start finds it."""
    broker = await open_broker()
    partition = await make_stream(broker)
    kit.put(partition, answers, "a")
    await settle(broker, answers, 1)
    disk.fail("sync", "metadata.log", times=times)
    disk.fail("names", "/data", times=times - 1)
    with pytest.raises(LogPoisonedError):
        await broker.delete_stream("s")
    kit.put(partition, answers, "b")
    await answers.wait(2)
    assert ("b" in answers.acks) == (times == 1)
    disk.heal()
    await healed(broker, kit)
    kit.put(partition, answers, "c")
    await settle(broker, answers, 3)
    stored = kit.values(partition)
    assert "c" in answers.acks
    await broker.stop()
    broker = await open_broker()
    assert kit.values(broker.stream("s").partition(0)) == stored


async def test_space_is_found_again_without_a_publisher(
    broker, partition, answers, disk, clock, kit, settle
):
    """A broker that is not ready gets no publishes, so it checks for space itself."""
    disk.fill()
    kit.put(partition, answers, "big", value=bytes(PENDING_BYTES_MAX))
    await settle(broker, answers, 1)
    clock.advance_ms(60_000)
    await asyncio.sleep(0.12)
    assert "disk is full" in broker.why_not_ready
    disk.heal()
    clock.advance_ms(60_000)
    await kit.until(lambda: not broker.why_not_ready)
    assert len(list((broker.data_dir / "journal").glob("space*"))) == 0


@pytest.mark.usefixtures("without_spares")
async def test_a_start_that_finds_no_space_says_where_and_for_what(
    broker, partition, open_broker, answers, disk, kit, settle
):
    """The error has the directory, since records of a stopped broker cannot be deleted."""
    kit.put(partition, answers, "a", value=bytes(1000))
    await settle(broker, answers, 1)
    kit.abandon(broker)
    disk.fill("/logs/")
    with pytest.raises(DiskFullError, match=r"no space left in .*/data: recovery writes records"):
        await open_broker()
    disk.heal()
    again = await open_broker()
    assert kit.values(again.stream("s").partition(0)) == [bytes(1000)]


async def test_a_start_without_space_for_the_first_record_is_not_ready(
    broker, open_broker, clock, disk, kit
):
    """The broker notices without a publish; readers are served, and it checks for space."""
    kit.abandon(broker)
    disk.fill()
    broker = await open_broker()
    assert "disk is full" in broker.why_not_ready
    disk.heal()
    await asyncio.sleep(0.12)
    clock.advance_ms(60_000)
    await kit.until(lambda: not broker.why_not_ready)


async def test_clients_that_cannot_begin_to_publish_make_it_not_ready(broker, disk, clock, kit):
    """Their ids are kept in the metadata, which may need space when the journal has some."""
    disk.fill("metadata")
    with pytest.raises(DiskFullError):
        await broker.new_producer_id()
    assert "disk is full" in broker.why_not_ready
    disk.heal()
    await asyncio.sleep(0.12)
    clock.advance_ms(60_000)
    await kit.until(lambda: not broker.why_not_ready)
    assert await broker.new_producer_id() > 0
