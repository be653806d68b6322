"""The activity stream on three brokers: every change is reported once, through failovers."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.core.metadata.commands import JoinGroup
from strandline.errors import InvalidRequestError, UnavailableError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.liftbridge.activity import Activity
from strandline.servers.grpc.liftbridge.host import ACTIVITY, Host
from strandline.types import BrokerId


class Writers:
    """The part that writes the stream, at each broker that runs."""

    def __init__(self, cluster, pool):
        self.cluster, self.pool = cluster, pool
        self.tasks = {}

    async def start(self, *numbers):
        await self.cluster.start(*numbers)
        for number in numbers:
            activity = Activity(Host(self.cluster.brokers[number], self.pool))
            self.tasks[number] = asyncio.create_task(activity.run())

    async def kill(self, number):
        await self.stop(number)
        await self.cluster.kill(number)

    async def stop(self, number):
        task = self.tasks.pop(number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def writers(cluster):
    with ThreadPoolExecutor(2) as pool:
        made = Writers(cluster, pool)
        yield made
        for number in list(made.tasks):
            await made.stop(number)


async def join(cluster, member, *, avoid=0):
    """Make a reported change: a member joins a group. Retried until it is done."""
    command = JoinGroup("g", member, ("s",), coordinator=BrokerId(1))
    async with asyncio.timeout(60):
        while True:
            broker = next(b for n, b in cluster.brokers.items() if n != avoid)
            try:
                await broker.change(command)
            except UnavailableError:
                await asyncio.sleep(0.02)
            except InvalidRequestError as error:
                assert "already a member" in error.message  # noqa: PT017  its answer was lost
                return
            else:
                return


def events(cluster, kit, number):
    """Return the events in a broker's replica of the stream."""
    values = kit.values(cluster.partition(number, ACTIVITY))
    return [pb.ActivityStreamEvent.FromString(value) for value in values]


@pytest.mark.timeout(400)
async def test_every_change_is_told_once_and_in_order(cluster, kit, writers):
    """Though the controller, and the leader of the stream, are killed between and amid changes."""
    await writers.start(1, 2, 3)
    await cluster.create(ACTIVITY)
    await cluster.create("s")
    members = []
    for round_number in range(3):
        await join(cluster, f"m{len(members)}")
        members.append(f"m{len(members)}")
        leader = await cluster.leader(ACTIVITY)
        controller = next(n for n, b in cluster.brokers.items() if b.membership.quorum.is_leading)
        victim = (leader, controller, leader)[round_number]
        joining = asyncio.create_task(join(cluster, f"m{len(members)}", avoid=victim))
        await writers.kill(victim)
        await joining
        members.append(f"m{len(members)}")
        await join(cluster, f"m{len(members)}")
        members.append(f"m{len(members)}")
        await writers.start(victim)
        await cluster.isr(1, 2, 3, name=ACTIVITY)
    for number in cluster.brokers:
        await kit.until(
            lambda n=number: len(events(cluster, kit, n)) >= 2 + len(members), seconds=60
        )
        found = events(cluster, kit, number)
        assert [event.id for event in found] == list(range(1, 3 + len(members)))
        assert [event.createStreamOp.stream for event in found[:2]] == [ACTIVITY, "s"]
        assert [event.joinConsumerGroupOp.consumerId for event in found[2:]] == members
    await kit.until(lambda: not any(b.image.events for b in cluster.brokers.values()), seconds=20)
