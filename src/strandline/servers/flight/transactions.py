"""Handlers of the transaction actions, which ask the transaction coordinator.

Rules: see ``admin``, which runs them. Partition names are resolved to log ids here, on the loop, so
that the coordinator distinguishes partitions of streams recreated under the same name.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from strandline.api import transactions as wire
from strandline.api.groups import GROUPS_STREAM
from strandline.api.wire import decode, refuse_body
from strandline.broker.broker import Broker
from strandline.broker.internal import check_public
from strandline.core.transactions import events as ev
from strandline.core.transactions.effects import Begun, Published
from strandline.core.transactions.state import (
    BatchOfProducer,
    CoordinatorState,
    Publication,
    TransactionalProducer,
    TransactionState,
)
from strandline.servers.flight.actions import ActionContext, Handler

T = TypeVar("T")


class TransactionActions:
    """Handlers of the transaction actions.

    Args:
        broker: the broker that runs the coordinator.
        run: runs a coroutine on the loop and waits for it.
    """

    def __init__(self, broker: Broker, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._broker = broker
        self._run = run
        self.handlers: dict[str, Handler] = {
            wire.BEGIN_TRANSACTION: self._begin,
            wire.ADD_TO_TRANSACTION: self._add,
            wire.PREPARE_TRANSACTION: self._prepare,
            wire.END_TRANSACTION: self._end,
            wire.END_PREPARED: self._end_staged,
            wire.COMMIT_STAGED: self._publish,
            wire.LAST_PUBLISHED: self._last_published,
            wire.LIST_TRANSACTIONS: self._list,
        }

    def _ask(self, make: Callable[[object], ev.Request]) -> Any:
        return self._run(self._broker.transactions.ask(make))

    def _begin(self, body: bytes, context: ActionContext) -> list[Any]:
        request = decode(body, wire.BeginTransaction, what=wire.BEGIN_TRANSACTION)
        batch = request.batch
        begun: Begun = self._run(
            self._broker.transactions.begin_transaction(
                lambda token, fresh_id: ev.Begin(
                    token=token,
                    id=request.id,
                    after=None if request.after is None else _producer(request.after),
                    nonce=request.nonce,
                    timeout_ms=request.timeout_ms,
                    fresh_id=fresh_id,
                    batch=None
                    if batch is None
                    else BatchOfProducer(batch.transaction_id, batch.number),
                ),
                owner=context.owner,
            )
        )
        if begun.is_published:
            return [wire.TransactionBegun(producer=None)]
        who = begun.producer
        return [wire.TransactionBegun(producer=wire.ProducerRef(who.producer_id, who.epoch))]

    def _add(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.AddToTransaction, what=wire.ADD_TO_TRANSACTION)
        for each in request.partitions:
            check_public(each.stream)
        names = [(each.stream, each.partition) for each in request.partitions]
        if request.positions:
            self._run(self._broker.groups.prepare_place())
            names.append((GROUPS_STREAM, 0))
        places = self._broker.transactions.places(names)
        who = _producer(request.producer)
        self._ask(lambda token: ev.AddTransactionPartitions(token, request.id, who, places))
        return []

    def _prepare(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.PrepareTransaction, what=wire.PREPARE_TRANSACTION)
        who = _producer(request.producer)
        self._ask(lambda token: ev.Prepare(token, request.id, who))
        return []

    def _end(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.EndTransaction, what=wire.END_TRANSACTION)
        who = _producer(request.producer)
        self._ask(lambda token: ev.End(token, request.id, who, is_commit=request.commit))
        return []

    def _end_staged(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.EndPrepared, what=wire.END_PREPARED)
        producer_id, epoch = map(int, request.staged.split("."))
        staged = TransactionalProducer(producer_id, epoch)
        self._ask(lambda token: ev.EndStaged(token, request.id, staged, is_commit=request.commit))
        return []

    def _publish(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.CommitStaged, what=wire.COMMIT_STAGED)
        batch = BatchOfProducer(request.transaction_id, request.batch)
        published: Published = self._ask(
            lambda token: ev.Publish(token, batch, request.parts, request.fingerprint)
        )
        return [_publication(published.publication, is_repeat=published.is_repeat)]

    def _last_published(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.TransactionName, what=wire.LAST_PUBLISHED)
        found = self._read(lambda state: state.publications.get(request.transaction_id))
        return [] if found is None else [_publication(found, is_repeat=False)]

    def _list(self, body: bytes, _: ActionContext) -> list[Any]:
        refuse_body(body, wire.LIST_TRANSACTIONS)
        found = self._read(lambda state: list(state.transactions.values()))
        return [_info(each) for each in sorted(found, key=lambda each: each.id)]

    def _read(self, question: Callable[[CoordinatorState], Any]) -> Any:
        return self._ask(lambda token: ev.Read(token, question))


def _producer(ref: wire.ProducerRef) -> TransactionalProducer:
    return TransactionalProducer(ref.producer_id, ref.epoch)


def _publication(found: Publication, *, is_repeat: bool) -> wire.StagedPublication:
    return wire.StagedPublication(
        transaction_id=found.transaction_id,
        batch_id=found.batch,
        fingerprint=found.fingerprint,
        is_repeat=is_repeat,
    )


def _info(transaction: TransactionState) -> wire.TransactionInfo:
    return wire.TransactionInfo(
        id=transaction.id,
        status=transaction.status.value,
        staged_id=str(transaction.producer),
        timeout_ms=transaction.timeout_ms,
        partitions=tuple(
            wire.PartitionRef(place.stream, place.partition) for place in transaction.places
        ),
        reason=transaction.reason,
    )
