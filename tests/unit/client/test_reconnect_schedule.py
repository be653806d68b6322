"""When the partitions of a read are opened again."""

import pytest

from strandline.client.reconnect_schedule import STABLE_S, ReconnectSchedule
from strandline.errors import DisconnectedError

GONE = DisconnectedError("gone")


def test_an_attempt_that_failed_is_followed_by_a_pause():
    """Until then there is something to wait for; where nothing is closed there is not."""
    reads = ReconnectSchedule([0, 1], timeout_s=10)
    assert reads.wait_s(100.0) == 0.0
    reads.failed([0, 1], GONE, 100.0)
    pause_s = reads.wait_s(100.0)
    assert 0 < pause_s < 10
    assert reads.wait_s(100.0 + pause_s / 2) == pytest.approx(pause_s / 2)
    assert reads.wait_s(100.0 + 2 * pause_s) == 0.0
    reads.opened([0, 1], 101.0)
    assert reads.closed == set()
    assert reads.wait_s(101.0) is None


def test_partitions_are_tried_for_as_long_as_each_may_be_away():
    """A partition that stays closed that long ends the read with its last error."""
    reads = ReconnectSchedule([0], timeout_s=1)
    assert reads.left_s(100.0) == 1
    reads.failed([0], GONE, 100.5)
    assert 0 < reads.left_s(100.7) < 1
    with pytest.raises(DisconnectedError, match="gone"):
        reads.failed([0], GONE, 102.0)


def test_a_read_that_stood_begins_again_with_its_patience():
    """After a connected read, earlier failures do not count."""
    reads = ReconnectSchedule([0], timeout_s=1)
    reads.failed([0], GONE, 100.0)
    reads.opened([0], 100.9)
    reads.lost([0], GONE, 100.9 + STABLE_S)
    assert reads.closed == {0}
    assert reads.left_s(100.9 + STABLE_S) == pytest.approx(1, abs=0.01)
