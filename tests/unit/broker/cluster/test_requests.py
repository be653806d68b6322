"""Commands from any broker: forwarded, tried again, and applied once where that matters."""

import asyncio
from functools import partial

import pytest

from strandline.broker.cluster import requests as requests_module
from strandline.broker.cluster.channels import Propose
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.broker.cluster.requests import Requests, Session
from strandline.core.metadata.apply import apply_entry
from strandline.core.metadata.commands import AllocateProducerIds, OpenSession, decode_entry
from strandline.core.metadata.image import MetadataImage
from strandline.errors import NotLeaderError, RequestTimeoutError, UnavailableError


class Group:
    """One image, changed by the present leader; brokers reach each other unless isolated."""

    def __init__(self):
        self.image = MetadataImage()
        self.leader = 1
        self.applied = []
        self.lost_answers = 0
        self.requests = {}
        self.questions = {}
        self.is_cut = False
        self.is_lagging = False
        """Whether those that do not lead apply nothing new; ``known`` is what they have."""
        self.known = 0

    def join(self, number):
        group = self

        class Member:
            """This broker's member of the quorum."""

            @property
            def leader(self):
                return group.leader

            @property
            def is_leading(self):
                return group.leader == number

            @property
            def applied_index(self):
                return len(group.applied) if self.is_leading else group.known

            async def applied(self, index):
                while self.applied_index < index:  # noqa: ASYNC110  only a test waits so
                    await asyncio.sleep(0.001)

            async def propose(self, data, *, timeout_s):
                if not self.is_leading:
                    raise NotLeaderError("another leads")
                group.applied.append(decode_entry(data))
                if not group.is_lagging:
                    group.known = len(group.applied)
                group.image, outcome = apply_entry(group.image, group.applied[-1])
                return outcome

        self.questions[number] = PeerRpc(partial(self._carry, number))
        self.requests[number] = Requests(Member(), self.questions[number])
        return self.requests[number]

    def _carry(self, sender, to, request):
        if self.is_cut or to not in self.requests:
            return False
        if isinstance(request, Propose):
            self.requests[to].serve(sender, request)
        elif self.lost_answers:
            self.lost_answers -= 1
            self.questions[to].peer_disconnected(sender)
        else:
            self.questions[to].answered(sender, request)
        return True


@pytest.fixture
async def group(monkeypatch):
    monkeypatch.setattr(requests_module, "RETRY_S", 0.001)
    made = Group()
    yield made
    for requests in made.requests.values():
        await requests.stop()


@pytest.mark.parametrize("number", [1, 2])
async def test_a_command_reaches_the_leader_from_anywhere(group, number):
    """The one that leads decides itself; from another broker the command is forwarded."""
    group.join(1), group.join(2)
    outcome = await group.requests[number].propose(AllocateProducerIds(5), timeout_s=60)
    assert (outcome.value, len(group.applied)) == (1, 1)


async def test_whoever_asked_has_applied_it_when_it_is_answered(group):
    """A forwarded command is answered only when this broker's own image has it."""
    group.join(1), group.join(2)
    group.is_lagging = True
    asked = asyncio.create_task(group.requests[2].propose(OpenSession(), timeout_s=60))
    while not group.applied:  # noqa: ASYNC110  a round of the loop or two
        await asyncio.sleep(0)
    done, _ = await asyncio.wait({asked}, timeout=0.1)
    assert not done
    group.known = len(group.applied)
    assert (await asked).is_applied


async def test_it_is_tried_again_until_somebody_leads_and_is_reached(group):
    """Elections and broken links cost time, not the command."""
    group.join(1)
    caller = group.join(2)
    group.leader = None
    asked = asyncio.create_task(caller.propose(AllocateProducerIds(5), timeout_s=60))
    await asyncio.sleep(0.01)
    group.leader, group.is_cut = 1, True
    await asyncio.sleep(0.01)
    assert not asked.done()
    group.is_cut = False
    assert (await asked).value == 1


async def test_without_a_quorum_the_caller_is_told_in_time(group):
    """It says that the outcome is open."""
    caller = group.join(2)
    group.leader = None
    with pytest.raises(RequestTimeoutError, match="may still happen"):
        await caller.propose(AllocateProducerIds(5), timeout_s=0.05)


async def test_what_nobody_was_asked_for_is_certain_not_to_happen(group, monkeypatch):
    """The error comes before clients give up; not once a proposal may have been accepted."""
    monkeypatch.setattr(requests_module, "LEADERLESS_S", 0.1)
    group.join(1)
    caller = group.join(2)
    group.leader = None
    with pytest.raises(UnavailableError, match=r"^nothing was changed.*most of the") as refused:
        await caller.propose(AllocateProducerIds(5), timeout_s=60)
    assert refused.value.code == "unavailable"
    group.leader, group.lost_answers = 1, 1
    asked = asyncio.create_task(caller.propose(AllocateProducerIds(5), timeout_s=0.5))
    while group.lost_answers:  # noqa: ASYNC110  until it was taken, and nobody knows
        await asyncio.sleep(0.001)
    group.leader = None
    with pytest.raises(RequestTimeoutError, match="may still happen"):
        await asked


async def test_a_session_applies_once_what_is_proposed_twice(group):
    """When an answer is lost the command is proposed again, and has the same outcome."""
    group.join(1)
    session = Session(group.join(2))
    first = await session.propose(AllocateProducerIds(5), timeout_s=60)
    group.lost_answers = 2
    second = await session.propose(AllocateProducerIds(5), timeout_s=60)
    third = await session.propose(AllocateProducerIds(5), timeout_s=60)
    assert [first.value, second.value, third.value] == [1, 6, 11]
    assert len(group.applied) == 1 + 1 + 3 + 1, "a session, and one command proposed three times"


async def test_a_session_that_was_forgotten_is_opened_again(group):
    """The caller learns that the outcome is unknown; the next command succeeds."""
    group.join(1)
    session = Session(group.join(2))
    await session.propose(AllocateProducerIds(1), timeout_s=60)
    for _ in range(300):
        await group.requests[1].propose(OpenSession(), timeout_s=60)
    with pytest.raises(UnavailableError, match="forgotten"):
        await session.propose(AllocateProducerIds(1), timeout_s=60)
    assert (await session.propose(AllocateProducerIds(1), timeout_s=60)).is_applied


async def test_who_asks_again_and_again_lets_others_run(group, monkeypatch):
    """Endless retries must not keep the loop from learning of a leader or a stop."""
    monkeypatch.setattr(requests_module, "LEADERLESS_S", 0.0)
    caller = group.join(2)
    group.leader = None
    for _ in range(2):
        has_run = asyncio.Event()
        asyncio.get_running_loop().call_soon(has_run.set)
        with pytest.raises(UnavailableError):
            await caller.propose(AllocateProducerIds(5), timeout_s=60)
        assert has_run.is_set()


async def test_who_asks_after_others_waited_in_vain_does_not_wait_again(group, monkeypatch):
    """Else those that wait for one another would outlast the clients that wait for them."""
    monkeypatch.setattr(requests_module, "LEADERLESS_S", 0.1)
    group.join(1)
    caller = group.join(2)
    group.leader = None
    with pytest.raises(UnavailableError):
        await caller.propose(AllocateProducerIds(5), timeout_s=60)
    monkeypatch.setattr(requests_module, "RETRY_S", 60.0)  # a second attempt would take too long
    async with asyncio.timeout(30):
        with pytest.raises(UnavailableError, match=r"^nothing was changed"):
            await caller.propose(AllocateProducerIds(5), timeout_s=60)
