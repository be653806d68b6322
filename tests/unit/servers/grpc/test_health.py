"""The health check: watchers are notified of every change, and cost nothing in between."""

import asyncio
from functools import partial

import pytest

from strandline.servers.grpc import health
from strandline.servers.grpc._generated import health_pb2 as pb
from strandline.servers.grpc.health import HealthService
from tests.kit.waiting import until_async

SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING


class Broker:
    """Ready or not; counts how often it is asked."""

    def __init__(self):
        self.is_ready, self.asked = True, 0

    def __call__(self):
        self.asked += 1
        return self.is_ready


class Watcher:
    """A watching call; keeps the statuses it received."""

    def __init__(self, service, name="log"):
        self.freed = []
        self.task = asyncio.create_task(service._watch(pb.HealthCheckRequest(service=name), self))

    def send(self, message):
        self.freed.append(message.status)


@pytest.fixture
def broker(monkeypatch):
    monkeypatch.setattr(health, "WATCH_INTERVAL_S", 0.02)
    return Broker()


until = partial(until_async, seconds=30)


async def test_who_watches_is_told_at_first_and_of_every_change(broker):
    """Each status once; an unknown service stays unknown."""
    service = HealthService(("log",), broker)
    first, unknown = Watcher(service), Watcher(service, "nothing")
    await until(lambda: first.freed == [SERVING])
    broker.is_ready = False
    second = Watcher(service)
    await until(lambda: first.freed == [SERVING, NOT_SERVING])
    assert second.freed == [NOT_SERVING]
    broker.is_ready = True
    await until(lambda: first.freed[2:] == second.freed[1:] == [SERVING])
    assert unknown.freed == [pb.HealthCheckResponse.SERVICE_UNKNOWN]
    for each in (first, second, unknown):
        each.task.cancel()


async def test_many_who_watch_are_looked_after_together(broker):
    """The broker is checked once for all, and no longer when they have left."""
    service = HealthService((), broker)
    watchers = [Watcher(service, "") for _ in range(500)]
    await until(lambda: all(each.freed for each in watchers))
    before = broker.asked
    await until(lambda: broker.asked >= before + 3)
    assert broker.asked < before + 50
    for each in watchers:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in watchers), return_exceptions=True)
    await until(lambda: service._timer is None)
