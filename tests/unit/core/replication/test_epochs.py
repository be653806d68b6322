"""The list of epochs, and that two logs find where they part by it alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.replication.epochs import EpochList
from strandline.core.replication.messages import NO_EPOCH


def test_an_epoch_begins_with_its_first_batch():
    """Later batches of the same epoch change nothing."""
    epochs = EpochList()
    assert epochs.last == NO_EPOCH
    for epoch, offset in [(1, 0), (1, 3), (4, 5), (4, 6)]:
        epochs.note(epoch, offset)
    assert epochs.entries == ((1, 0), (4, 5))
    assert epochs.last == 4


def test_epochs_never_go_back():
    """A batch of an older epoch behind a newer one is our own bug."""
    epochs = EpochList(((2, 0),))
    with pytest.raises(AssertionError, match="never go back"):
        epochs.note(1, 5)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(0, None), (1, (1, 5)), (2, (1, 5)), (3, (1, 5)), (4, (4, 9)), (9, (4, 9))],
)
def test_the_largest_epoch_not_above_is_found_with_its_end(asked, answer):
    """The last epoch ends at the log end; for one never seen the one below answers."""
    assert EpochList(((1, 0), (4, 5))).end_of(asked, log_end_offset=9) == answer


def test_cutting_the_end_forgets_what_began_there():
    """An epoch that begins at the truncation has no batch left."""
    epochs = EpochList(((1, 0), (4, 5), (6, 8)))
    epochs.truncate_to(5)
    assert epochs.entries == ((1, 0),)
    epochs.truncate_to(0)
    assert epochs.entries == ()


def test_retention_keeps_the_epoch_in_force():
    """The first entry begins at the log start, whatever was before it."""
    epochs = EpochList(((1, 0), (4, 5), (6, 8)))
    epochs.delete_before(6)
    assert epochs.entries == ((4, 6), (6, 8))
    epochs.delete_before(8)
    assert epochs.entries == ((6, 8),)


def test_an_epoch_left_at_the_very_end_gives_way():
    """After retention took everything, the next leader's first batch begins at the same offset."""
    epochs = EpochList(((1, 0),))
    epochs.delete_before(4)
    epochs.note(2, 4)
    assert epochs.entries == ((2, 4),)


class OneLog:
    """A log of numbered records of each epoch, and its list of epochs."""

    def __init__(self):
        self.records = []
        self.epochs = EpochList()

    def append(self, epoch, number):
        self.epochs.note(epoch, len(self.records))
        self.records.append((epoch, number))

    def cut(self, offset):
        del self.records[offset:]
        self.epochs.truncate_to(offset)

    def agree_with(self, leader):
        """Ask the leader epoch by epoch, and truncate as it answers."""
        while self.records:
            last = self.epochs.last
            agreed = leader.epochs.end_of(last, log_end_offset=len(leader.records))
            if agreed is None:
                self.cut(0)
                return
            epoch, end = agreed
            if epoch == last and len(self.records) <= end:
                return
            own = self.epochs.end_of(epoch, log_end_offset=len(self.records))
            cut = 0 if own is None else min(own[1], end) if own[0] == epoch else own[1]
            assert cut < len(self.records), "each answer cuts something"
            self.cut(cut)


elections = st.lists(
    st.tuples(st.permutations((0, 1, 2)), st.integers(0, 3), st.integers(0, 6)), max_size=12
)


@given(elections)
def test_walking_back_ends_at_a_common_prefix(history):
    """However leaders change, agreeing epoch by epoch leaves a prefix of the leader's log."""
    logs = [OneLog() for _ in range(3)]
    for epoch, ((leading, following, _), appended, copied) in enumerate(history):
        leader, follower = logs[leading], logs[following]
        for number in range(appended):
            leader.append(epoch, number)
        follower.agree_with(leader)
        kept = len(follower.records)
        assert follower.records == leader.records[:kept]
        for record in leader.records[kept : kept + copied]:
            follower.append(*record)
        assert follower.epochs.entries == leader.epochs.entries[: len(follower.epochs.entries)]
