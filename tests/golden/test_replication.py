"""Golden scripts of replication: each event, and what the replicas do.

A line that begins with ``>`` is a command, the lines after it are what came of it, ``#`` explains.
``GOLDEN_UPDATE=1`` writes what comes now into the scripts: read the difference before a commit.

Commands: ``brokers 1 2 3 [min_isr=n] [reads=one]`` · ``elect b [isr=..] [to=..] [unclean]`` ·
``append b n`` · ``flush b`` · ``sync b`` · ``run``: flush, sync and deliver until all is quiet,
saying only what matters · ``deliver [a->b]`` · ``drop|repeat|reverse|hold|unhold a->b`` ·
``cut|heal b``: all links of a broker · ``crash b``: lose what is unsynced · ``wipe b`` ·
``start b`` · ``lost|back a b``: a notices its link to b · ``decide|refuse``: metadata on the oldest
proposal · ``isr 1,2``: metadata by itself · ``forget b``: it is told that a disk was lost ·
``time n`` · ``corrupt b first`` · ``retain b offset`` · ``resign b`` · ``status`` · ``put b v
v``: a batch of numbered records, of which ``v % 101`` is the key, and every fourth deletes it ·
``compact b``: what it holds then, as far as all replicas have its null values.
"""

from collections import deque
from pathlib import Path

import msgspec
import pytest

from simulation.replication_disk import Reach, SimLog
from simulation.replication_keys import StoredKey
from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication import messages as ms
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import BatchRef, decode, encode
from strandline.core.replication.replica import Replica
from strandline.core.replication.state import LogState

SCRIPTS = sorted((Path(__file__).parent / "replication").glob("*.txt"))
LIMITS = ReplicationLimits(
    replica_lag_ms_max=1000, resend_ms=100, window_bytes=1 << 20, read_bytes=1 << 20
)
QUIET = (fx.Send, fx.ReadLog, fx.ReadRange, fx.Append)


class LoseAll:
    """A crash that keeps nothing unsynced."""

    def choice(self, options):
        return options[0]

    def randint(self, low, high):
        return low


def batch(ref):
    return f"{ref.base_offset}-{ref.next_offset}e{ref.leader_epoch}"


def told(message):
    """A message as scripts show it."""
    match message:
        case ms.Fetch(epoch, session, end, last, _):
            return f"Fetch e{epoch} s{session} end={end} last=e{last}"
        case ms.Fenced(epoch):
            return f"Fenced e{epoch}"
        case ms.Diverged(epoch, session, last, end):
            return f"Diverged e{epoch} s{session}: e{last} ends at {end}"
        case ms.StartAt(epoch, session, start):
            return f"StartAt e{epoch} s{session} {start}"
        case ms.Replicate(epoch, session, base, high, refs, wants):
            what = " ".join(map(batch, refs)) or "nothing"
            return f"Replicate e{epoch} s{session} @{base} hw={high} {what}{' ?' * wants}"
        case ms.Acked(epoch, session, durable, high):
            return f"Acked e{epoch} s{session} durable={durable} hw={high}"
        case ms.FetchRange(epoch, first, after):
            return f"FetchRange e{epoch} {first}-{after}"
        case ms.Range(epoch, first, refs):
            return f"Range e{epoch} @{first} {' '.join(map(batch, refs))}"


def shown(effect):
    """An effect as scripts show it."""
    match effect:
        case fx.Send(to, message):
            return f"send {to} {told(message)}"
        case fx.Append(refs):
            return f"append {' '.join(map(batch, refs))}"
        case fx.ProposeIsr(epoch, version, isr):
            return f"propose ISR {listed(isr)} e{epoch} v{version}"
        case fx.Repair(refs):
            return f"repair {' '.join(map(batch, refs))}"
        case fx.ReadLog(follower, _, offset, _):
            return f"read @{offset} for {follower}"
        case fx.ReadRange(to, first, after):
            return f"read {first}-{after} for {to}"
        case fx.RejectWrites(reason):
            return f"refusing: {reason}" if reason else "accepting"
        case fx.TransferLeadership(candidates):
            return f"hand over to {listed(candidates)}"
        case fx.Halted(trouble):
            return f"HALTED: {trouble}"
        case fx.AskMetadata(epoch):
            return f"ask metadata about e{epoch}"
        case fx.Committed(offset):
            return f"high watermark {offset}"
        case fx.TruncateTo(offset):
            return f"truncate to {offset}"
        case fx.ResetTo(offset):
            return f"reset to {offset}"


def listed(brokers):
    return ",".join(map(str, brokers)) or "nobody"


