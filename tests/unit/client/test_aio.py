"""The asynchronous client and the synchronous one: the same names, with the same parameters."""

import inspect

import pytest

import strandline.client as package
from strandline.client.access import AccessControl
from strandline.client.aio import (
    AsyncAccessControl,
    AsyncClient,
    AsyncGroups,
    AsyncProducer,
    AsyncQuotas,
    AsyncStage,
    AsyncTransaction,
    connect_async,
)
from strandline.client.aio_consumer import AsyncConsumer
from strandline.client.aio_reading import AsyncSubscription
from strandline.client.client import Client, connect
from strandline.client.consumer.consumer import Consumer
from strandline.client.consumer.groups import Groups
from strandline.client.producer.producer import Producer
from strandline.client.quotas import Quotas
from strandline.client.reader.subscription import Subscription
from strandline.client.transactions.staged_write import StagedWrite
from strandline.client.transactions.transaction import Transaction

PAIRS = [
    (Client, AsyncClient),
    (Producer, AsyncProducer),
    (Consumer, AsyncConsumer),
    (Subscription, AsyncSubscription),
    (Transaction, AsyncTransaction),
    (StagedWrite, AsyncStage),
    (Groups, AsyncGroups),
    (AccessControl, AsyncAccessControl),
    (Quotas, AsyncQuotas),
]
OF_ONE = {
    # What the asynchronous client, and the stores of positions, are made of. And a frame of Polars,
    # which reads on threads of its own, also in its `collect_async`. And what the console asks.
    Client: {"appender", "brokers", "open_read", "group_coordinator", "scan"},
    # An asynchronous append waits for room by itself; a client asks whether it may go on with one.
    Producer: {"has_room", "wait_for_room", "is_usable"},
    # How a transaction gets at its consumer: on the consumer's thread. And what a poll that was
    # cancelled does to it.
    Consumer: {"commit_in_transaction", "wakeup", "unread"},
    AsyncConsumer: {"member"},
}


def names(cls):
    """What a class has for users."""
    return {name for name in dir(cls) if not name.startswith("_")} - OF_ONE.get(cls, set())


def parameters(function):
    """Names, kinds and defaults; None for those that pass on what they are given."""
    found = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in found):
        return None
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize(("plain", "awaited"), PAIRS, ids=lambda cls: cls.__name__)
def test_both_have_the_same_names(plain, awaited):
    """Neither has anything for users that the other lacks."""
    assert names(plain) == names(awaited)


@pytest.mark.parametrize(("plain", "awaited"), PAIRS, ids=lambda cls: cls.__name__)
def test_both_take_the_same(plain, awaited):
    """Parameters have the same names, kinds and defaults; what is a property stays one."""
    for name in names(plain) & names(awaited):
        of_plain, of_awaited = (inspect.getattr_static(cls, name) for cls in (plain, awaited))
        assert isinstance(of_plain, property) == isinstance(of_awaited, property), name
        if inspect.isfunction(of_plain) and (taken := parameters(of_awaited)) is not None:
            assert taken == parameters(of_plain), name


def test_the_package_has_both():
    """The asynchronous one is loaded when it is asked for; a wrong name is no other."""
    assert package.AsyncClient is AsyncClient
    assert package.connect_async is connect_async
    with pytest.raises(AttributeError, match="AsyncClients"):
        package.AsyncClients  # noqa: B018  looking is what is tried


def test_both_are_connected_alike():
    """``connect_async`` takes what ``connect`` takes."""
    assert parameters(connect_async) == parameters(connect)


@pytest.mark.parametrize(("plain", "awaited"), PAIRS, ids=lambda cls: cls.__name__)
def test_what_is_forwarded_has_the_docstring_of_what_it_forwards_to(plain, awaited):
    """It is the synchronous method's own, so that it cannot go out of date."""
    for name in names(plain) & names(awaited):
        function = inspect.getattr_static(awaited, name)
        assert inspect.getdoc(function), name
        if hasattr(function, "__wrapped__"):
            assert function.__wrapped__ is getattr(plain, name), name


def test_most_of_the_client_is_forwarded_and_not_written_again():
    """A hand-written twin is for what asyncio needs: futures, cancellation, iteration."""
    written = {
        f"{cls.__name__}.{name}"
        for _, cls in PAIRS
        for name in names(cls)
        if not hasattr(inspect.getattr_static(cls, name), "__wrapped__")
        and inspect.isfunction(inspect.getattr_static(cls, name))
    }
    assert written == {
        "AsyncClient.append",
        "AsyncClient.consumer",
        "AsyncClient.read",
        "AsyncConsumer.close",
        "AsyncConsumer.poll",
        "AsyncProducer.abandon",
        "AsyncProducer.append",
        "AsyncProducer.append_batch",
        "AsyncProducer.close",
        "AsyncProducer.flush",
        "AsyncSubscription.close",
        "AsyncTransaction.append",
        "AsyncTransaction.append_batch",
        "AsyncTransaction.commit_offsets",
    }
