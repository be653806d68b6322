"""One replica's driver with a real log, a group commit on command, and messages by hand."""

from types import SimpleNamespace

import msgspec
import pytest

from strandline.broker.cluster.replica import ReplicaDriver
from strandline.broker.write_path.append_queue import GATHERING_MS_MAX
from strandline.broker.write_path.partition import Admission, Partition
from strandline.broker.write_path.send_queue import SendQueue
from strandline.clock import ManualClock
from strandline.config import LimitsConfig, StreamConfig
from strandline.core.replication import events as ev
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import (
    Acked,
    BatchRef,
    Diverged,
    Fetch,
    Replicate,
    StartAt,
)
from strandline.core.replication.replica import Replica
from strandline.core.replication.state import LogState
from strandline.errors import DiskFullError, NotLeaderError, StrandlineError, UnavailableError
from strandline.record.batch import read_header
from strandline.record.codec import Stamp, encode_records
from strandline.storage.log import Log
from strandline.telemetry import Telemetry
from strandline.types import PartitionName

ME, LEADER, OTHER = 1, 2, 3
CONFIG = StreamConfig(name="s", subject="s", replicas=3, min_isr=2, acks="replicated")


def batch(base, count=1, epoch=1):
    data = encode_records([b"v"] * count, ["s"] * count, Stamp(base, epoch, 1, "none"))
    header = read_header(data)
    return BatchRef(header.base_offset, header.next_offset, header.leader_epoch, len(data)), data


class Around:
    """A replica host whose group commit is taken apart: copies wait for ``write`` and ``sync``."""

    def __init__(self):
        self.poisoned = []
        poison = self.poisoned.append
        catch_up = SimpleNamespace(submit=self._submit, change=self._change)
        self.committer = SimpleNamespace(catch_up=catch_up, poison=poison)
        self.telemetry = Telemetry()
        self.waiting, self.under_way, self.sent, self.answered = [], [], [], []
        self.driver, self.is_cutting_held, self.cuts = None, False, []
        self.rates = {}
        self.time_ms, self.committed_to = 0.0, []

    def _submit(self, write):
        self.waiting.append(write)

    def write(self, error=None):
        """Copies reach the log, or not."""
        taken, self.waiting = self.waiting, []
        for write in taken:
            if error is None:
                for data in write.batches:
                    write.log.append(data, read_header(data))
                self.under_way.append(write)
            else:
                write.done(error)

    def _change(self, log, work, done):
        """Truncate a log, at once or when the test allows it."""
        self.cuts.append((work, done))
        if not self.is_cutting_held:
            self.cut()

    def cut(self):
        """Run the pending truncations, as a thread would."""
        cuts, self.cuts = self.cuts, []
        for work, done in cuts:
            error = None
            try:
                work(0)
            except StrandlineError as failure:
                error = failure
            done(error)

    def sync(self):
        """End the group commit."""
        under_way, self.under_way = self.under_way, []
        for write in under_way:
            write.done(None)
        self.driver.flush()

    def now_ms(self):
        return 0

    def precise_ms(self):
        return self.time_ms

    def committed(self, partition):
        self.committed_to.append(partition.high_watermark)

    def send(self, _, effect):
        self.sent.append((effect.to, effect.message))

    def touched(self, _):
        pass

    def propose_isr(self, driver, proposal):
        pass

    def answer(self, partition, waiting):
        self.answered += [each.offset for each in waiting]
        for each in waiting:
            each.ack_sink.acked(each.token, partition.name, each.offset, duplicate=each.duplicate)

    def in_thread(self, work, done):
        work()
        done()

    def move_rate(self, log_id, follower):
        return self.rates.get(follower)

    def not_leader(self, partition):
        return NotLeaderError(f"{partition.name} is led elsewhere")

    def last(self, kind):
        """The newest message of a kind."""
        return next(message for _, message in reversed(self.sent) if isinstance(message, kind))


@pytest.fixture
def host():
    return Around()


