"""Where a group commit is synced: on the loop, on a thread or in a process."""

import asyncio

import pytest

from strandline.broker.write_path.sync_policy import (
    COUNTED_MS_MAX,
    INLINE_BYTES_MAX,
    INLINE_MS_MAX,
    ONE_BYTES_MAX,
    SyncPolicy,
)
from strandline.broker.write_path.sync_process import SyncProcess
from strandline.broker.write_path.sync_thread import SyncThread
from strandline.clock import SystemClock
from strandline.storage.disk import Disk

OF_MANY = {"is_from_one": False, "is_read_here": False}
OF_ONE = {"is_from_one": True, "is_read_here": True}
GATHERED = {"is_from_one": True, "is_read_here": False}


@pytest.fixture
async def syncer():
    made = SyncPolicy(asyncio.get_running_loop(), Disk(), SystemClock())
    yield made
    made.close()


async def test_slow_syncs_move_off_the_loop_and_back(syncer):
    """A disk that is slow on average is not waited for, until it is quick again."""
    assert syncer.is_inline(1, **OF_MANY)
    for _ in range(50):
        syncer.observe(10 * INLINE_MS_MAX)
    assert not syncer.is_inline(1, **OF_MANY)
    for _ in range(50):
        syncer.observe(0.1)
    assert syncer.is_inline(1, **OF_MANY)


async def test_large_group_commits_are_synced_off_the_loop(syncer):
    """However fast the disk, unless new records are gathered elsewhere meanwhile."""
    assert syncer.is_inline(INLINE_BYTES_MAX, **OF_MANY)
    assert not syncer.is_inline(INLINE_BYTES_MAX + 1, **OF_MANY)
    assert syncer.is_inline(ONE_BYTES_MAX, **OF_ONE)
    assert not syncer.is_inline(ONE_BYTES_MAX + 1, **OF_ONE)
    assert syncer.is_inline(ONE_BYTES_MAX + 1, **GATHERED)
    syncer.average_ms = INLINE_MS_MAX
    assert not syncer.is_inline(1, **OF_ONE)
    assert not syncer.is_inline(1, **GATHERED)


async def test_one_hiccup_does_not_move_them(syncer):
    """A sync that took very long is no reason to expect the same of the next."""
    for _ in range(50):
        syncer.observe(0.2)
    syncer.observe(1000 * COUNTED_MS_MAX)
    assert syncer.is_inline(1, **OF_MANY)


async def test_a_disk_that_does_more_than_the_system_syncs_in_this_process(syncer, kit):
    """Faults that a test or a chaos run injects would not apply in another process."""
    rigged = SyncPolicy(asyncio.get_running_loop(), kit.Disk(), SystemClock())
    assert isinstance(rigged._elsewhere, SyncThread)
    assert isinstance(syncer._elsewhere, SyncProcess)
    rigged.close()


async def test_without_a_process_the_loop_syncs(syncer, monkeypatch):
    """Where none can be started, as when there are no descriptors left."""
    monkeypatch.setattr(syncer._elsewhere, "is_there", lambda: False)
    syncer.average_ms = 1e12
    assert syncer.is_inline(1 << 20, **OF_MANY)