class Story:
    """The replicas of one partition, moved by hand."""

    def __init__(self):
        self.now = 0
        self.logs = {}
        self.replicas = {}
        self.starts = {}
        self.links = {}
        self.held = set()
        self.cut = set()
        self.proposals = deque()
        self.assigned = None
        self.lines = []
        self.is_terse = False

    # Effects

    def step(self, number, event):
        effects = self.replicas[number].step(event, self.now)
        for effect in effects:
            if not (self.is_terse and isinstance(effect, QUIET)):
                self.lines.append(f"{number}: {shown(effect)}")
        reads = [self.carry_out(number, effect) for effect in effects]
        for read in reads:
            if read is not None:
                self.step(number, read)

    def carry_out(self, number, effect):
        """Execute an effect; return the events that it causes."""
        log = self.logs[number]
        match effect:
            case fx.Send(to):
                self.links.setdefault((number, to), deque()).append(effect)
            case fx.Append(refs, buffers):
                for ref, buffer in zip(refs, buffers, strict=True):
                    log.append(StoredKey(ref, buffer))
            case fx.TruncateTo(offset):
                log.truncate_to(offset)
            case fx.ResetTo(offset):
                log.reset_to(offset)
            case fx.ReadLog(follower, session, offset, _):
                found = log.seen.between(offset, log.seen.end)
                if self.reads_one:
                    found = found[:1]
                refs, buffers = tuple(s.ref for s in found), tuple(s.payload for s in found)
                return ev.BatchesRead(follower, session, offset, refs, buffers)
            case fx.ReadRange(to, first, after):
                found = log.seen.between(first, after)
                refs, buffers = tuple(s.ref for s in found), tuple(s.payload for s in found)
                return ev.RangeRead(to, first, refs, buffers)
            case fx.ProposeIsr():
                self.proposals.append((number, effect))
        return None

    # Commands

    def brokers(self, *numbers, min_isr="1", reads=""):
        self.reads_one = reads == "one"
        self.numbers = tuple(map(int, numbers))
        self.assigned = ev.Assigned(0, None, self.numbers, self.numbers, 0, int(min_isr))
        for number in self.numbers:
            self.logs[number] = SimLog()
            self.start(number)

    def start(self, number):
        number = int(number)
        log = self.logs[number]
        self.starts[number] = self.starts.get(number, -1) + 1
        state = LogState(
            log.seen.start, log.seen.end, high_watermark=log.high_watermark, epochs=log.epochs()
        )
        session = self.starts[number] * 100
        self.replicas[number] = Replica(
            number, state, limits=LIMITS, session=session, incarnation=f"life {session}"
        )
        if self.assigned.epoch and self.assigned.leader != number:
            self.step(number, self.assigned)

    def elect(self, leader, *flags, isr=None, to=None):
        old = self.assigned
        members = old.isr if isr is None else tuple(map(int, isr.split(",")))
        self.assigned = msgspec.structs.replace(
            old, epoch=old.epoch + 1, leader=int(leader), isr=members, version=old.version + 1,
            unclean="unclean" in flags,
        )  # fmt: skip
        self.proposals.clear()
        for number in self.replicas if to is None else map(int, to.split(",")):
            self.step(number, self.assigned)

    def tell(self, number):
        self.step(int(number), self.assigned)

    def append(self, number, count):
        number = int(number)
        replica, log = self.replicas[number], self.logs[number]
        if replica.reject_reason is not None:
            self.lines.append(f"{number}: refused, {replica.reject_reason}")
            return
        self.write(number, f"e{replica.epoch}@{log.seen.end}".encode(), int(count))

    def put(self, number, *values):
        number = int(number)
        assert self.replicas[number].reject_reason is None, "it takes records"
        self.write(number, ",".join(values).encode(), len(values))

    def write(self, number, payload, count):
        replica, log = self.replicas[number], self.logs[number]
        base = log.seen.end
        ref = BatchRef(base, base + count, replica.epoch, len(payload))
        log.append(StoredKey(ref, payload))
        self.step(number, ev.Appended((ref,), (payload,)))

    def compact(self, number):
        number = int(number)
        replica, log = self.replicas[number], self.logs[number]
        below = replica.log.high_watermark
        log.compact(Reach(below, below, replica.min_replica_offset))
        held = [f"{batch(s.ref)}:{s.payload.decode()}" for s in log.seen.batches.values()]
        self.lines.append(
            f"{number}: all have what is below {replica.min_replica_offset}; {'  '.join(held)}"
        )

    def flush(self, number):
        self.step(int(number), ev.Flush())

    def sync(self, number):
        number = int(number)
        self.logs[number].begin_sync()
        self.logs[number].end_sync()
        self.step(number, ev.Synced(self.logs[number].take_synced()))
        self.step(number, ev.Flush())

    def deliver(self, link=None):
        links = [parsed(link)] if link else sorted(self.links)
        for sender, to in links:
            queue = self.links.pop((sender, to), ())
            if (sender, to) in self.held:
                self.links[sender, to] = queue
                continue
            for send in queue:
                if sender not in self.cut and to not in self.cut and to in self.replicas:
                    message = decode(encode(send.message), list(send.buffers))
                    self.step(to, ev.Received(sender, message, send.buffers))

    def run(self):
        self.is_terse = True
        for _ in range(50):
            for number in sorted(self.replicas):
                self.flush(number)
                if self.logs[number].is_dirty:
                    self.sync(number)
            waiting = [link for link, queue in self.links.items() if queue]
            if not set(waiting) - self.held:
                break
            self.deliver()
        else:
            raise AssertionError("it never gets quiet")
        self.is_terse = False

    def drop(self, link):
        self.links.pop(parsed(link), None)

    def repeat(self, link):
        self.links[parsed(link)].extend(tuple(self.links[parsed(link)]))

    def reverse(self, link):
        self.links[parsed(link)].reverse()

    def hold(self, link):
        self.held.add(parsed(link))

    def unhold(self, link):
        self.held.discard(parsed(link))

    def cut_(self, number):
        self.cut.add(int(number))

    def heal(self, number):
        self.cut.discard(int(number))

    def crash(self, number):
        self.logs[int(number)].crash(LoseAll())
        del self.replicas[int(number)]
        for link in [link for link in self.links if int(number) in link]:
            if link not in self.held:
                del self.links[link]

    def wipe(self, number):
        self.crash(number)
        self.logs[int(number)].wipe()

    def lost(self, number, other):
        self.step(int(number), ev.PeerDisconnected(int(other)))

    def back(self, number, other):
        self.step(int(number), ev.PeerConnected(int(other)))

    def decide(self):
        number, proposal = self.proposals.popleft()
        self.isr(listed(proposal.isr), number=number)

    def isr(self, members, number=None):
        old, isr = self.assigned, tuple(map(int, members.split(",")))
        self.assigned = msgspec.structs.replace(
            old, isr=isr, version=old.version + 1, unclean=False,
            filling=tuple(b for b in old.filling if b not in isr),
        )  # fmt: skip
        changed = ev.IsrChanged(old.epoch, old.version + 1, isr)
        self.step(number or old.leader, changed)

    def forget(self, number):
        self.assigned = msgspec.structs.replace(self.assigned, filling=(int(number),))
        self.isr(listed([b for b in self.assigned.isr if b != int(number)]))

    def refuse(self):
        number, proposal = self.proposals.popleft()
        self.step(number, ev.IsrRejected(proposal.epoch, proposal.proposal))

    def time(self, milliseconds):
        self.now += int(milliseconds)
        for number, replica in sorted(self.replicas.items()):
            if replica.deadline_ms is not None and replica.deadline_ms <= self.now:
                self.step(number, ev.TimePassed())
                self.step(number, ev.Flush())

    def corrupt(self, number, first):
        number = int(number)
        ref = self.logs[number].seen.batches[int(first)].ref
        self.step(number, ev.CorruptionFound(ref.base_offset, ref.next_offset))

    def retain(self, number, offset):
        self.logs[int(number)].delete_before(int(offset))
        self.step(int(number), ev.LogStartMoved(int(offset)))

    def resign(self, number):
        self.step(int(number), ev.Resign())

    def status(self):
        for number, replica in sorted(self.replicas.items()):
            log, leader = replica.log, replica.leader
            role = f"{replica.follower.state.value} e{replica.epoch}" if not leader else (
                f"leading e{replica.epoch} ISR {listed(leader.isr.counted)}"
            )  # fmt: skip
            due = "no timer" if replica.deadline_ms is None else f"due {replica.deadline_ms}"
            self.lines.append(
                f"{number}: {role}, log {log.log_start_offset}..{log.log_end_offset} "
                f"durable {log.durable_offset} hw {log.high_watermark} [{log.epochs!r}] {due}"
            )

    def command(self, line):
        """Run a line's command; return its effects."""
        name, *words = line.split()
        named = dict(word.split("=") for word in words if "=" in word)
        self.lines = []
        method = getattr(self, "cut_" if name == "cut" else name)
        method(*(word for word in words if "=" not in word), **named)
        assert all(
            r.log.log_end_offset == self.logs[n].seen.end for n, r in self.replicas.items()
        ), "the replica knows its log"
        return self.lines


def parsed(link):
    sender, to = link.split("->")
    return int(sender), int(to)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_replicas_do_what_the_script_says(path, golden):
    """Every command of the script has exactly the consequences that are written below it."""
    golden.judge(path, Story().command)


def test_there_are_scripts():
    """The folder of scripts is found."""
    assert len(SCRIPTS) >= 10
