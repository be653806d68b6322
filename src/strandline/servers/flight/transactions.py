"""Handlers of the transaction commands, which ask the transaction coordinator.

Rules: here, on the loop, partition names are resolved to log ids, so that the coordinator
distinguishes partitions of streams recreated under the same name.
"""

from collections.abc import Callable
from typing import Any

from strandline.api import transactions as wire
from strandline.api.groups import GROUPS_STREAM
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
from strandline.servers.flight.actions import ActionContext, handles


def _ask(context: ActionContext, make: Callable[[object], ev.Request]) -> Any:
    return context.run(context.broker.transactions.ask(make))


def _read(context: ActionContext, question: Callable[[CoordinatorState], Any]) -> Any:
    return _ask(context, lambda token: ev.QueryTransactions(token, question))


@handles(wire.BEGIN_TRANSACTION)
def _begin(context: ActionContext, request: wire.BeginTransaction) -> list[wire.TransactionBegun]:
    batch = request.batch
    begun: Begun = context.run(
        context.broker.transactions.begin_transaction(
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


@handles(wire.ADD_TO_TRANSACTION)
def _add(context: ActionContext, request: wire.AddToTransaction) -> list[None]:
    for each in request.partitions:
        check_public(each.stream)
    names = [(each.stream, each.partition) for each in request.partitions]
    if request.positions:
        context.run(context.broker.groups.prepare_place())
        names.append((GROUPS_STREAM, 0))
    places = context.broker.transactions.places(names)
    who = _producer(request.producer)
    _ask(context, lambda token: ev.AddTransactionPartitions(token, request.id, who, places))
    return []


@handles(wire.PREPARE_TRANSACTION)
def _prepare(context: ActionContext, request: wire.PrepareTransaction) -> list[None]:
    who = _producer(request.producer)
    _ask(context, lambda token: ev.Prepare(token, request.id, who))
    return []


@handles(wire.END_TRANSACTION)
def _end(context: ActionContext, request: wire.EndTransaction) -> list[None]:
    who = _producer(request.producer)
    _ask(context, lambda token: ev.End(token, request.id, who, is_commit=request.commit))
    return []


@handles(wire.END_PREPARED)
def _end_prepared(context: ActionContext, request: wire.EndPrepared) -> list[None]:
    producer_id, epoch = map(int, request.staged.split("."))
    who = TransactionalProducer(producer_id, epoch)
    _ask(context, lambda token: ev.EndStaged(token, request.id, who, is_commit=request.commit))
    return []


@handles(wire.COMMIT_STAGED)
def _commit_staged(
    context: ActionContext, request: wire.CommitStaged
) -> list[wire.StagedPublication]:
    batch = BatchOfProducer(request.transaction_id, request.batch)
    published: Published = _ask(
        context, lambda token: ev.Publish(token, batch, request.parts, request.fingerprint)
    )
    return [_publication(published.publication, is_repeat=published.is_repeat)]


@handles(wire.LAST_PUBLISHED)
def _last_published(
    context: ActionContext, request: wire.TransactionName
) -> list[wire.StagedPublication]:
    found = _read(context, lambda state: state.publications.get(request.transaction_id))
    return [] if found is None else [_publication(found, is_repeat=False)]


@handles(wire.LIST_TRANSACTIONS)
def _list(context: ActionContext, _: None) -> list[wire.TransactionInfo]:
    found = _read(context, lambda state: list(state.transactions.values()))
    return [_info(each) for each in sorted(found, key=lambda each: each.id)]


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
