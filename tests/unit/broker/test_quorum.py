"""Members of the consensus group with real group commits and logs, over a simulated network."""

import asyncio
import errno
from pathlib import Path

import pytest

from strandline.broker import quorum as quorum_module
from strandline.broker.quorum import Quorum
from strandline.broker.quorum_store import LOG_ID, QuorumStore
from strandline.broker.write_path.group_commit import GroupCommitter
from strandline.broker.write_path.sync_policy import SyncPolicy
from strandline.clock import SystemClock
from strandline.config import LimitsConfig
from strandline.core.raft.messages import HardState, Kind, Members, RaftEntry, Snapshot
from strandline.errors import (
    CorruptBatchError,
    NotLeaderError,
    StrandlineError,
    UnavailableError,
)
from strandline.record.batch import read_header
from strandline.storage.recovery import LogPlan, recover
from strandline.storage.twin_file import twin_of
from strandline.telemetry import Telemetry

IDS = (1, 2, 3)
FOUNDERS = Members(voters=IDS)


class Words:
    """A machine that keeps every command, in order."""

    def __init__(self):
        self.words = []

    def apply(self, command):
        self.words.append(command)
        return len(self.words)

    def snapshot(self):
        return b" ".join(self.words)

    def restore(self, data):
        self.words = data.split(b" ") if data else []


class Member:
    """One broker's storage, group committer and member."""

    def __init__(self, number, directory, *, disk, net):
        self.number, self.directory, self.disk, self.net = number, directory, disk, net
        self.clock = SystemClock()
        self.machine = Words()
        loop = asyncio.get_running_loop()
        plans = {LOG_ID: LogPlan(directory / "quorum", 64 << 10, 10**9)}
        self.storage = recover(directory, plans, disk=disk, file_bytes=64 << 10)
        self.poisoned = []
        self.committer = GroupCommitter(
            loop,
            LimitsConfig(),
            clock=self.clock,
            telemetry=Telemetry(),
            on_poisoned=self.poisoned.append,
        )
        self.syncer = SyncPolicy(loop, disk, self.clock)
        self.committer.attach(self.storage.journal, self.syncer)
        self.store = QuorumStore(directory, disk=disk, log=self.storage.logs[LOG_ID])
        self.quorum = Quorum(
            number,
            FOUNDERS,
            store=self.store,
            machine=self.machine,
            committer=self.committer,
            clock=self.clock,
            send=net.carry,
        )
        self.ticking = asyncio.create_task(self.quorum.run())

    def kill(self):
        """Finish nothing, and send and receive nothing more."""
        self.ticking.cancel()
        self.net.members.pop(self.number, None)
        self.syncer.close()
        self.storage.journal.close()
        for log in self.storage.logs.values():
            log.close()


class Net:
    """Members that receive messages a moment later, except isolated ones."""

    def __init__(self, tmp_path, kit):
        self.tmp_path, self.kit = tmp_path, kit
        self.members, self.disks, self.cut_off = {}, {}, set()

    def carry(self, envelope):
        loop = asyncio.get_running_loop()
        loop.call_soon(self._deliver, envelope)

    def _deliver(self, envelope):
        target = self.members.get(envelope.receiver)
        if target is not None and not {envelope.sender, envelope.receiver} & self.cut_off:
            target.quorum.receive(envelope)

    def start(self, number):
        disk = self.disks.setdefault(number, self.kit.Disk())
        directory = Path(self.tmp_path) / str(number)
        directory.mkdir(exist_ok=True)
        self.members[number] = Member(number, directory, disk=disk, net=self)
        return self.members[number]

    async def leader(self):
        """The member that leads, once one does that the others follow."""
        found = []

        def agreed():
            inside = [m for n, m in self.members.items() if n not in self.cut_off]
            leading = [m for m in inside if m.quorum.is_leading]
            found[:] = leading
            return len(leading) == 1 and all(
                m.quorum.leader == leading[0].number for m in inside if m.quorum.leader
            )

        await self.kit.until(agreed)
        return found[0]

    async def say(self, *words):
        """Propose commands to the present leader; retry until they are committed."""
        for word in words:
            async with asyncio.timeout(60):
                while True:
                    leader = await self.leader()
                    try:
                        await leader.quorum.propose(word, timeout_s=60)
                        break
                    except NotLeaderError:
                        await asyncio.sleep(0.01)

    async def agree(self, words, *numbers):
        """Wait until members have applied just these words."""
        for number in numbers or tuple(self.members):
            machine = self.members[number].machine
            await self.kit.until(lambda machine=machine: machine.words == words)


