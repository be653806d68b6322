"""The metadata files: an image and the commands since, checked when read, never guessed at."""

import contextlib
import errno
from itertools import pairwise

import pytest

from strandline.broker import metadata_store
from strandline.broker.metadata_store import FILE_NAME, LOG_NAME, MetadataStore
from strandline.config import StreamConfig
from strandline.core.metadata.commands import CreateStream, DeleteStream
from strandline.core.metadata.image import IMAGE_VERSION
from strandline.errors import (
    CorruptBatchError,
    DiskFullError,
    LogPoisonedError,
    StreamExistsError,
)
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
    """Applied commands are there when the file is read again."""
    store.apply(create("a"))
    store.apply(create("b"))
    store.apply(DeleteStream(name="a"))
    again = opened(tmp_path, disk)
    assert again.image == store.image
    assert list(again.image.streams) == ["b"]
    assert again.image.next_log_id == 3


def test_a_rejected_command_changes_nothing(store, tmp_path, disk):
    """A command that does not apply leaves image and file alone."""
    store.apply(create("a"))
    before = [(tmp_path / name).read_bytes() for name in (FILE_NAME, LOG_NAME)]
    with pytest.raises(StreamExistsError):
        store.apply(create("a"))
    assert [(tmp_path / name).read_bytes() for name in (FILE_NAME, LOG_NAME)] == before


def test_a_command_costs_the_same_however_many_streams_there_are(store, tmp_path, disk):
    """It is one line at the end of the log, and one sync; the image is not written again."""
    sizes = []
    for number in range(100):
        before = len(disk.seen)
        store.apply(create(f"stream-{number:03d}"))
        written = [path for operation, path in disk.seen[before:] if operation == "write"]
        sizes.append((tmp_path / LOG_NAME).stat().st_size)
        assert not number or written == [str(tmp_path / LOG_NAME)]
    growth = [after - before for before, after in pairwise(sizes)]
    assert len(set(growth)) == 1
    assert opened(tmp_path, disk).image == store.image


def test_a_long_log_becomes_an_image(store, tmp_path, disk, monkeypatch):
    """The log starts again and continues; file and log together are always the current image."""
    monkeypatch.setattr(metadata_store, "LOG_BYTES_MIN", 2000)
    rewritten = 0
    for number in range(60):
        store.apply(create(f"s{number}"))
        assert opened(tmp_path, disk).image == store.image
        if store.is_long:
            rewritten += 1
            store.rewrite()
            assert not store.is_long
            assert opened(tmp_path, disk).image == store.image
    assert 1 < rewritten < 20


def test_a_log_of_an_older_image_does_not_count(store, tmp_path, disk):
    """A crash between writing the image and emptying the log changes nothing."""
    store.apply(create("a"))
    store.apply(create("b"))
    old = (tmp_path / LOG_NAME).read_bytes()
    store.rewrite()
    assert (tmp_path / LOG_NAME).read_bytes() == old
    again = opened(tmp_path, disk)
    assert again.image == store.image
    again.apply(DeleteStream(name="a"))
    assert opened(tmp_path, disk).image == again.image


@pytest.mark.parametrize("end", [b"", bytes(64), bytes(5)])
def test_a_torn_line_never_happened(store, tmp_path, disk, end):
    """An incomplete write was not acknowledged and is ignored; the next one continues."""
    store.apply(create("a"))
    store.apply(create("b"))
    before = (tmp_path / LOG_NAME).read_bytes()
    store.apply(create("c"))
    line = (tmp_path / LOG_NAME).read_bytes()[len(before) :]
    for length in range(len(line) - 1):
        (tmp_path / LOG_NAME).write_bytes(before + line[:length] + end)
        again = opened(tmp_path, disk)
        assert list(again.image.streams) == ["a", "b"]
    again.apply(create("d"))
    assert list(opened(tmp_path, disk).image.streams) == ["a", "b", "d"]


