"""A replica's log state: offsets that never contradict each other."""

import pytest

from strandline.core.replication.messages import NO_EPOCH
from strandline.core.replication.state import LogState

from .conftest import ref


def test_appended_is_not_durable_before_a_sync():
    """Batches move the log end; only a sync moves the durable offset."""
    log = LogState()
    log.append((ref(0, 3), ref(3, 4)))
    assert (log.log_end_offset, log.durable_offset, log.last_epoch) == (4, 0, 1)
    log.synced(3)
    assert log.durable_offset == 3


def test_a_sync_that_is_older_than_another_changes_nothing():
    """The durable offset does not go back."""
    log = LogState(0, 5, epochs=((1, 0),))
    log.synced(2)
    assert log.durable_offset == 5


def test_a_sync_of_more_than_there_is_is_our_bug():
    """A sync that forgot a truncation is caught."""
    log = LogState(0, 5, epochs=((1, 0),))
    with pytest.raises(AssertionError, match="durable up to its end"):
        log.synced(6)


def test_a_batch_that_does_not_follow_is_our_bug():
    """The roles check before they append."""
    with pytest.raises(AssertionError, match="dense"):
        LogState().append((ref(1, 2),))


def test_a_cut_lowers_what_is_durable():
    """Truncated records are no longer durable, though the disk may still have them."""
    log = LogState(0, 9, epochs=((1, 0), (2, 4)))
    log.truncate_to(4)
    assert (log.log_end_offset, log.durable_offset, log.last_epoch) == (4, 4, 1)


def test_a_reset_is_not_durable_at_once():
    """If a crash undid the reset the old log would return: it must not have been counted."""
    log = LogState(0, 3, epochs=((1, 0),))
    log.reset_to(7)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (7, 7, 7)
    assert log.durable_offset == 0
    assert log.last_epoch == NO_EPOCH
    log.synced(7)
    assert log.durable_offset == 7


def test_a_checkpointed_high_watermark_is_kept_within_the_log():
    """A value below the log start or beyond the log end is corrected."""
    assert LogState(5, 9, high_watermark=2).high_watermark == 5
    assert LogState(5, 9, high_watermark=20).high_watermark == 9


def test_retention_leaves_an_empty_log_without_epoch():
    """An empty log cannot differ from any other."""
    log = LogState(0, 4, high_watermark=4, epochs=((1, 0),))
    log.delete_before(4)
    assert log.last_epoch == NO_EPOCH
    log.append((ref(4, 5, epoch=1),))
    assert log.last_epoch == 1


def test_retention_of_uncommitted_records_is_our_bug():
    """The log start never passes the high watermark."""
    with pytest.raises(AssertionError, match="committed"):
        LogState(0, 4, high_watermark=2, epochs=((1, 0),)).delete_before(3)
