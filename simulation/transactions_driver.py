"""A driver in simulated transactions: its tasks stage parts of batches, which it publishes.

Rules: as in ``transactions_clients``.
"""

from typing import TYPE_CHECKING, Any

from simulation.transactions_check import UNKNOWN
from simulation.transactions_clients import Work, Zombie, commit_position
from strandline.core.transactions import events as ev
from strandline.core.transactions.effects import Published
from strandline.core.transactions.state import BatchOfProducer, TransactionalProducer

if TYPE_CHECKING:
    from simulation.transactions import TransactionHistory


class Driver(Zombie):
    """A driver whose tasks stage parts of numbered batches, which it publishes."""

    def __init__(self, history: "TransactionHistory", id_: str) -> None:
        super().__init__(history, id_)
        self.batch = 0
        self.parts: list[str] = []
        self.finished: list[str] = []

    def begin(self) -> None:
        """Stage the batch (again), by two tasks and one that is not needed."""
        self.incarnation += 1  # ignore answers to an earlier attempt
        self.attempt += 1
        self.finished = []
        self.parts = [f"{self.id}/{self.batch}/{self.attempt}-{n}" for n in range(3)]
        for part in self.parts:
            self._stage(part)

    def _begin_next(self) -> None:
        """Begin at once: a driver has no prepared transaction to decide."""
        self.begin()

    def _stage(self, part: str) -> None:
        history, nonce = self.history, f"nonce {part}"
        history.fresh_id += 1
        fresh, batch = history.fresh_id, BatchOfProducer(self.id, self.batch)

        def begun(is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
            if not is_done:
                self.later(self.begin)
            elif value.is_published:
                self._finished(part, "")
            else:
                history.checker.begun(part)
                Work(self, part, value.producer, id_=part).go(
                    lambda: self._prepare(part, value.producer)
                )

        self.ask(lambda token: ev.Begin(token, part, None, nonce, 300_000, fresh, batch), begun)

    def _prepare(self, part: str, producer: TransactionalProducer) -> None:
        self.history.checker.ended(part, UNKNOWN)

        def prepared(is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
            del value
            if is_done:
                self._finished(part, part)

        self.ask(lambda token: ev.Prepare(token, part, producer), prepared)

    def _finished(self, part: str, ref: str) -> None:
        """Publish the first two parts that are staged, mostly together with an offset."""
        del part
        self.finished.append(ref)
        if len(self.finished) != 2:
            return
        parts = tuple(ref for ref in self.finished if ref)
        if self.rng.random() < 0.7:
            self._note_position(lambda ref: self._publish(parts, ref))
        else:
            self._publish(parts, "")

    def _note_position(self, done: Any) -> None:
        """Stage the batch's offset, as a part that replaces that of an earlier attempt."""
        history, part, number = self.history, f"{self.id}/{self.batch}/position", self.batch
        history.fresh_id += 1
        fresh, nonce = history.fresh_id, f"nonce {part} {self.attempt}"

        def begun(is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
            if not is_done:
                self.later(self.begin)
            elif value.is_published:
                done("")
            else:
                commit_position(
                    self, part, value.producer, offset=number, done=lambda: prepare(value.producer)
                )

        def prepare(producer: TransactionalProducer) -> None:
            history.checker.moved(f"{self.id}/{number}", self.id, number)
            self.ask(
                lambda token: ev.Prepare(token, part, producer),
                lambda is_done, _: done(part) if is_done else self.later(self.begin),
            )

        batch = BatchOfProducer(self.id, number)
        self.ask(lambda token: ev.Begin(token, part, None, nonce, 2_000, fresh, batch), begun)

    def _publish(self, written: tuple[str, ...], position: str) -> None:
        number, fingerprint = self.batch, f"{self.id} {self.batch}"
        batch = BatchOfProducer(self.id, number)
        parts = (*written, position) if position else written

        def published(is_done: bool, value: Any) -> None:  # noqa: FBT001 - an answer
            if is_done:
                answer: Published = value
                if not answer.is_repeat:
                    self.history.checker.batch_published(f"{self.id}/{number}", written)
                self.batch += 1
                self.decided += 1
                if self.is_stopping:
                    return
            self.later(self.begin)

        self.ask(lambda token: ev.Publish(token, batch, parts, fingerprint), published)
