"""Iteration over a segment's batches, whatever a window of the file has of them."""

import pytest

from strandline.storage import walk as walk_module
from strandline.storage.walk import walk


@pytest.mark.parametrize("window", [72, 100, 1 << 20])
def test_batches_larger_than_a_window_are_found(open_log, fill, monkeypatch, window):
    """Also the last one, which ends where the file does."""
    monkeypatch.setattr(walk_module, "WINDOW_BYTES", window)
    log = open_log(segment_bytes=1 << 20)
    batches = fill(log, 5)
    log.checkpoint()
    holes = []
    found = list(walk(log.segments[0], on_hole=holes.append))
    assert holes == []
    assert [bytes(each.view) for each in found] == [bytes(batch) for batch in batches]