@pytest.fixture
async def net(tmp_path, kit, monkeypatch):
    monkeypatch.setattr(quorum_module, "TICK_MS", 5.0)
    made = Net(tmp_path, kit)
    for number in IDS:
        made.start(number)
    yield made
    for member in list(made.members.values()):
        member.kill()


async def test_what_a_quorum_confirmed_is_applied_everywhere_in_order(net):
    """Commands proposed to the leader reach every machine, and the proposer gets its answer."""
    leader = await net.leader()
    assert await leader.quorum.propose(b"a", timeout_s=60) == 1
    answers = [leader.quorum.propose(word, timeout_s=60) for word in (b"b", b"c", b"d")]
    assert await asyncio.gather(*answers) == [2, 3, 4]
    await net.agree([b"a", b"b", b"c", b"d"])
    await leader.quorum.barrier(timeout_s=5)


async def test_a_member_that_does_not_lead_says_so(net):
    """A proposal to another member does nothing."""
    leader = await net.leader()
    other = next(m for n, m in net.members.items() if n != leader.number)
    with pytest.raises(NotLeaderError):
        await other.quorum.propose(b"a", timeout_s=1)


async def test_crashes_forget_nothing_confirmed(net):
    """Each member is killed and reloads from its disk; every command is there, once."""
    said = []
    for number in IDS:
        words = [b"%d-%d" % (number, n) for n in range(5)]
        await net.say(*words)
        said += words
        net.members[number].kill()
        await net.say(b"%d-away" % number)
        said.append(b"%d-away" % number)
        net.start(number)
        await net.agree(said, number)
    for member in list(net.members.values()):
        member.kill()
    for number in IDS:
        net.start(number)
    await net.say(b"after all")
    await net.agree([*said, b"after all"])


async def test_a_deposed_leaders_words_are_replaced(net):
    """Entries of a leader without a quorum are truncated once there is a new leader."""
    await net.say(b"common")
    old = await net.leader()
    net.cut_off.add(old.number)
    lost = asyncio.gather(
        *(old.quorum.propose(b"lost-%d" % n, timeout_s=20) for n in range(3)),
        return_exceptions=True,
    )
    await net.say(b"new")
    net.cut_off.clear()
    await net.say(b"later")
    await net.agree([b"common", b"new", b"later"])
    old.kill()
    net.start(old.number)
    await net.agree([b"common", b"new", b"later"])
    assert all(isinstance(each, StrandlineError) for each in await lost)


async def test_a_member_far_behind_is_given_a_snapshot(net, monkeypatch):
    """The snapshot replaces dropped entries, and the log continues after it."""
    monkeypatch.setattr(quorum_module, "SNAPSHOT_ENTRIES", 20)
    monkeypatch.setattr(quorum_module, "KEPT_ENTRIES", 5)
    leader = await net.leader()
    away = next(n for n in IDS if n != leader.number)
    net.members[away].kill()
    words = [b"%d" % n for n in range(60)]
    await net.say(*words)
    net.start(away)
    await net.agree(words)
    assert net.members[away].store.log.log_start_offset > 0, "it began at the snapshot"
    await net.say(b"behind")
    net.members[away].kill()
    net.start(away)
    await net.agree([*words, b"behind"])


async def test_a_member_with_a_full_disk_takes_part_again_when_there_is_space(net):
    """While it cannot write it is silent; the others decide without it, and it catches up."""
    await net.say(b"before")
    leader = await net.leader()
    number = next(n for n in IDS if n != leader.number)
    net.disks[number].fail("create", "journal", code=errno.ENOSPC)
    words = [b"x" * 3000 + b"%d" % n for n in range(40)]
    await net.say(*words)
    assert len(net.members[number].machine.words) < 41, "there was no room for all of them"
    net.disks[number].heal()
    await net.say(b"after")
    await net.agree([b"before", *words, b"after"])


