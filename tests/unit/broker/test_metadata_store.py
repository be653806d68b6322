"""The metadata file: replaced whole, checked when read, never guessed at."""

import contextlib
import errno

import pytest

from strandline.broker.metadata_store import FILE_NAME, MetadataStore
from strandline.config import StreamConfig
from strandline.errors import (
    CorruptBatchError,
    DiskFullError,
    LogPoisonedError,
    StreamExistsError,
)
from strandline.metadata.commands import CreateStream, DeleteStream
from strandline.metadata.image import IMAGE_VERSION
from strandline.storage import reserve
from strandline.storage.reserve import Reserve


def create(name):
    return CreateStream(config=StreamConfig(name=name, subject=name), now_ns=1)


def opened(directory, disk):
    return MetadataStore(directory, disk, Reserve(directory, disk))


@pytest.fixture
def store(tmp_path, disk):
    return opened(tmp_path, disk)


def test_the_image_survives(store, tmp_path, disk):
    """What was applied is there when the file is read again."""
    store.apply(create("a"))
    store.apply(create("b"))
    store.apply(DeleteStream(name="a"))
    again = opened(tmp_path, disk)
    assert again.image == store.image
    assert list(again.image.streams) == ["b"]
    assert again.image.next_log_id == 3


def test_a_refused_command_changes_nothing(store, tmp_path, disk):
    """A command that does not apply leaves image and file alone."""
    store.apply(create("a"))
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StreamExistsError):
        store.apply(create("a"))
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_preview_changes_nothing(store):
    """One may look at what a command would do."""
    assert "a" in store.preview(create("a")).streams
    assert not store.image.streams


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "names"])
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, LogPoisonedError)]
)
def test_a_failed_write_leaves_the_old_image(store, tmp_path, disk, operation, code, kind):
    """The current image is the one on disk: the old one, until the new one is durable."""
    store.apply(create("a"))
    image = store.image
    disk.fail(operation, "*" if operation == "names" else FILE_NAME, code=code)
    with pytest.raises(kind):
        store.apply(create("b"))
    assert store.image is image
    disk.mend()
    found = opened(tmp_path, disk).image
    assert found in (image, store.preview(create("b")))


def test_an_image_whose_name_is_not_durable_is_taken_back(store, tmp_path, disk):
    """A failed command changed nothing, in memory and on disk."""
    store.apply(create("a"))
    disk.fail("names", times=1)
    with pytest.raises(LogPoisonedError):
        store.apply(DeleteStream(name="a"))
    assert store.is_certain
    assert opened(tmp_path, disk).image == store.image
    assert "a" in store.image.streams


def test_what_cannot_be_taken_back_is_not_certain(store, tmp_path, disk):
    """Until the file is that of the current image again."""
    store.apply(create("a"))
    disk.fail("names")
    with pytest.raises(LogPoisonedError):
        store.apply(DeleteStream(name="a"))
    assert not store.is_certain
    with pytest.raises(LogPoisonedError):
        store.restore()
    disk.mend()
    store.restore()
    assert store.is_certain
    assert opened(tmp_path, disk).image == store.image


def test_a_deletion_needs_no_space(store, tmp_path, disk, monkeypatch):
    """On a full disk the reserve is given up for it; a creation is refused."""
    store.apply(create("a"))
    kept = tmp_path / reserve.FILE_NAME
    plain = disk.pwrite

    def pwrite(fd, data, position):
        if kept.exists():
            raise DiskFullError("full")
        plain(fd, data, position)

    monkeypatch.setattr(disk, "pwrite", pwrite)
    with pytest.raises(DiskFullError):
        store.apply(create("b"))
    assert kept.exists()
    store.apply(DeleteStream(name="a"))
    assert not opened(tmp_path, disk).image.streams
    assert not kept.exists(), "there is no space for it yet"
    monkeypatch.undo()
    store.apply(create("b"))
    assert kept.stat().st_size >= 2 * (tmp_path / FILE_NAME).stat().st_size


def test_every_flipped_bit_is_found(store, tmp_path, disk):
    """Damage anywhere in the file is an error that names it, never another image."""
    store.apply(create("a"))
    path = tmp_path / FILE_NAME
    intact = path.read_bytes()
    for position in range(len(intact)):
        for bit in (0x01, 0x20, 0x80):
            damaged = bytearray(intact)
            damaged[position] ^= bit
            path.write_bytes(damaged)
            with contextlib.suppress(CorruptBatchError):
                found = opened(tmp_path, disk).image
                assert found == store.image, "only the file's trimmings may differ"
    path.write_bytes(intact[:30] + b"?" + intact[31:])
    with pytest.raises(CorruptBatchError, match=str(path)):
        opened(tmp_path, disk)


@pytest.mark.parametrize("length", [0, 1, 8, 9, 40])
def test_a_cut_file_is_found(store, tmp_path, disk, length):
    """A file that lost its end is not taken for an empty image."""
    store.apply(create("a"))
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptBatchError, match="restore"):
        opened(tmp_path, disk)


def test_a_later_version_is_refused(store, tmp_path, disk):
    """A file made by a version to come is not misread."""
    from crc32c import crc32c

    body = b'{"version": %d, "next_log_id": 1, "streams": {}}' % (IMAGE_VERSION + 1)
    (tmp_path / FILE_NAME).write_bytes(b"%08x\n%b\n" % (crc32c(body), body))
    with pytest.raises(CorruptBatchError, match=f"version {IMAGE_VERSION + 1}"):
        opened(tmp_path, disk)


def test_a_file_of_version_1_is_read(tmp_path, disk):
    """What a broker stored before there were clusters is read, and stored as it is now."""
    from crc32c import crc32c

    body = (
        b'{"version":1,"next_log_id":3,"streams":{"a":{"config":{"name":"a","subject":"a",'
        b'"partitions":2,"partition_by":"suffix"},"created_ns":5,"partitions":['
        b'{"log_id":1,"leader_epoch":0},{"log_id":2,"leader_epoch":0}]}}}'
    )
    (tmp_path / FILE_NAME).write_bytes(b"%08x\n%b\n" % (crc32c(body), body))
    store = opened(tmp_path, disk)
    assert [p.log_id for p in store.image.streams["a"].partitions] == [1, 2]
    assert store.image.streams["a"].config.replicas == 1
    store.apply(create("b"))
    assert opened(tmp_path, disk).image == store.image
    assert store.image.streams["b"].partitions[0].log_id == 3
    assert b'"version": %d' % IMAGE_VERSION in (tmp_path / FILE_NAME).read_bytes()