@pytest.fixture
def driver(tmp_path, disk, host):
    log = Log.open(tmp_path / "log", disk=disk, segment_bytes=1 << 16, segment_age_ms=10**9)
    send_queue = SendQueue(loop=SimpleNamespace(call_soon=lambda *_: None))
    admission = Admission(
        LimitsConfig(), clock=ManualClock(), wake=lambda: None, send_queue=send_queue
    )
    partition = Partition(
        PartitionName("s", 0), CONFIG, log, log_id=1, leader_epoch=0, admission=admission
    )
    replica = Replica(ME, LogState(), limits=ReplicationLimits(), session=100, incarnation="i")
    host.driver = ReplicaDriver(partition, replica, host)
    return host.driver


def assign(driver, leader, epoch, isr=(1, 2, 3)):
    driver.step(
        ev.Assigned(
            epoch=epoch, leader=leader, replicas=(1, 2, 3), isr=isr, version=epoch, min_isr=2
        )
    )


def copy(driver, host, *batches, high_watermark=0):
    """The leader sends batches in the session that is open."""
    fetch = host.last(Fetch)
    base = driver.replica.log.log_end_offset
    refs, data = zip(*batches, strict=True)
    message = Replicate(fetch.epoch, fetch.session, base, high_watermark, refs)
    driver.step(ev.Received(LEADER, message, data))


def test_copies_are_acked_after_the_sync_and_committed_when_heard(driver, host):
    """A replicated batch counts once synced, and is served up to the received high watermark."""
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3), batch(3, 2), high_watermark=4)
    assert not [m for _, m in host.sent if isinstance(m, Acked)]
    host.write()
    assert driver.partition.high_watermark == 0
    host.sync()
    assert host.last(Acked).durable_offset == 5
    assert driver.partition.high_watermark == 4


def test_a_restart_of_the_log_waits_for_the_copies_before_it(driver, host):
    """Batches in progress are finished, then the log starts empty at the leader's log start."""
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3))
    fetch = host.last(Fetch)
    driver.step(ev.Received(LEADER, StartAt(1, fetch.session, 700)))
    assert driver.log.log_end_offset == 0
    host.write()
    host.sync()
    assert (driver.log.log_start_offset, driver.log.log_end_offset) == (700, 700)
    assert driver.partition.high_watermark == 700
    copy(driver, host, batch(700, 2), high_watermark=702)
    host.write()
    host.sync()
    assert host.last(Acked).durable_offset == 702
    assert driver.partition.high_watermark == 702


def test_a_full_disk_gives_the_stream_up_and_begins_again(driver, host):
    """Batches that were not stored are fetched again from the real log end."""
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3))
    host.write()
    host.sync()
    copy(driver, host, batch(3, 3))
    copy(driver, host, batch(6, 3))
    host.write(DiskFullError("full"))
    assert driver.replica.log.log_end_offset == driver.log.log_end_offset == 3
    assert driver.replica.deadline_ms is not None


async def test_a_leader_waits_for_its_own_copies(driver, host, answers, kit):
    """Elected during writes, it leads once they are in its log, and continues there."""
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3))
    assign(driver, ME, 2)
    kit.put(driver.partition, answers, "early")
    assert isinstance(answers.errors["early"], NotLeaderError)
    assert not driver.partition.knows_end
    host.write()
    host.sync()
    assert driver.partition.leader_epoch == 2
    kit.put(driver.partition, answers, "x")
    assert driver.partition.next_offset == 4
    assert "x" not in answers.errors


async def test_a_new_leader_knows_the_end_once_its_followers_have_answered(driver, host):
    """Until then its high watermark may be older than its predecessor's."""
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3), high_watermark=1)
    host.write()
    host.sync()
    assign(driver, ME, 2)
    for broker in (LEADER, OTHER):
        assert (driver.partition.high_watermark, driver.partition.knows_end) == (1, False)
        driver.step(ev.Received(broker, Fetch(2, 5, 3, 1, "i")))
        driver.flush()
        driver.step(ev.Received(broker, Acked(2, 5, 3, 0)))
    assert (driver.partition.high_watermark, driver.partition.knows_end) == (3, True)


