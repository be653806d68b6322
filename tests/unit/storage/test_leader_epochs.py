"""Leader epochs: where each began, where a follower must cut, and the file that keeps them."""

import pytest
from crc32c import crc32c

from strandline.errors import CorruptBatchError, DiskFullError
from strandline.storage.leader_epochs import LeaderEpochs


@pytest.fixture
def epochs(tmp_path, disk):
    """Epochs 0, 2, 3 and 7 from offsets 0, 10, 20 and 35."""
    made = LeaderEpochs.open(tmp_path, disk=disk)
    for epoch, start in ((2, 10), (3, 20), (7, 35)):
        made.begin(epoch, start)
    return made


def test_epoch_zero_needs_no_file(tmp_path, disk):
    """A new partition is in epoch 0 from offset 0."""
    made = LeaderEpochs.open(tmp_path, disk=disk)
    assert made.entries == ((0, 0),)
    assert made.current == 0
    assert disk.listing(tmp_path) == {}


def test_file_round_trip_survives_a_power_loss(tmp_path, disk, epochs):
    """Every change is durable when it returns."""
    disk.crash()
    assert LeaderEpochs.open(tmp_path, disk=disk).entries == ((0, 0), (2, 10), (3, 20), (7, 35))


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(0, (0, 10)), (1, (0, 10)), (2, (2, 20)), (5, (3, 35)), (7, (7, 50)), (9, (7, 50))],
)
def test_end_offset(epochs, epoch, answer):
    """A follower's epoch ends where the next known one begins."""
    assert epochs.end_offset(epoch, log_end_offset=50) == answer


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 0), (10, 2), (34, 3), (35, 7), (99, 7)])
def test_epoch_at(epochs, offset, epoch):
    """Each offset was written in one epoch."""
    assert epochs.epoch_at(offset) == epoch


def test_epoch_that_wrote_nothing_gives_way(epochs):
    """An epoch that begins where the one before began replaces it."""
    epochs.begin(8, 35)
    assert epochs.entries[-2:] == ((3, 20), (8, 35))


@pytest.mark.parametrize(
    ("offset", "entries"),
    [
        (50, ((0, 0), (2, 10), (3, 20), (7, 35))),
        (35, ((0, 0), (2, 10), (3, 20))),
        (15, ((0, 0), (2, 10))),
        (0, ((0, 0),)),
    ],
)
def test_truncate_to(tmp_path, disk, epochs, offset, entries):
    """Epochs of the records that were cut are forgotten."""
    epochs.truncate_to(offset)
    assert LeaderEpochs.open(tmp_path, disk=disk).entries == entries


def test_truncate_before(epochs):
    """Epochs before the new start are forgotten; the one in force there begins there."""
    epochs.truncate_before(25)
    assert epochs.entries == ((3, 25), (7, 35))
    assert epochs.end_offset(2, log_end_offset=50) == (-1, 25)
    epochs.truncate_before(35)
    assert epochs.entries == ((7, 35),)


def test_full_disk_changes_nothing(tmp_path, disk, epochs):
    """An epoch that could not be noted did not begin."""
    disk.full = True
    with pytest.raises(DiskFullError):
        epochs.begin(9, 40)
    assert epochs.current == 7
    disk.full = False
    assert LeaderEpochs.open(tmp_path, disk=disk).current == 7


def test_every_flip_is_noticed(tmp_path, disk, epochs):
    """A flipped bit anywhere in the file is damage."""
    path = tmp_path / "leader-epochs"
    good = path.read_bytes()
    for byte in range(len(good)):
        path.write_bytes(good[:byte] + bytes([good[byte] ^ 1]) + good[byte + 1 :])
        with pytest.raises(CorruptBatchError):
            LeaderEpochs.open(tmp_path, disk=disk)


@pytest.mark.parametrize(
    "text", [b"0", b"0 x\n", b"1 2 3\n", b"5 0\n4 10\n", b"1 5\n2 5\n", b"\xff"]
)
def test_damaged_file_is_named(tmp_path, disk, text):
    """Anything but two ascending numbers a line is damage, with the file's name."""
    sealed = text + b"crc32c %08x\n" % crc32c(text)
    (tmp_path / "leader-epochs").write_bytes(sealed)
    with pytest.raises(CorruptBatchError) as caught:
        LeaderEpochs.open(tmp_path, disk=disk)
    assert caught.value.file.endswith("leader-epochs")
