"""The small parts of a cluster's broker: files, epochs, frames; and logs that are restarted."""

import errno

import msgspec
import pytest
from crc32c import crc32c

from strandline.broker.cluster import channels
from strandline.broker.cluster.epochs import leader_epochs
from strandline.broker.cluster.identity import FILE_NAME as IDENTITY_NAME
from strandline.broker.cluster.identity import begin_incarnation, load_identity
from strandline.broker.cluster.opening import LogToOpen, open_logs
from strandline.broker.cluster.reading import read_batches, read_range
from strandline.broker.cluster.state_machine import MetadataMachine
from strandline.broker.cluster.watermark_file import FILE_NAME as WATERMARKS_NAME
from strandline.broker.cluster.watermark_file import load_watermarks, save_watermarks
from strandline.broker.opening import log_plan
from strandline.broker.peers.frame import Frame
from strandline.config import StreamConfig
from strandline.core.metadata.commands import CreateStream, OpenSession, encode_entry
from strandline.core.raft.messages import Envelope, VoteReply
from strandline.core.replication.messages import BatchRef, Replicate
from strandline.errors import (
    CorruptBatchError,
    DiskFullError,
    InvalidConfigError,
    InvalidRecordError,
    StrandlineError,
)
from strandline.record.batch import read_header
from strandline.record.codec import Stamp, encode_filler, encode_records
from strandline.storage.log import Log
from strandline.storage.log_generation import read_generation
from strandline.storage.recovery import LogPlan, recover
from strandline.storage.twin_file import twin_of
from strandline.types import Offset


def batch(base, count=1, epoch=0):
    """A batch of ``count`` records."""
    return encode_records([b"v"] * count, ["s"] * count, Stamp(base, epoch, 1, "none"))


def ref(data):
    header = read_header(data)
    return BatchRef(header.base_offset, header.next_offset, header.leader_epoch, len(data))


def append(log, *batches):
    for each in batches:
        log.append(each, read_header(each))


def open_log(directory, disk):
    return Log.open(directory, disk=disk, segment_bytes=1 << 10, segment_age_ms=10**9)


@pytest.mark.parametrize(
    "epochs",
    [[], [0], [3, 3, 3], [0, 1, 2, 3], [0] * 40 + [1] + [7] * 40, [0] * 7 + [2] * 90],
)
def test_epochs_are_found_in_the_batches(tmp_path, disk, epochs):
    """The list is exactly where each epoch begins, over segments of any number."""
    log = open_log(tmp_path / "log", disk)
    wanted, offset = [], 0
    for number, epoch in enumerate(epochs):
        if not wanted or wanted[-1][0] != epoch:
            wanted.append((epoch, offset))
        append(log, batch(offset, 1 + number % 3, epoch))
        offset = log.log_end_offset
    assert leader_epochs(log) == tuple(wanted)


@pytest.mark.parametrize("hit", range(0, 40, 3))
def test_epochs_are_found_around_corruption(tmp_path, disk, hit):
    """A batch that cannot be read hides no later epoch, and moves no other one's start."""
    log = open_log(tmp_path / "log", disk)
    epochs = [0] * 10 + [1] * 10 + [4] * 20
    for number, epoch in enumerate(epochs):
        append(log, batch(number, 1, epoch))
    log.checkpoint()
    log.flush()
    found = log.read(hit, 1)
    with found.file.open("r+b") as file:
        file.seek(found.position)
        file.write(b"\0" * 16)
    starts = {epoch: epochs.index(epoch) for epoch in (0, 1, 4)}
    wanted = {epoch: start + (start == hit and start > 0) for epoch, start in starts.items()}
    assert dict(leader_epochs(log)) == wanted


def test_the_first_epoch_begins_at_the_log_start(tmp_path, disk):
    """Records that retention removed do not count, also within a batch."""
    log = open_log(tmp_path / "log", disk)
    append(log, batch(0, 5, 0), batch(5, 5, 1), batch(10, 5, 2))
    log.delete_before(7)
    assert leader_epochs(log) == ((1, 7), (2, 10))


def test_an_identity_is_for_ever_and_counts_starts(tmp_path, disk):
    """A directory belongs to one broker; another is rejected, and corruption is an error."""
    first = begin_incarnation(tmp_path, "c", 1, disk=disk)
    second = begin_incarnation(tmp_path, "c", 1, disk=disk)
    assert (first.starts, second.starts) == (1, 2)
    assert first.directory_id == second.directory_id
    for cluster, broker in (("c", 2), ("d", 1)):
        with pytest.raises(InvalidConfigError, match="belongs to broker 1 of cluster 'c'"):
            begin_incarnation(tmp_path, cluster, broker, disk=disk)
    path = tmp_path / IDENTITY_NAME
    for each in (path, twin_of(path)):
        each.write_bytes(each.read_bytes().replace(b'"c"', b'"x"'))
    with pytest.raises(CorruptBatchError):
        load_identity(tmp_path, disk=disk)