async def test_who_led_before_knows_the_end_only_when_it_leads_again(driver, host):
    """Its earlier knowledge lacks what its successor acknowledged."""
    assert not driver.partition.knows_end
    assign(driver, ME, 1)
    assert driver.partition.knows_end
    assign(driver, LEADER, 2)
    copy(driver, host, batch(0, 3), high_watermark=3)
    host.write()
    host.sync()
    assert driver.partition.high_watermark == 3
    assert not driver.partition.knows_end
    assign(driver, ME, 3)
    assert driver.partition.knows_end


def test_a_sync_counts_only_what_was_not_cut_since(driver, host):
    """A truncation during the sync lowers the synced offset."""
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3), batch(3, 3))
    host.write()
    host.sync()
    assign(driver, LEADER, 2)
    host.is_cutting_held = True
    fetch = host.last(Fetch)
    driver.step(ev.Received(LEADER, Diverged(2, fetch.session, 1, 3)))
    assert driver.log.log_end_offset == 6
    driver._notify_synced(6)
    assert driver.replica.log.durable_offset == 3
    host.cut()
    assert driver.log.log_end_offset == driver.replica.log.durable_offset == 3
    assert host.last(Fetch).end_offset == 3


async def test_what_comes_while_the_log_is_cut_waits_for_it(driver, host, kit, answers):
    """Batches, commits and a new leadership wait for the truncation."""
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3), batch(3, 3))
    host.write()
    host.sync()
    assign(driver, LEADER, 2)
    host.is_cutting_held = True
    fetch = host.last(Fetch)
    driver.step(ev.Received(LEADER, Diverged(2, fetch.session, 1, 3)))
    copy(driver, host, batch(3, 2, epoch=2), high_watermark=5)
    assert (host.waiting, driver.partition.high_watermark) == ([], 0)
    assign(driver, ME, 3)
    kit.put(driver.partition, answers, "early")
    assert isinstance(answers.errors["early"], NotLeaderError)
    host.cut()
    assert driver.partition.high_watermark == 3
    host.write()
    host.sync()
    assert driver.log.log_end_offset == 5
    assert driver.partition.leader_epoch == 3


def test_a_replica_that_is_dropped_while_its_log_is_cut_says_nothing_more(driver, host):
    """The stream was deleted meanwhile, or the storage failed."""
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3), batch(3, 3))
    host.write()
    host.sync()
    assign(driver, LEADER, 2)
    host.is_cutting_held = True
    driver.step(ev.Received(LEADER, Diverged(2, host.last(Fetch).session, 1, 3)))
    sent = len(host.sent)
    driver.drop(UnavailableError("gone"))
    host.cut()
    assert len(host.sent) == sent
    assert host.poisoned == []


def test_a_log_that_cannot_be_truncated_is_reopened(driver, host, disk):
    """The replica's state no longer fits, so nothing may be acknowledged for that log."""
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3), batch(3, 3))
    host.write()
    host.sync()
    assign(driver, LEADER, 2)
    driver.log.write_pending()
    disk.fail("sync")
    fetch = host.last(Fetch)
    driver.step(ev.Received(LEADER, Diverged(2, fetch.session, 1, 3)))
    assert [error.code for error in host.poisoned] == ["log_poisoned"]


def write_chunks(driver):
    """Write the accepted records like a group commit; return each batch and its end."""
    partition, written = driver.partition, []
    chunks, _, _ = partition.take(1 << 20, 1 << 20)
    for chunk in chunks:
        driver.journaled(chunk, partition.write(chunk, 1, []))
        written.append((chunk, chunk.base_offset + chunk.count))
    return written


def test_acks_come_as_late_as_they_promise(driver, host, answers, kit):
    """``disk`` after our own sync, ``replicated`` when every in-sync replica has synced."""
    assign(driver, ME, 1)
    kit.put(driver.partition, answers, "disk", acks="disk")
    kit.put(driver.partition, answers, "all")
    [(chunk, end)] = write_chunks(driver)
    assert not answers.acks
    driver.synced(chunk, end)
    assert answers.acks == {"disk": 0}
    for broker in (LEADER, OTHER):
        driver.step(ev.Received(broker, Fetch(1, 5, 0, -1, "i")))
        driver.step(ev.Received(broker, Acked(1, 5, 0, 0)))
        driver.flush()
    for broker in (LEADER, OTHER):
        assert "all" not in answers.acks
        driver.step(ev.Received(broker, Acked(1, 5, 2, 0)))
    assert answers.acks == {"disk": 0, "all": 1}
    assert driver.partition.high_watermark == 2


