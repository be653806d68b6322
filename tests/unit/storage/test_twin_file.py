"""Small files with a twin: one of the two may be corrupt or missing at any time."""

import pytest

from strandline.errors import CorruptBatchError, UnavailableError
from strandline.storage.twin_file import (
    read_with_twin,
    remove_with_twin,
    twin_of,
    write_with_twin,
)


def decode(data):
    """Contents are good unless they say otherwise."""
    if data.startswith(b"bad"):
        raise CorruptBatchError("checksum mismatch")
    return data


@pytest.fixture
def path(tmp_path, disk):
    made = tmp_path / "file"
    write_with_twin(made, b"one", disk=disk)
    return made


@pytest.mark.parametrize("data", [b"bad", None])
def test_a_file_that_is_corrupt_or_gone_is_rebuilt_from_its_twin(path, disk, data):
    """Once, and then it is intact again."""
    path.unlink() if data is None else path.write_bytes(data)
    assert read_with_twin(path, decode, disk=disk) == b"one"
    assert path.read_bytes() == b"one"


def test_a_corrupt_twin_is_not_looked_at(path, disk):
    """The next write replaces it."""
    twin_of(path).write_bytes(b"bad")
    assert read_with_twin(path, decode, disk=disk) == b"one"
    write_with_twin(path, b"two", disk=disk)
    assert twin_of(path).read_bytes() == b"two"


def test_both_corrupt_are_rejected(path, disk):
    """Nothing is guessed."""
    path.write_bytes(b"bad")
    twin_of(path).write_bytes(b"bad")
    with pytest.raises(CorruptBatchError):
        read_with_twin(path, decode, disk=disk)
    twin_of(path).unlink()
    with pytest.raises(CorruptBatchError):
        read_with_twin(path, decode, disk=disk)


def test_the_twin_is_never_older_than_the_file(path, disk):
    """A write that fails in between leaves the old file and an unused newer twin."""
    disk.fail("rename", after=1)
    with pytest.raises(UnavailableError):
        write_with_twin(path, b"two", disk=disk)
    assert (path.read_bytes(), twin_of(path).read_bytes()) == (b"one", b"two")
    assert read_with_twin(path, decode, disk=disk) == b"one"


def test_a_twin_serves_while_the_file_cannot_be_rebuilt(path, disk):
    """As on a full disk."""
    path.write_bytes(b"bad")
    disk.full = True
    assert read_with_twin(path, decode, disk=disk) == b"one"
    assert path.read_bytes() == b"bad"


def test_what_was_removed_is_not_there(path, disk):
    """Neither of them; removing nothing is fine."""
    for _ in range(2):
        remove_with_twin(path, disk=disk)
        assert read_with_twin(path, decode, disk=disk) is None


def test_a_removal_is_durable(path, disk):
    """Or a power cut would bring back votes that were withdrawn."""
    remove_with_twin(path, disk=disk)
    disk.crash()
    assert read_with_twin(path, decode, disk=disk) is None
