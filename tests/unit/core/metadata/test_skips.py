"""Partitions that skip beyond their end: a new log replaces the old one."""

from strandline.core.metadata.commands import SkipTo
from strandline.core.metadata.partitions import OFFSET_MAX


def test_a_new_log_takes_the_place_of_the_old(cluster):
    """Kept, led and in sync as before; the epoch is new, so that nothing old is taken for it."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.isr(1, 2)
    before = made.partition()
    made.must(SkipTo(made.at(), 100))
    after = made.partition()
    assert after.log_id > before.log_id
    assert after.log_start_offset == 100
    assert after.leader_epoch == before.leader_epoch + 1
    assert (after.leader, after.isr, after.replicas) == (1, (1, 2), (1, 2, 3))
    made.create("t", (1, 2, 3))
    assert made.partition(name="t").log_id > after.log_id


def test_what_was_decided_before_does_not_apply(cluster):
    """Neither to the new log, nor a second time."""
    made = cluster()
    made.create("s", (1, 2, 3))
    at = made.at()
    made.must(SkipTo(at, 100))
    assert made.do(SkipTo(at, 200)).reason == "stale_partition"
    assert made.partition().log_start_offset == 100


def test_an_impossible_offset_is_rejected(cluster):
    """One that the log has passed, and one that nothing counts to."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.must(SkipTo(made.at(), 100))
    for offset in (-1, 0, 100, OFFSET_MAX + 1):
        assert made.do(SkipTo(made.at(), offset)).reason == "limit"


def test_the_last_offset_is_possible(cluster):
    """And so is the first one beyond the log's start."""
    made = cluster()
    made.create("s", (1, 2, 3))
    for offset in (1, OFFSET_MAX):
        made.must(SkipTo(made.at(), offset))
        assert made.partition().log_start_offset == offset