def test_what_comes_is_gathered_while_two_chunks_are_on_their_way(driver, host, answers, kit):
    """Until one of them is committed, or that takes longer than commits do."""
    assign(driver, ME, 1)
    for number in (0, 1):
        assert not driver.is_gathering
        kit.put(driver.partition, answers, number)
        for chunk, end in write_chunks(driver):
            driver.synced(chunk, end)
        host.time_ms += 5
    assert driver.is_gathering
    for broker in (LEADER, OTHER):
        driver.step(ev.Received(broker, Fetch(1, 5, 0, -1, "i")))
        driver.step(ev.Received(broker, Acked(1, 5, 0, 0)))
        driver.flush()
        driver.step(ev.Received(broker, Acked(1, 5, 1, 0)))
    assert host.committed_to == [1]
    assert not driver.is_gathering
    kit.put(driver.partition, answers, 2)
    write_chunks(driver)
    assert driver.is_gathering
    host.time_ms = 5 + GATHERING_MS_MAX
    assert not driver.is_gathering


def test_a_lost_leadership_tells_that_the_outcome_is_unknown(driver, answers, kit):
    """A waiting publisher is notified once, even if its sync ends later."""
    assign(driver, ME, 1)
    kit.put(driver.partition, answers, "synced")
    for chunk, end in write_chunks(driver):
        driver.synced(chunk, end)
    kit.put(driver.partition, answers, "syncing")
    syncing = write_chunks(driver)
    kit.put(driver.partition, answers, "not written")
    assign(driver, LEADER, 2)
    for chunk, end in syncing:
        driver.synced(chunk, end)
    assert isinstance(answers.errors["not written"], NotLeaderError)
    for token in ("synced", "syncing"):
        assert type(answers.errors[token]) is UnavailableError
        assert "Nats-Msg-Id" in answers.errors[token].message


def test_a_copy_that_is_filling_starts_over_under_another_leader(driver, host):
    """Its log is empty, and readers see nothing, until the new leader has given it all."""
    told = ev.Assigned(1, LEADER, (1, 2, 3), (2, 3), 1, 1, filling=(ME,))
    driver.step(told)
    copy(driver, host, batch(0, 3), batch(3, 3), high_watermark=9)
    host.write()
    host.sync()
    assert driver.partition.high_watermark == 6
    driver.step(msgspec.structs.replace(told, epoch=2, leader=OTHER, version=2))
    assert (driver.log.log_start_offset, driver.log.log_end_offset) == (0, 0)
    assert driver.partition.high_watermark == 0
    fetch = host.last(Fetch)
    assert (fetch.epoch, fetch.end_offset) == (2, 0)
    refs, data = zip(batch(0, 4), strict=True)
    driver.step(ev.Received(OTHER, Replicate(2, fetch.session, 0, 9, refs), data))
    host.write()
    host.sync()
    assert host.last(Acked).durable_offset == driver.partition.high_watermark == 4


def test_a_compacted_copy_that_loses_committed_records_begins_again(driver, host):
    """Truncated records had replaced compacted ones, which only the leader has."""
    driver.partition.config = msgspec.structs.replace(CONFIG, compact=True)
    assign(driver, LEADER, 1)
    copy(driver, host, batch(0, 3), batch(3, 3), high_watermark=6)
    host.write()
    host.sync()
    assert driver.partition.high_watermark == 6
    driver.step(
        ev.Assigned(
            epoch=2, leader=OTHER, replicas=(1, 2, 3), isr=(3,), version=2, min_isr=1, unclean=True
        )
    )
    fetch = host.last(Fetch)
    driver.step(ev.Received(OTHER, Diverged(2, fetch.session, 1, 3)))
    assert driver.log.log_end_offset == 0
    assert driver.partition.high_watermark == 0
    assert driver.replica.log.log_end_offset == 0
