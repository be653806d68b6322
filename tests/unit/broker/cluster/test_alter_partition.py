"""ISR changes of leaders here: which are proposed, and what leaders hear of the outcome."""

import asyncio
from types import SimpleNamespace

import pytest

from strandline.broker.cluster import alter_partition
from strandline.broker.cluster.alter_partition import IsrProposals
from strandline.core.metadata.commands import BrokerRun, ChangeIsr, IsrChange, PartitionAt
from strandline.core.metadata.image import BrokerImage, MetadataImage
from strandline.core.metadata.outcome import CommandOutcome, CommandRejection
from strandline.core.replication import events as ev
from strandline.core.replication.effects import ProposeIsr
from strandline.errors import UnavailableError
from strandline.types import PartitionName
from tests.kit.waiting import until_async

ME = BrokerRun(1, "run-1")


class Driver:
    """A leader here; keeps what it hears."""

    def __init__(self, number, epoch=4):
        self.log_id = 10 + number
        self.partition = SimpleNamespace(name=PartitionName("s", number))
        self.replica = SimpleNamespace(epoch=epoch)
        self.heard = []

    def step(self, event):
        self.heard.append(event)

    def proposal(self, *, epoch=4, joining=()):
        return ProposeIsr(
            epoch=epoch, version=7, proposal=self.log_id + 90, isr=(1, 2), joining=joining
        )


class Session:
    """Keeps commands; answers as a test has set."""

    def __init__(self):
        self.commands, self.answers = [], []

    async def propose(self, command, *, timeout_s):
        assert timeout_s == alter_partition.ISR_TIMEOUT_S
        self.commands.append(command)
        answer = self.answers.pop(0) if self.answers else CommandOutcome()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def isr(monkeypatch):
    """Proposals that run, their session, and the image that they look at."""
    monkeypatch.setattr(alter_partition, "ISR_RETRY_S", 0.01)
    known = MetadataImage().with_broker(
        BrokerImage(id=2, directory_id="d", incarnation="run-2", is_fenced=False)
    )
    session = Session()
    proposals = IsrProposals(session, lambda: known)
    proposals.me = ME
    running = asyncio.create_task(proposals.run())
    yield SimpleNamespace(propose=proposals.propose, session=session)
    running.cancel()


def change(driver):
    at = PartitionAt("s", driver.partition.name.partition, driver.log_id, 7)
    return IsrChange(at, 4, (1, 2))


async def test_pending_changes_are_one_command(isr):
    """Each with the version and epoch that it was decided in; of a leader only the newest."""
    first, second = Driver(0), Driver(1)
    isr.propose(first, first.proposal(epoch=3))
    isr.propose(first, first.proposal(joining=((2, "run-2"),)))
    isr.propose(second, second.proposal())
    await until_async(lambda: isr.session.commands)
    assert isr.session.commands == [ChangeIsr(ME, (change(first), change(second)))]
    assert first.heard == second.heard == []


async def test_a_change_of_an_earlier_epoch_is_not_proposed(isr):
    """Its leader has another one by now, and waits for no answer."""
    late, driver = Driver(0, epoch=5), Driver(1)
    isr.propose(late, late.proposal())
    isr.propose(driver, driver.proposal())
    await until_async(lambda: isr.session.commands)
    assert isr.session.commands == [ChangeIsr(ME, (change(driver),))]
    assert late.heard == []


@pytest.mark.parametrize("joining", [(2, "run-1"), (3, "run-2")])
async def test_a_replica_of_an_earlier_run_does_not_join(isr, joining):
    """It may have lost what it had acknowledged; the leader hears so at once."""
    driver = Driver(0)
    isr.propose(driver, driver.proposal(joining=((2, "run-2"), joining)))
    await until_async(lambda: driver.heard)
    assert driver.heard == [ev.IsrRejected(4, 100)]
    assert isr.session.commands == []


async def test_a_leader_hears_why_it_was_rejected(isr):
    """Not of an outdated version or leader: the image shows what is true instead."""
    drivers = [Driver(number) for number in range(4)]
    reasons = ["not_eligible", "stale_partition", "not_leader"]
    isr.session.answers = [
        CommandOutcome(
            rejected=tuple(CommandRejection("s", n, why, "") for n, why in enumerate(reasons))
        )
    ]
    for driver in drivers:
        isr.propose(driver, driver.proposal())
    await until_async(lambda: drivers[0].heard)
    assert drivers[0].heard == [ev.IsrRejected(4, 100)]
    assert [driver.heard for driver in drivers[1:]] == [[], [], []]


async def test_a_command_rejected_as_a_whole_is_a_rejection_of_each(isr):
    """So with a session that ended, for example."""
    driver = Driver(0)
    isr.session.answers = [CommandOutcome(code="invalid_request", reason="stale_incarnation")]
    isr.propose(driver, driver.proposal())
    await until_async(lambda: driver.heard)
    assert driver.heard == [ev.IsrRejected(4, 100)]


async def test_what_was_not_decided_is_proposed_again(isr):
    """Unless there is a newer proposal of the leader by then."""
    first, second = Driver(0), Driver(1)
    isr.session.answers = [UnavailableError("no quorum")]
    isr.propose(first, first.proposal())
    isr.propose(second, second.proposal())
    await until_async(lambda: len(isr.session.commands) == 2)
    assert isr.session.commands[1] == isr.session.commands[0]
    assert first.heard == []
