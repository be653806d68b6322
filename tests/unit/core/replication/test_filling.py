"""A replica that was never in sync is filled by one leadership, or starts again."""

import msgspec
import pytest

from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication.messages import Fetch, Replicate

from .conftest import ref

FIRST = 2001
"""The first session of broker 2 in these tests."""
RUN = "run 2"


@pytest.fixture
def filling(assigned):
    """An assignment of broker 1 as leader while broker 2 is being filled."""

    def build(epoch, *, version=0, who=(2,)):
        made = assigned(epoch, 1, isr=(1, 3), version=version)
        return msgspec.structs.replace(made, filling=who)

    return build


@pytest.fixture
def part(make, filling):
    """Broker 2, empty at first, which was given ten records by the leadership of epoch 2."""
    replica = make(2)
    assert replica.step(filling(2, version=5), 0) == [fx.Send(1, Fetch(2, FIRST, 0, -1, RUN))]
    message = Replicate(2, FIRST, 0, 20, (ref(0, 10),))
    replica.step(ev.Received(1, message, (b"x",)), 0)
    replica.step(ev.Synced(10), 0)
    assert replica.replicated_offset == 10
    return replica


def anew(epoch, session, at=0):
    """Return the effects of a replica that starts again."""
    fetch = fx.Send(1, Fetch(epoch, session, at, -1, RUN))
    return [fx.ResetTo(at), fx.Committed(at), fetch]


def test_another_leadership_begins_again(part, filling):
    """Even one of the same broker, which does not know what it sent before."""
    assert part.step(filling(3, version=6), 0) == anew(3, FIRST + 1)
    assert (part.log.log_end_offset, part.replicated_offset, part.disk_offset) == (0, 0, 0)


def test_one_leadership_continues(part, filling):
    """Changes of the ISR and broken links do not matter."""
    assert part.step(filling(2, version=6), 0) == []
    part.step(ev.PeerDisconnected(1), 0)
    assert part.step(ev.PeerConnected(1), 0) == [fx.Send(1, Fetch(2, FIRST + 1, 10, 1, RUN))]


def test_once_in_sync_it_is_kept(part, assigned, filling):
    """Under any later leader: it has everything, or null values wait for it."""
    part.step(assigned(2, 1, version=6), 0)
    part.step(filling(2, version=5), 0)  # old news
    assert part.step(assigned(3, 3, version=7), 0) == [fx.Send(3, Fetch(3, FIRST + 1, 10, 1, RUN))]


def test_a_copy_that_was_only_away_is_kept(make, filling):
    """Others may be filling: what this replica acked is valid."""
    replica = make(2, 10, hw=6)
    assert replica.step(filling(2, who=(3,)), 0) == [fx.Send(1, Fetch(2, FIRST, 10, 1, RUN))]


def test_after_a_restart_it_begins_again(make, filling):
    """The filling leader was not stored; the log start was, below which nothing is needed."""
    replica = make(2, 10, start=4, hw=6, epochs=((1, 4),))
    assert replica.step(filling(2), 0) == anew(2, FIRST, at=4)


def test_a_copy_that_was_away_and_came_back_unnoticed_begins_again(make, assigned, filling):
    """Null values did not wait for it meanwhile."""
    replica = make(2, 10, hw=6)
    replica.step(assigned(2, 1, version=5), 0)
    assert replica.step(filling(2, version=8), 0) == anew(2, FIRST + 1)
    assert replica.step(filling(2, version=9), 0) == []
