"""The checker of histories: each broken promise is found, and valid histories pass."""

import pytest

from strandline.testing.history import GroupHistory, PartitionHistory, ViolationError


@pytest.fixture
def history():
    """Two records acked to one publisher, a third to another, all read."""
    history = PartitionHistory("partition 0")
    history.ack(b"a", 0, floor=0)
    history.ack(b"b", 2, floor=1)
    history.ack(b"x", 1, floor=0)
    history.read("one", [0, 1], [b"a", b"x"])
    history.read("one", [2], [b"b"])
    return history


def test_a_right_history_passes(history):
    """Retries with the same answer, restarted readers and unacknowledged records pass."""
    history.ack(b"a", 0, floor=0)
    history.read("two", [0], [b"a"])
    history.refused(b"refused")
    history.settled("broker 1", [b"a", b"x", b"b", b"unanswered"])
    assert history.read("one", [3], [b"unanswered"]) == 4
    history.arrived("one", 4)
    assert (history.acked_end, history.offset_of(b"b"), history.offset_of(b"c")) == (3, 2, None)


@pytest.mark.parametrize(
    ("what", "happens"),
    [
        ("altered", lambda h: h.settled("broker 1", [b"a", b"X", b"b"])),
        ("lost", lambda h: h.settled("broker 1", [b"a", b"x"])),
        ("twice", lambda h: h.settled("broker 1", [b"a", b"x", b"b", b"a"])),
        ("acked elsewhere", lambda h: h.ack(b"a", 3, floor=0)),
        ("acked in another's place", lambda h: h.ack(b"c", 1, floor=0)),
        ("before what was acked earlier", lambda h: h.ack(b"c", 3, floor=4)),
        ("read again", lambda h: h.read("one", [2], [b"b"])),
        ("left out", lambda h: h.read("two", [1], [b"x"])),
        ("left out within", lambda h: h.read("two", [0, 2], [b"a", b"b"])),
        ("twice within", lambda h: h.read("two", [0, 0], [b"a", b"a"])),
        ("read otherwise", lambda h: h.read("two", [0], [b"x"])),
        ("refused and there", lambda h: h.refused(b"b")),
        (
            "refused and stored",
            lambda h: (h.refused(b"c"), h.settled("one", [b"a", b"x", b"b", b"c"])),
        ),
        ("not read to the end", lambda h: h.arrived("one", 4)),
        ("read beyond the end", lambda h: h.arrived("one", 2)),
        ("never read", lambda h: h.arrived("two", 3)),
    ],
)
def test_a_broken_promise_is_seen(history, what, happens):
    """Loss, change, repetition and disorder are found, whoever observes them."""
    with pytest.raises(ViolationError, match="partition 0"):
        happens(history)


def test_what_was_rejected_is_in_no_log(history):
    """Unlike a record without an answer, which may be there or not."""
    history.refused(b"no")
    history.settled("broker 1", [b"a", b"x", b"b", b"unanswered"])
    for happens in (
        lambda: history.settled("broker 2", [b"a", b"x", b"b", b"unanswered", b"no"]),
        lambda: history.read("two", range(5), [b"a", b"x", b"b", b"unanswered", b"no"]),
        lambda: history.ack(b"no", 4, floor=0),
    ):
        with pytest.raises(ViolationError, match="b'no' was refused, but is at 4"):
            happens()


def test_a_replica_may_not_lack_what_another_has(history):
    """The final records of one replica must be in all others."""
    history.settled("broker 1", [b"a", b"x", b"b", b"unanswered"])
    with pytest.raises(ViolationError, match="broker 2 ends at 3"):
        history.settled("broker 2", [b"a", b"x", b"b"])


@pytest.fixture
def group(history):
    """Two records processed by one member, which committed the first."""
    group = GroupHistory(history)
    group.begins("ann", 0)
    group.processed("ann", [0, 1], [b"a", b"x"])
    group.commits(1)
    return group


def test_a_right_group_passes(group):
    """Another member continues at the committed offset or later; processed records may repeat."""
    group.begins("bob", 1)
    group.processed("bob", [1, 2], [b"x", b"b"])
    group.begins("ann", 2)
    group.commits(3)
    group.settled(3, 3)
    assert (group.processed_end, group.committed) == (3, 3)


@pytest.mark.parametrize(
    ("what", "happens"),
    [
        ("begins beyond what was processed", lambda g: g.begins("bob", 3)),
        ("begins before a commit", lambda g: g.begins("bob", 0)),
        ("left out", lambda g: g.processed("ann", [3], [b"c"])),
        ("again without a reason", lambda g: g.processed("ann", [1], [b"x"])),
        ("processed otherwise", lambda g: g.processed("ann", [2], [b"B"])),
        ("not all processed", lambda g: g.settled(3, 2)),
        ("a position beyond what was processed", lambda g: g.settled(3, 3)),
        ("a position that is behind", lambda g: g.settled(2, 1)),
        ("no position", lambda g: g.settled(2, None)),
    ],
)
def test_a_broken_promise_to_a_group_is_seen(group, what, happens):
    """Records skipped or handed out of order, commits forgotten, positions that are wrong."""
    with pytest.raises(ViolationError, match="partition 0"):
        happens(group)