async def test_a_member_whose_storage_failed_takes_no_part(net):
    """It stops leading, fails waiting callers, and sends nothing; the others continue."""
    await net.say(b"before")
    failed = await net.leader()
    waiting = asyncio.create_task(failed.quorum.propose(b"lost?", timeout_s=60))
    await asyncio.sleep(0)
    # Where the turn finds the journal poisoned it tells the member, which is not asked again.
    failed.quorum.fail(UnavailableError("the journal cannot be written"))
    failed.storage.logs[LOG_ID].poisoned = True
    assert not failed.quorum.is_leading
    assert failed.quorum.leader is None
    with pytest.raises(StrandlineError, match="the journal cannot be written"):
        await waiting
    with pytest.raises(StrandlineError, match=r"cannot be written|reopen the log"):
        await failed.quorum.propose(b"refused", timeout_s=60)
    term, said = failed.quorum.term, []
    failed.quorum._send = said.append
    others = [number for number in IDS if number != failed.number]
    net.cut_off.add(failed.number)
    await net.say(b"after")
    await net.kit.until(lambda: all(net.members[n].machine.words[-1] == b"after" for n in others))
    net.cut_off.clear()
    await asyncio.sleep(20 * quorum_module.TICK_MS / 1e3)
    assert said == []
    assert (failed.quorum.term, failed.quorum.is_leading) == (term, False)
    assert b"after" not in failed.machine.words


async def test_votes_survive_and_corruption_to_them_is_rejected(net):
    """Term and vote are read back as written; corrupt with their twin they are never guessed at."""
    await net.say(b"a")
    member = net.members[1]
    member.kill()
    path = member.directory / "quorum-vote"
    data = path.read_bytes()
    for each in (path, twin_of(path)):
        each.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptBatchError):
        net.start(1)
    path.write_bytes(data)
    net.start(1)
    await net.agree([b"a"])


async def test_the_state_on_disk_is_the_state_that_was_saved(net):
    """A store gives back hard state and snapshot exactly, and continues empty at the snapshot."""
    store = net.members[2].store
    net.members[2].ticking.cancel()
    net.members.pop(2)
    store.save_hard(HardState(term=9, vote=3))
    snapshot = Snapshot(index=500, term=9, members=FOUNDERS, data=b"all")
    store.install(snapshot)
    assert store.load(FOUNDERS) == (HardState(term=9, vote=3), snapshot, [])
    assert store.log.log_start_offset == store.log.log_end_offset == 500


async def test_who_decides_alone_is_never_cut_off(net, kit, monkeypatch):
    """The only member gets no messages, and still counts as connected to the quorum."""
    monkeypatch.setitem(globals(), "FOUNDERS", Members(voters=(4,)))
    alone = net.start(4)
    await kit.until(lambda: alone.quorum.is_leading)
    for _ in range(2):
        now_ms = alone.clock.monotonic_ms()
        await kit.until(lambda since_ms=now_ms: alone.quorum.contact_ms > since_ms)


@pytest.mark.parametrize(("term", "kept"), [(1, 3), (2, 0)])
async def test_entries_stay_behind_a_snapshot_that_they_continue(net, term, kept):
    """An entry of another term at its end is of a history that was given up, like those after."""
    store = net.members[2].store
    net.members[2].ticking.cancel()
    net.members.pop(2)
    first = store.log.log_end_offset
    snapshot = Snapshot(index=first + 2, term=term, members=FOUNDERS, data=b"all")
    entries = [RaftEntry(first + 1 + n, 1, Kind.COMMAND, b"%d" % n) for n in range(5)]
    for batch in store.batches(entries, 1):
        store.log.append(batch, read_header(batch))
    store.install(snapshot)
    _, found, rest = store.load(FOUNDERS)
    assert found == snapshot
    assert [entry.data for entry in rest] == [b"2", b"3", b"4"][:kept]
    assert store.log.log_end_offset == first + 2 + kept
