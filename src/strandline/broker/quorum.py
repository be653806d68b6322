"""Drives this broker's member of the consensus group: ticks, messages and writes around the core.

Rules: everything runs on the loop's thread. Entries become durable by the broker's group commit;
messages that depend on them are sent after that (``core/raft/ready.py`` has the order). One
``Ready`` is in progress at a time. After a failed write the contents of the disk are unknown: the
member sends nothing until it has restarted from the disk. Must not know what a command means.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import NamedTuple, Protocol

from strandline.broker.quorum_store import LOG_ID, QuorumStore
from strandline.broker.write_path.group_commit import GroupCommitter
from strandline.broker.write_path.replica_writes import Done, ReplicaWrite
from strandline.clock import Clock
from strandline.core.raft.leader import RaftLeader
from strandline.core.raft.messages import Envelope, Index, Kind, Members, RaftEntry, Term
from strandline.core.raft.raft import Raft
from strandline.core.raft.ready import Ready
from strandline.core.raft.state import RaftSettings
from strandline.errors import RequestTimeoutError, StrandlineError, UnavailableError
from strandline.types import BrokerId

logger = logging.getLogger(__name__)

TICK_MS = 75.0
SNAPSHOT_ENTRIES = 10_000
"""A snapshot is taken after so many applied entries."""
KEPT_ENTRIES = 1_000
"""Entries before a snapshot that stay in memory, for members that are a little behind."""


class Machine(Protocol):
    """The replicated state machine."""

    def apply(self, command: bytes) -> object:
        """Apply a committed command; return the answer for its proposer."""
        ...

    def snapshot(self) -> bytes:
        """Return the whole state, encoded."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the state by a ``snapshot``; empty data stands for the initial state."""
        ...


class _Proposal(NamedTuple):
    """A command that waits to be committed and applied."""

    term: Term
    answer: asyncio.Future[object]


class _PendingRead(NamedTuple):
    """A read that waits until the entry at ``after`` is applied."""

    after: Index
    answer: asyncio.Future[None]


