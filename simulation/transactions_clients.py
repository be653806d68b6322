"""Clients of simulated transactions: producers that crash and restart, and their records.

Rules: a client knows only the answers it received. A client that crashes is replaced by another
with the same transactional id; requests that it had sent may still arrive, as from a zombie.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.transactions_check import ABORTED, COMMITTED, UNKNOWN
from simulation.transactions_groups import GROUPS_PLACE
from strandline.core.coordinator_effects import Answer, Reject
from strandline.core.transactions import events as ev
from strandline.core.transactions.effects import Begun
from strandline.core.transactions.state import TransactionalProducer, TransactionPartition
from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from simulation.transactions import TransactionHistory

RECORDS = 3
RETRY_MS = 15.0
REFUSED = {"producer_fenced", "transaction_aborted", "unknown_transaction"}


class Zombie:
    """A process that runs one transaction after the other under an id.

    Args:
        history: the history.
        id_: its transactional id.
    """

    def __init__(self, history: "TransactionHistory", id_: str) -> None:
        self.history = history
        self.id = id_
        self.incarnation = 0
        self.attempt = 0
        self.decided = 0
        """The number of transactions whose outcome it was answered."""
        self.is_stopping = False
        self.after: TransactionalProducer | None = None
        self.staged: tuple[str, TransactionalProducer] | None = None
        self.is_prepared = False
        """Whether it was answered that its transaction is prepared, and has not tried to end it."""

    @property
    def rng(self) -> Any:
        """The history's random generator."""
        return self.history.world.rng

    def crash(self) -> None:
        """Replace the process by another with its id, which knows of a prepared transaction."""
        self.incarnation += 1
        self.after = None
        self.later(self._begin_next if self.rng.random() < 0.5 else self.begin)

    def stop(self) -> None:
        """Begin no more transactions."""
        self.is_stopping = True

    def later(self, action: Any) -> None:
        """Schedule an action, which is skipped if the process crashes before."""
        incarnation = self.incarnation

        def if_alive() -> None:
            if self.incarnation == incarnation:
                action()

        self.history.world.after(self.rng.uniform(0.1, RETRY_MS), if_alive)

    def ask(self, make: Any, done: Any) -> None:
        """Repeat a request until it is answered; ``done`` receives (is_done, value or error)."""
        incarnation = self.incarnation

        def answered(outcome: tuple[bool, Any]) -> None:
            if self.incarnation != incarnation:
                return
            if outcome == (False, None):
                self.later(lambda: self.history.ask(make, answered))
            else:
                done(*outcome)

        self.history.ask(make, answered)

    # A transaction

    def begin(self) -> None:
        """Begin the next transaction, after deciding a prepared one."""
        if self.staged is not None:
            self._decide_staged()
            return
        if not self.is_stopping:
            self._begin_next()

    def _begin_next(self) -> None:
        history, nonce = self.history, f"{self.id} {self.incarnation} {self.attempt}"
        self.attempt += 1
        history.fresh_id += 1
        fresh, after, timeout_ms = history.fresh_id, self.after, self.rng.choice((200, 2000))
        self.ask(
            lambda token: ev.Begin(token, self.id, after, nonce, timeout_ms, fresh), self._begun
        )

    def _begun(self, is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
        if not is_done:
            if value.code == "producer_fenced":
                self.after = None  # as if an operator restarts it
            if value.code == "transaction_prepared" and self.staged is None:
                self._abort_forgotten()
            else:
                self.later(self.begin)  # which decides a prepared transaction first
            return
        begun: Begun = value
        self.after = begun.producer
        name = f"{self.id}/{self.history.tokens}"
        self.history.checker.begun(name)
        Work(self, name, begun.producer, id_=self.id).go(lambda: self._written(name))

    def _abort_forgotten(self) -> None:
        """Abort a transaction by its staged id: its prepare arrived after the timeout."""

        def answered(is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
            assert is_done, value
            self.ask(
                lambda token: ev.EndStaged(token, self.id, value, is_commit=False),
                lambda *_: self.later(self.begin),
            )

        self.ask(
            lambda token: ev.QueryTransactions(token, lambda s: s.transactions[self.id].producer),
            answered,
        )

    def _written(self, name: str) -> None:
        """Decide a transaction whose records are stored, mostly after committing an offset."""
        if self.rng.random() < 0.3:
            self._decide(name)
            return
        producer, offset = self.after, self.attempt
        assert producer is not None, "begun before"

        def noted() -> None:
            self.history.checker.moved(name, self.id, offset)
            self._decide(name)

        commit_position(self, self.id, producer, offset=offset, done=noted)

    def _decide(self, name: str) -> None:
        chance = self.rng.random()
        producer = self.after
        assert producer is not None, "begun before"
        if chance < 0.2:
            self._end(name, producer, is_commit=False)
        elif chance < 0.5:
            self.staged, self.is_prepared = (name, producer), False
            self.history.checker.ended(name, UNKNOWN)
            self.ask(lambda token: ev.Prepare(token, self.id, producer), self._prepared)
        else:
            self._end(name, producer, is_commit=True)

    def _prepared(self, is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
        if is_done:
            self.is_prepared = True
            if self.rng.random() < 0.1:
                self.crash()
            else:
                self.later(self._decide_staged)
        else:
            self._refused(value)

    def _refused(self, error: StrandlineError) -> None:
        """Handle a rejected decision: the transaction is not committed."""
        assert self.staged is not None, "prepared before"
        assert error.code in REFUSED, error
        self.history.checker.ended(self.staged[0], ABORTED)
        self.staged = None
        self.later(self.begin)

    def _decide_staged(self) -> None:
        """End a prepared transaction from outside, perhaps after a restart."""
        assert self.staged is not None, "prepared before"
        name, producer = self.staged
        must_be_there, self.is_prepared = self.is_prepared, False
        is_commit = len(name) % 2 == 0 or self.rng.random() < 0.7

        def ended(is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
            if is_done:
                outcome = COMMITTED if is_commit else ABORTED
                self.history.checker.ended(name, outcome)
                self.staged = None
                self.decided += 1
                self.later(self.begin)
            elif value.code == "unknown_transaction":
                self.history.checker.may_be_gone(name, is_so=not must_be_there)
                self._after_unknown(name)
            else:
                self._refused(value)

        self.ask(lambda token: ev.EndStaged(token, self.id, producer, is_commit=is_commit), ended)

    def _after_unknown(self, name: str) -> None:
        """Find out about an unknown transaction: it was never prepared, or decided before."""
        self.history.checker.ended(name, UNKNOWN)
        self.staged = None
        self.later(self.begin)

    def _end(self, name: str, producer: TransactionalProducer, *, is_commit: bool) -> None:
        self.history.checker.ended(name, UNKNOWN if is_commit else ABORTED)

        def ended(is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
            if is_done and is_commit:
                self.history.checker.ended(name, COMMITTED)
            elif not is_done:
                assert value.code in REFUSED, value
                self.history.checker.ended(name, ABORTED)
            self.decided += is_done
            self.later(self.begin)

        self.ask(lambda token: ev.End(token, self.id, producer, is_commit), ended)


def commit_position(
    client: Zombie,
    id_: str,
    producer: TransactionalProducer,
    *,
    offset: int,
    done: Callable[[], None],
) -> None:
    """Commit an offset of the client's group with a transaction, then call ``done``.

    A fenced client begins anew; an offset that another transaction holds is tried again.
    """
    history, incarnation = client.history, client.incarnation

    def added(is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
        del value
        if is_done:
            history.groups.commit(client.id, offset, producer, answer=noted)
        else:
            client.later(client.begin)

    def noted(outcome: Answer | Reject | None) -> None:
        if client.incarnation != incarnation:
            return
        is_in_the_way = (
            isinstance(outcome, Reject) and outcome.error.code == "unstable_offset_commit"
        )
        if outcome is None or is_in_the_way:
            client.later(lambda: history.groups.commit(client.id, offset, producer, answer=noted))
        elif isinstance(outcome, Answer):
            done()
        else:
            assert outcome.error.code == "producer_fenced", outcome
            client.later(client.begin)

    client.ask(
        lambda token: ev.AddTransactionPartitions(token, id_, producer, [GROUPS_PLACE]), added
    )


class Work:
    """The records of one transaction or part, for some partitions.

    Args:
        owner: the client; the work ends when it crashes, but sent records still arrive.
        name: the transaction's name, for the checker.
        producer: the producer that writes.
        id_: its transactional id.
    """

    def __init__(self, owner: Any, name: str, producer: TransactionalProducer, *, id_: str) -> None:
        self.owner = owner
        self.name = name
        self.producer = producer
        self.id = id_
        self.left = RECORDS

    def go(self, done: Any) -> None:
        """Add the partitions, write the records, then call ``done``; not if that fails."""
        history, rng = self.owner.history, self.owner.rng
        places = rng.sample(list(history.partitions), rng.randint(1, 2))

        def added(is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
            del value
            if not is_done:
                self.owner.later(self.owner.begin)
                return
            for number in range(RECORDS):
                self._write(rng.choice(places), f"{self.name}/{number}", done)

        self.owner.ask(
            lambda token: ev.AddTransactionPartitions(token, self.id, self.producer, places), added
        )

    def _write(self, place: TransactionPartition, value: str, done: Any) -> None:
        """Send a record, which may take long, and arrive after its writer has crashed."""
        history, rng, incarnation = self.owner.history, self.owner.rng, self.owner.incarnation
        history.checker.wrote(self.name, value)

        def stored(how: str) -> None:
            if how != "ok":
                if self.owner.incarnation == incarnation and self.left > 0:
                    self.left = -1  # perhaps not stored, so it starts again
                    self.owner.later(self.owner.begin)
                return
            if self.owner.incarnation == incarnation:
                history.checker.stored(self.name, value)
                self.left -= 1
                if self.left == 0:
                    done()

        partition = history.partitions[place]
        delay_ms = rng.uniform(0.1, 5.0) * rng.choice((1, 1, 1, 30))
        history.world.after(delay_ms, partition.write, self.producer, value, stored)