def test_founders_are_noted_once(tmp_path, disk):
    """Later settings with more brokers do not change the voters, nor does joining."""
    for founders in ((1, 2, 3), (1, 2, 3, 4), ()):
        known = begin_incarnation(tmp_path / "a", "c", 1, disk=disk, founders=founders)
        assert known.founders == (1, 2, 3)
    assert begin_incarnation(tmp_path / "b", "c", 4, disk=disk).founders == ()
    assert begin_incarnation(tmp_path / "b", "c", 4, disk=disk, founders=(1, 4)).founders == ()


def test_a_directory_of_an_earlier_version_notes_its_founders(tmp_path, disk):
    """It had none written down: those of the settings are taken, once."""
    body = b'{"cluster":"c","broker":1,"directory_id":"d","starts":3}'
    (tmp_path / IDENTITY_NAME).write_bytes(b"%08x\n%b\n" % (crc32c(body), body))
    assert begin_incarnation(tmp_path, "c", 1, disk=disk, founders=(1, 2)).founders == (1, 2)
    assert begin_incarnation(tmp_path, "c", 1, disk=disk, founders=(1, 2, 3)).founders == (1, 2)


def test_a_broker_starts_on_a_full_disk(tmp_path, disk):
    """Its directory is known already; a new one needs space."""
    disk.fail("write", "broker.json", code=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        begin_incarnation(tmp_path, "c", 1, disk=disk)
    disk.heal()
    known = begin_incarnation(tmp_path, "c", 1, disk=disk)
    disk.fail("write", "broker.json", code=errno.ENOSPC)
    assert begin_incarnation(tmp_path, "c", 1, disk=disk).directory_id == known.directory_id


def test_watermarks_are_kept_and_corruption_counts_as_missing(tmp_path, disk):
    """They are a hint: a corrupt file is not used."""
    assert load_watermarks(tmp_path, disk=disk) == {}
    save_watermarks(tmp_path, {7: 100, 8: 0}, disk=disk)
    assert load_watermarks(tmp_path, disk=disk) == {7: 100, 8: 0}
    path = tmp_path / WATERMARKS_NAME
    path.write_bytes(path.read_bytes()[:-1] + b"\x05")
    assert load_watermarks(tmp_path, disk=disk) == {}


def test_frames_are_what_they_say(tmp_path):
    """A batch that differs from its reference, or a message of another sender, is rejected."""
    data = batch(10, 3, 2)
    message = Replicate(2, 1, 10, 5, (ref(data),))
    header = channels.encode_replication(9, message)
    log_id, event = channels.decode_replication(Frame(2, header, (memoryview(data),)), 3)
    assert (log_id, event.sender, event.message) == (9, 3, message)
    other = memoryview(batch(10, 3, 1))
    assert len(other) == len(data)
    for broken in (Frame(2, header, (other,)), Frame(2, header[:5]), Frame(2, header + b"x")):
        with pytest.raises(InvalidRecordError):
            channels.decode_replication(broken, 3)
    envelope = Envelope(1, 2, VoteReply(3, True))
    frame = Frame(1, channels.encode_envelope(envelope))
    assert channels.decode_envelope(frame, 1, 2) == envelope
    with pytest.raises(InvalidRecordError):
        channels.decode_envelope(frame, 3, 2)
    with pytest.raises(InvalidRecordError):
        channels.decode_request(Frame(3, b"\xc1"))


def test_the_machine_is_its_snapshot(tmp_path):
    """A restored machine has the same image; an unknown command is an outcome."""
    seen = []
    machine = MetadataMachine(lambda: seen.append(1))
    assert machine.apply(encode_entry(OpenSession())).value == 1
    created = CreateStream(config=StreamConfig(name="s", subject="s"), now_ns=5)
    assert machine.apply(encode_entry(created)).is_applied
    assert not machine.apply(msgspec.msgpack.encode("nonsense")).is_applied
    other = MetadataMachine(lambda: None)
    other.restore(machine.snapshot())
    assert other.image == machine.image
    assert len(seen) == 2


def test_the_name_of_a_new_log_is_durable_with_one_sync(tmp_path, disk):
    """An attempt that could not sync it leaves that to the next one."""
    (tmp_path / "logs").mkdir()
    wanted = [
        LogToOpen(n, log_plan(tmp_path, n, StreamConfig(name="s", subject="s")), None, 0, False)
        for n in (1, 2)
    ]
    outcome = open_logs(wanted[:1], disk=disk, synced_sequence=0)
    assert isinstance(outcome[1], Log)
    assert disk.count("names", "logs") == 1
    disk.fail("names", "logs", times=1)
    assert isinstance(open_logs(wanted[1:], disk=disk, synced_sequence=0)[2], StrandlineError)
    assert disk.count("names", "logs") == 2
    outcome |= open_logs(wanted[1:], disk=disk, synced_sequence=0)
    assert disk.count("names", "logs") == 3
    for log in outcome.values():
        log.close()


@pytest.mark.parametrize("is_open", [False, True])
def test_a_log_whose_name_may_not_be_durable_is_not_used(tmp_path, disk, is_open):
    """Each attempt fails until the name is synced; only a log that it opened itself is closed."""
    plan = log_plan(tmp_path, 2, StreamConfig(name="s", subject="s"))
    (tmp_path / "logs").mkdir()
    first = Log.open(plan.directory, disk=disk, segment_bytes=1 << 20, segment_age_ms=10**9)
    if not is_open:
        first.close()
    wanted = [LogToOpen(2, plan, first if is_open else None, Offset(7), False)]
    disk.fail("names", "logs", times=2)
    for _ in range(2):
        error = open_logs(wanted, disk=disk, synced_sequence=0)[2]
        assert isinstance(error, StrandlineError)
    found = open_logs(wanted, disk=disk, synced_sequence=0)[2]
    assert (found.log_start_offset, found.log_end_offset) == (7, 7)
    assert (found is first) == is_open
    append(found, batch(7))
    found.close()


@pytest.mark.parametrize("appends_after", [0, 2])
def test_a_log_that_was_restarted_stays_restarted(tmp_path, disk, appends_after):
    """After a crash the journal restores only batches after the reset."""
    plans = {5: LogPlan(tmp_path / "logs" / "5", 1 << 10, 10**9)}
    storage = recover(tmp_path, plans, disk=disk, file_bytes=64 << 10)
    log = storage.logs[5]
    for base in range(40):
        data = batch(base)
        append(log, data)
        storage.journal.append([(5, data)])
    log.restart_at(500)
    for number in range(appends_after):
        data = batch(500 + number, epoch=3)
        append(log, data)
        storage.journal.append([(5, data)])
    storage.journal.sync()
    again = recover(tmp_path, plans, disk=disk, file_bytes=64 << 10)
    found = again.logs[5]
    assert (found.log_start_offset, found.log_end_offset) == (500, 500 + appends_after)
    assert not again.report.corruption
    append(found, batch(500 + appends_after, epoch=4))
    assert leader_epochs(found)[-1] == (4, 500 + appends_after)


def test_a_log_that_was_cut_and_went_on_stays_so(tmp_path, disk):
    """A crash after a truncation restores the new batches, not the truncated ones."""
    plans = {5: LogPlan(tmp_path / "logs" / "5", 1 << 10, 10**9)}
    storage = recover(tmp_path, plans, disk=disk, file_bytes=64 << 10)
    log = storage.logs[5]
    for base in range(40):
        data = batch(base)
        append(log, data)
        storage.journal.append([(5, data)])
    storage.journal.sync()
    pending = storage.checkpointer.begin(storage.logs)
    storage.checkpointer.write(pending)
    storage.checkpointer.finish(pending)
    assert log.truncate_to(13) == 13
    data = batch(13, 2, 1)
    append(log, data)
    storage.journal.append([(5, data)])
    storage.journal.sync()
    found = recover(tmp_path, plans, disk=disk, file_bytes=64 << 10).logs[5]
    assert found.log_end_offset == 15
    assert leader_epochs(found) == ((0, 0), (1, 13))


def test_a_placeholder_is_cut_to_what_is_asked_for(tmp_path, disk):
    """Elsewhere it may be several batches: a replica that ends between two continues from there."""
    log = Log.open(tmp_path / "log", disk=disk, segment_bytes=1 << 16, segment_age_ms=0)
    for data in (encode_filler(0, 10, leader_epoch=1), batch(10, 2, epoch=1)):
        log.append(data, read_header(data))
    found = read_batches(log, Offset(4), 1 << 16, below=Offset(12))
    assert [(ref.base_offset, ref.next_offset) for ref, _ in found] == [(4, 10), (10, 12)]
    for first, after in ((0, 10), (2, 6), (0, 3), (9, 10)):
        [(ref, data)] = read_range(log, Offset(first), Offset(after))
        header = read_header(data)
        assert (header.base_offset, header.next_offset) == (first, after)
        assert (ref.leader_epoch, ref.size) == (header.leader_epoch, len(data)) == (1, 96)


def test_nothing_of_an_older_log_with_the_same_id_is_left(tmp_path, disk):
    """A copy that moved away returns as an empty one, and says since when."""
    (tmp_path / "logs").mkdir()
    plan = log_plan(tmp_path, 1, StreamConfig(name="s", subject="s"))
    [old] = open_logs([LogToOpen(1, plan, None, 0, False)], disk=disk, synced_sequence=0).values()
    append(old, batch(0, 5))
    old.checkpoint()
    old.close()
    wanted = [LogToOpen(1, plan, None, 7, True)]
    [new] = open_logs(wanted, disk=disk, synced_sequence=42).values()
    assert (new.log_start_offset, new.log_end_offset) == (7, 7)
    assert read_generation(plan.directory, disk=disk) == 42
    new.close()