class Quorum:
    """This broker's member of the consensus group.

    Args:
        me: this broker.
        founders: the first members of the group.
        store: the member's durable state.
        machine: the state machine that commands are applied to.
        committer: writes the entries.
        clock: the source of the entries' timestamps.
        send: sends a message to another member; it may be lost.
        settings: timing in ticks of ``TICK_MS``.
    """

    def __init__(
        self,
        me: BrokerId,
        founders: Members,
        *,
        store: QuorumStore,
        machine: Machine,
        committer: GroupCommitter,
        clock: Clock,
        send: Callable[[Envelope], None],
        settings: RaftSettings | None = None,
    ) -> None:
        self.me = me
        self._founders = founders
        self._store = store
        self._machine = machine
        self._writes = committer.catch_up
        self._clock = clock
        self._send = send
        self._settings = settings or RaftSettings()
        self._proposals: dict[Index, _Proposal] = {}
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._reads: list[_PendingRead] = []
        self._numbers = 0
        self._is_out = self._is_over = False
        self._failure: StrandlineError | None = None
        self.on_leadership: list[Callable[[], None]] = []
        """Called when this member begins or ceases to lead."""
        self._was_leading = False
        self.contact_ms = float("-inf")
        """The time of the last contact with a quorum, or with the leader; monotonic."""
        self._raft = self._load()

    def _load(self) -> Raft:
        hard, snapshot, entries = self._store.load(self._founders)
        self._machine.restore(snapshot.data)
        self.applied_index = snapshot.index
        self.index_at_start = max(snapshot.index, self._store.log.log_end_offset)
        """The last entry that was on the disk when this member started."""
        return Raft(
            self.me,
            secrets.randbelow,
            snapshot=snapshot,
            hard=hard,
            entries=entries,
            settings=self._settings,
        )

    def restart(self) -> None:
        """Restart from the disk, after the storage was reopened.

        Reads about ``SNAPSHOT_ENTRIES`` entries at most, while this broker serves nothing yet.
        """
        self._reject_waiting(UnavailableError("the metadata was reopened; retry"))
        self._failure, self._is_out, self._is_over = None, False, False
        self._raft = self._load()

    # Queries and proposals

    @property
    def leader(self) -> BrokerId | None:
        """The leader, as far as this member knows."""
        return self._raft.leader if self._failure is None else None

    @property
    def is_leading(self) -> bool:
        """Whether this member leads, as far as it knows; only a proposal proves it."""
        return self._failure is None and isinstance(self._raft.role, RaftLeader)

    @property
    def term(self) -> Term:
        """The newest term known here."""
        return self._raft.state.term

    @property
    def commit_index(self) -> int:
        """The last entry that this member knows to be committed."""
        return self._raft.state.log.commit_index

    @property
    def members(self) -> Members:
        """The members of the group."""
        return self._raft.state.members

    @property
    def stored_index(self) -> Index:
        """The last entry that is committed and on this member's disk."""
        return self._raft.state.log.stored_index

    async def propose(self, command: bytes, *, timeout_s: float) -> object:
        """Propose a command and return its result once it is committed and applied here.

        Raises:
            NotLeaderError: another member leads, or none; nothing was done.
            RequestTimeoutError: not decided in time; it may be applied later.
            UnavailableError: the command was not applied, or cannot be now.
        """
        self._check()
        index, term = self._raft.propose(command)
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._proposals[index] = _Proposal(term, answer)
        self._pump()
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise RequestTimeoutError(
                f"no quorum has confirmed the change within {timeout_s:.0f} s; it may still happen"
            ) from None

    async def barrier(self, *, timeout_s: float) -> None:
        """Wait until the machine has applied everything that was answered before this call.

        Raises:
            NotLeaderError: another member leads, or none.
            RequestTimeoutError: no quorum answered in time.
            UnavailableError: the leadership was lost while waiting.
        """
        self._check()
        self._numbers += 1
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[self._numbers] = answer
        self._raft.read(self._numbers)
        self._pump()
        try:
            async with asyncio.timeout(timeout_s):
                await answer
        except TimeoutError:
            raise RequestTimeoutError(
                f"no quorum has answered within {timeout_s:.0f} s; are enough brokers up?"
            ) from None

    async def applied(self, index: int) -> None:
        """Wait until the machine has applied the entry at an index.

        Raises:
            UnavailableError: this member failed while waiting.
        """
        if self.applied_index < index:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._reads.append(_PendingRead(Index(index), answer))
            await answer

    def hand_over(self, successor: BrokerId) -> None:
        """Transfer the leadership to another voter, such as before a stop.

        Raises:
            NotLeaderError: this member does not lead.
            InvalidRequestError: the successor is not another voter.
        """
        self._check()
        self._raft.hand_over(successor)
        self._pump()

    async def change_members(self, members: Members, *, timeout_s: float) -> None:
        """Change the group's members, one voter at a time; return once the change is committed.

        Raises:
            NotLeaderError, InvalidRequestError, UnavailableError: as for ``Raft.change_members``.
            RequestTimeoutError: not decided in time; the change may still happen.
        """
        self._check()
        index, term = self._raft.change_members(members)
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._proposals[index] = _Proposal(term, answer)
        self._pump()
        try:
            async with asyncio.timeout(timeout_s):
                await answer
        except TimeoutError:
            raise RequestTimeoutError("no quorum has confirmed the members yet") from None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Inputs

    async def run(self) -> None:
        """Tick until cancelled; after the loop was busy, catch up on a few missed ticks.

        A failed member restarts as soon as its disk can be read and written again.
        """
        due_ms = self._clock.monotonic_ms()
        while True:
            now_ms = self._clock.monotonic_ms()
            if now_ms - due_ms > 3 * TICK_MS:
                due_ms = now_ms - 3 * TICK_MS
            while due_ms <= now_ms:
                due_ms += TICK_MS
                self.tick()
            if self._failure is not None:
                self._try_again()
            await asyncio.sleep((due_ms - now_ms) / 1e3)

    def _try_again(self) -> None:
        if self._is_over or self._store.log.poisoned:
            return  # a poisoned log stays so until the broker has reopened it
        try:
            self.restart()
        except StrandlineError as error:
            self._failure = error

    def tick(self) -> None:
        """Advance the core's time by one tick."""
        if self._failure is None:
            self._raft.tick()
            self._pump()
            if self.is_leading and self.members.quorum == 1:
                self.contact_ms = self._clock.monotonic_ms()

    def receive(self, envelope: Envelope) -> None:
        """Handle a message of another member."""
        if self._failure is None:
            self._raft.step(envelope)
            self._pump()
            # A leader counts as in contact by each message: without a quorum it steps down by
            # itself.
            if self.is_leading or envelope.sender == self.leader:
                self.contact_ms = self._clock.monotonic_ms()

    # Around the core

    def _pump(self) -> None:
        """Process the core's output until there is none left or a write is in progress."""
        while not self._is_out and self._failure is None:
            ready = self._raft.ready()
            if not ready:
                break
            for envelope in ready.early:
                self._send(envelope)
            self._persist(ready)
        self._notify_leadership()

    def _persist(self, ready: Ready) -> None:
        """Write what must be durable: entries by group commit, other changes (rare) on a thread."""
        store, entries = self._store, ready.entries
        has_room = not entries or store.has_room(entries[0].index)
        if has_room and ready.hard_state is None and ready.snapshot is None:
            self._persist_entries(ready)
            return

        def save(synced_sequence: int) -> None:
            if ready.hard_state is not None:
                store.save_hard(ready.hard_state)
            if ready.snapshot is not None:
                store.install(ready.snapshot, synced_sequence=synced_sequence)
            if entries:
                store.make_room(entries[0].index, synced_sequence=synced_sequence)

        self._save_on_thread(save, lambda: self._persist_entries(ready))

    def _persist_entries(self, ready: Ready) -> None:
        if not ready.entries:
            self._finish(ready)
            return
        batches = self._store.batches(ready.entries, self._clock.now_ns())
        done = self._held_up(lambda: self._finish(ready))
        self._writes.submit(ReplicaWrite(LOG_ID, self._store.log, batches, done))

    def _save_on_thread(self, work: Callable[[int], None], then: Callable[[], None]) -> None:
        """Run ``work`` (small files, truncation) on a thread, then ``then`` on the loop."""
        log, failures = self._store.log, list[StrandlineError]()

        def guarded(synced_sequence: int) -> None:
            try:
                work(synced_sequence)
            except StrandlineError as error:
                if log.poisoned:
                    raise  # the whole broker stops storing until it has reopened its storage
                failures.append(error)  # the files are unchanged, so only this member fails

        done = self._held_up(then)
        self._writes.change(log, guarded, lambda error: done(error or next(iter(failures), None)))

    def _held_up(self, then: Callable[[], None]) -> Done:
        """Stop processing the core's output; return the callback that resumes it after a write."""
        self._is_out = True
        raft = self._raft

        def done(error: StrandlineError | None) -> None:
            if raft is not self._raft or self._failure is not None:
                return  # restarted or failed meanwhile
            self._is_out = False
            if error is not None:
                self._fail(error)
            else:
                then()
                self._pump()

        return done

    def _finish(self, ready: Ready) -> None:
        """Send messages, apply entries and answer reads, once a ``Ready`` is on disk."""
        self._raft.persisted(ready)
        for envelope in ready.late:
            self._send(envelope)
        if ready.snapshot is not None:
            self._machine.restore(ready.snapshot.data)
            self.applied_index = ready.snapshot.index
        for entry in ready.committed:
            self._apply(entry)
        for read in ready.reads:
            assert isinstance(read.context, int), "our own number"
            asked = self._asked.pop(read.context, None)
            if asked is not None:
                self._reads.append(_PendingRead(read.after, asked))
        for context in ready.lost_reads:
            assert isinstance(context, int), "our own number"
            _refuse(self._asked.pop(context, None), "the controller has changed; retry")
        self._answer_reads()
        self._compact_if_due()

    def _apply(self, entry: RaftEntry) -> None:
        outcome = self._machine.apply(entry.data) if entry.kind is Kind.COMMAND else None
        self.applied_index = entry.index
        proposal = self._proposals.pop(entry.index, None)
        if proposal is None or proposal.answer.done():
            return
        if proposal.term == entry.term:
            proposal.answer.set_result(outcome)
        else:
            _refuse(proposal.answer, "another controller took over before the change; retry")

    def _answer_reads(self) -> None:
        waiting, self._reads = self._reads, []
        for read in waiting:
            if read.after > self.applied_index:
                self._reads.append(read)
            elif not read.answer.done():
                read.answer.set_result(None)

    def _compact_if_due(self) -> None:
        """Replace applied entries by a snapshot if there are enough of them."""
        log = self._raft.state.log
        if self.applied_index - log.snapshot.index < SNAPSHOT_ENTRIES:
            return
        if self.applied_index == log.applied_index and self.applied_index <= log.stable_index:
            data = self._machine.snapshot()
            snapshot = self._raft.compact(self.applied_index, data, keep=KEPT_ENTRIES)
            store = self._store

            def save(_: int) -> None:
                try:
                    store.save_snapshot(snapshot)
                except StrandlineError as error:  # the entries are still on disk
                    logger.warning("no snapshot of the metadata was stored: %s", error)

            self._save_on_thread(save, lambda: None)

    def _notify_leadership(self) -> None:
        if self.is_leading != self._was_leading:
            self._was_leading = self.is_leading
            what = "leading" if self.is_leading else "no longer leading"
            logger.info("broker %d is %s the metadata, term %d", self.me, what, self.term)
            for callback in self.on_leadership:
                callback()

    def fail(self, error: StrandlineError) -> None:
        """Stop taking part until ``restart``, because the storage failed."""
        if self._failure is None:
            self._fail(error)

    def stop(self, error: StrandlineError) -> None:
        """Stop taking part, because the broker stops or must not vote."""
        self._is_over = True
        if self._failure is None:
            self._fall_silent(error)

    def _fail(self, error: StrandlineError) -> None:
        """Stop taking part: the contents of the disk are uncertain."""
        logger.error(
            "this broker's member of the quorum is stopped until its storage works: %s", error
        )
        self._fall_silent(error)

    def _fall_silent(self, error: StrandlineError) -> None:
        self._failure = error
        self._reject_waiting(error)
        self._notify_leadership()

    def _reject_waiting(self, error: StrandlineError) -> None:
        """Reject all waiting callers; their proposals may still be committed."""
        for proposal in self._proposals.values():
            _refuse(proposal.answer, error.message)
        for answer in (*self._asked.values(), *(read.answer for read in self._reads)):
            _refuse(answer, error.message)
        self._proposals.clear()
        self._asked.clear()
        self._reads.clear()


def _refuse(answer: asyncio.Future[object] | asyncio.Future[None] | None, why: str) -> None:
    """Reject a caller that still waits."""
    if answer is not None and not answer.done():
        answer.set_exception(UnavailableError(why))