def test_a_preview_changes_nothing(store):
    """It returns the effect of a command without applying it."""
    assert "a" in store.preview(create("a")).streams
    assert not store.image.streams


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, LogPoisonedError)]
)
@pytest.mark.parametrize(
    ("is_first", "operation"),
    [
        *((True, each) for each in ("create", "write", "sync", "rename", "names")),
        *((False, each) for each in ("write", "sync")),
    ],
)
def test_a_failed_write_leaves_the_old_image(
    store, tmp_path, disk, operation, code, kind, is_first
):
    """The current image is the one on disk: the old one, until the new one is durable."""
    if not is_first:
        store.apply(create("a"))
    if operation == "sync" and not is_first:
        kind = LogPoisonedError  # whatever the reason was
    image = store.image
    disk.fail(operation, "*" if operation == "names" else "metadata.", code=code)
    with pytest.raises(kind):
        store.apply(create("b"))
    assert store.image is image
    disk.heal()
    found = opened(tmp_path, disk).image
    assert found in (image, store.preview(create("b")))
    assert store.is_certain or operation in ("sync", "names", "write")
    store.restore()
    assert opened(tmp_path, disk).image == image
    store.apply(create("c"))
    assert opened(tmp_path, disk).image == store.image


def test_a_command_that_is_not_durable_is_taken_back(store, tmp_path, disk):
    """A failed command changed nothing, in memory and on disk."""
    store.apply(create("a"))
    disk.fail("sync", LOG_NAME, times=1)
    with pytest.raises(LogPoisonedError):
        store.apply(DeleteStream(name="a"))
    assert store.is_certain
    assert opened(tmp_path, disk).image == store.image
    assert "a" in store.image.streams
    store.apply(create("b"))
    assert opened(tmp_path, disk).image == store.image


def test_an_image_whose_name_is_not_durable_takes_no_commands(store, tmp_path, disk):
    """A power loss may bring the one before back, which a new log would not continue."""
    store.apply(create("a"))
    disk.fail("names", times=1)
    with pytest.raises(LogPoisonedError):
        store.rewrite()
    assert not store.is_certain
    store.restore()
    assert store.is_certain
    store.apply(create("b"))
    assert opened(tmp_path, disk).image == store.image


def test_what_cannot_be_taken_back_is_not_certain(store, tmp_path, disk):
    """Until the file is that of the current image again."""
    store.apply(create("a"))
    disk.fail("sync", LOG_NAME)
    disk.fail("names")
    with pytest.raises(LogPoisonedError):
        store.apply(DeleteStream(name="a"))
    assert not store.is_certain
    with pytest.raises(LogPoisonedError):
        store.restore()
    disk.heal()
    store.restore()
    assert store.is_certain
    assert opened(tmp_path, disk).image == store.image


def test_a_deletion_needs_no_space(store, tmp_path, disk, monkeypatch):
    """On a full disk it spends the reserve; a creation is rejected."""
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
    assert list(store.apply(create("b")).streams) == ["b"]


@pytest.mark.parametrize("name", [FILE_NAME, LOG_NAME])
def test_every_flipped_bit_is_found(store, tmp_path, disk, name):
    """Corruption anywhere in a file is an error that names it, never another image."""
    store.apply(create("a"))
    store.apply(create("b"))
    path = tmp_path / name
    intact = path.read_bytes()
    for position in range(len(intact)):
        for bit in (0x01, 0x20, 0x80):
            corrupt = bytearray(intact)
            corrupt[position] ^= bit
            path.write_bytes(corrupt)
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
    with pytest.raises(CorruptBatchError, match=r"\((it is empty|checksum mismatch)\); restore"):
        opened(tmp_path, disk)


def test_a_later_version_is_rejected(store, tmp_path, disk):
    """A file made by a version to come is not misread."""
    from crc32c import crc32c

    body = b'{"version": %d, "next_log_id": 1, "streams": {}}' % (IMAGE_VERSION + 1)
    (tmp_path / FILE_NAME).write_bytes(b"%08x\n%b\n" % (crc32c(body), body))
    with pytest.raises(CorruptBatchError, match=f"version {IMAGE_VERSION + 1}"):
        opened(tmp_path, disk)


def test_a_file_of_version_1_is_read(tmp_path, disk):
    """A file from before clusters existed is read, and stored in the present version."""
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
    store.rewrite()
    assert b'"version": %d' % IMAGE_VERSION in (tmp_path / FILE_NAME).read_bytes()
