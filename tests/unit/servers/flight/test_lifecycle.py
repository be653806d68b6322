"""State shared by calls: stopping, waiting for changes, counting streams."""

import time

import pytest

from strandline.errors import ShuttingDownError
from strandline.servers.flight.lifecycle import ServerLifecycle
from strandline.servers.flight.sockets import cut_connections


def test_news_between_arming_and_waiting_are_not_missed(broker, partition):
    """The waiter that looked before a commit is woken by it, as by the end of the broker."""
    lifecycle = ServerLifecycle(broker)
    with lifecycle.waiter([partition]) as waiter:
        for news in (lambda: partition.store(b"a"), lifecycle.notify):
            waiter.arm()
            assert not waiter.has_changed
            news()
            assert waiter.has_changed
            waiter.wait(60)


def test_other_partitions_wake_nobody(broker):
    """A needless wake-up of a thread costs all others."""
    one, two = broker.make_stream("m", partitions=2).partitions
    lifecycle = ServerLifecycle(broker)
    with lifecycle.waiter([one]):
        assert len(one.waiters) == 1
        assert two.waiters == []
    assert one.waiters == []


def test_waits_are_short(broker):
    """Whatever the timeout, a thread looks again within a fraction of a second."""
    lifecycle = ServerLifecycle(broker)
    with lifecycle.waiter([]) as waiter:
        started = time.monotonic()
        waiter.wait(60)
        waiter.wait(-1)
        assert time.monotonic() - started < 30


def test_stopping_rejects_what_begins(broker):
    """With an error that may be retried."""
    lifecycle = ServerLifecycle(broker)
    lifecycle.check()
    lifecycle.stopping.set()
    with pytest.raises(ShuttingDownError):
        lifecycle.check()


def test_streams_are_counted(broker):
    """While a call is in progress; the metric includes idle ones."""
    lifecycle = ServerLifecycle(broker)
    with lifecycle.stream():
        assert lifecycle.busy == 1
        with lifecycle.idle():
            assert lifecycle.busy == 0
            assert broker.telemetry.connections["flight"] == 1
    assert lifecycle.busy == 0
    assert broker.telemetry.connections["flight"] == 0


def test_only_connections_of_the_port_are_cut():
    """Other sockets of the process are left alone."""
    import socket

    with (
        socket.create_server(("127.0.0.1", 0)) as mine,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port = mine.getsockname()[1]
        client = socket.create_connection(mine.getsockname())
        bystander = socket.create_connection(other.getsockname())
        accepted, _ = mine.accept()
        untouched, _ = other.accept()
        assert cut_connections(port) == 1
        client.settimeout(5)
        assert client.recv(1) == b""
        untouched.sendall(b"x")
        assert bystander.recv(1) == b"x"
        for each in (client, bystander, accepted, untouched):
            each.close()
