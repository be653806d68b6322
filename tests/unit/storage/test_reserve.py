"""Space put aside for removals."""

import pytest

from strandline.errors import DiskFullError
from strandline.storage.reserve import BYTES_MIN, FILE_NAME, Reserve


@pytest.fixture
def reserve(tmp_path, disk):
    return Reserve(tmp_path, disk)


def size(directory):
    path = directory / FILE_NAME
    return path.stat().st_size if path.exists() else 0


def test_what_was_spent_is_put_aside_again(reserve, tmp_path):
    """The reserve grows back to the largest size that was requested."""
    reserve.spend()
    assert size(tmp_path) == 0
    reserve.renew()
    assert size(tmp_path) == BYTES_MIN
    reserve.renew(3 * BYTES_MIN)
    reserve.spend()
    reserve.renew()
    assert size(tmp_path) == 3 * BYTES_MIN


def test_what_is_there_is_not_written_again(reserve, tmp_path):
    """It is renewed after every removal."""
    reserve.renew()
    before = (tmp_path / FILE_NAME).stat()
    reserve.renew()
    reserve.renew(BYTES_MIN)
    after = (tmp_path / FILE_NAME).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_no_space_for_it_is_a_warning(reserve, tmp_path, disk, monkeypatch, caplog):
    """A full disk has no room for a reserve: the next removal may have to do without."""

    def full(*_):
        raise DiskFullError("full")

    monkeypatch.setattr(disk, "write_durably", full)
    reserve.renew()
    assert size(tmp_path) == 0
    assert "no space is reserved" in caplog.text
