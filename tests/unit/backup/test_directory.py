"""The directory of a backup: files that an interrupted one left, damage, the lock."""

import msgspec
import pytest

from strandline.backup.directory import PART_NAME, BackupDirectory
from strandline.backup.manifest import BackupManifest, PartitionBackup
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import encode_json
from strandline.errors import CorruptBatchError, DataDirLockedError, InvalidRequestError
from strandline.record.codec import Stamp, encode_records

SUBJECT = "orders"


def batch(offset, values):
    """A batch of these values from an offset on."""
    return bytes(encode_records(values, [SUBJECT] * len(values), Stamp(offset, 1, 7, "none")))


@pytest.fixture
def backup(tmp_path):
    """An empty one."""
    return BackupDirectory(tmp_path / "backup")


def copied(backup, *batches, start=0, end, number=1):
    """A file of these batches."""
    writer = backup.writer(1, start, number=number)
    for each in batches:
        writer.write(each)
    return writer.finish(end)


def manifest_of(*files, number=1):
    """A manifest of one partition."""
    partition = PartitionBackup(
        stream="orders",
        partition=0,
        log_id=1,
        created_ns=1,
        log_start_offset=files[0].start,
        end=files[-1].end,
        files=files,
    )
    return BackupManifest(
        number=number,
        cluster="",
        strandline="0",
        started_ns=1,
        finished_ns=2,
        metadata=msgspec.Raw(encode_json(MetadataImage())),
        partitions=(partition,),
    )


def test_a_file_of_an_interrupted_backup_is_recognized(backup):
    """With the checksum and the offsets that it had when it was finished."""
    file = copied(backup, batch(5, [b"a", b"b"]), batch(7, [b"c"]), start=5, end=8)
    assert backup.unfinished(1, number=1) == [file.name]
    assert backup.unfinished(1, number=2) == []
    found, last = backup.look_at(file.name)
    assert found == file
    assert (last.base_offset, last.next_offset) == (7, 8)


def test_a_torn_file_is_not_used(backup):
    """Neither if a batch is cut, nor if one is missing at its end."""
    file = copied(backup, batch(0, [b"a"]), batch(1, [b"b"]), end=2)
    path = backup.path / file.name
    whole = path.read_bytes()
    for data in (whole[:-8], whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(CorruptBatchError, match="damaged"):
            backup.look_at(file.name)


def test_only_what_the_manifest_names_is_kept(backup):
    """Files of an earlier backup, and half a file, are removed once the manifest is replaced."""
    first = copied(backup, batch(0, [b"a"]), end=1)
    backup.finish(manifest_of(first))
    second = copied(backup, batch(0, [b"a"]), end=1, number=2)
    backup.writer(1, 0, number=2).close()
    assert (backup.path / first.name).exists()
    backup.finish(manifest_of(second, number=2))
    names = {path.name for path in backup.path.rglob("*.*")}
    assert not {PART_NAME, first.name.rpartition("/")[2]} & names
    assert backup.load().files == {second.name: second}
    backup.verify(backup.load())


@pytest.mark.parametrize("harm", ["missing", "shorter", "changed"])
def test_a_damaged_file_is_named(backup, harm):
    """Whatever is wrong with it."""
    file = copied(backup, batch(0, [b"a"]), end=1)
    backup.finish(manifest_of(file))
    path = backup.path / file.name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-8] if harm == "shorter" else data)
    with pytest.raises(CorruptBatchError, match=f"{file.name}.* is damaged"):
        backup.verify(backup.load())


@pytest.mark.parametrize("read_bytes", [64, 100, 4096])
def test_a_batch_may_be_longer_than_what_is_read_at_once(backup, monkeypatch, read_bytes):
    """The piece grows until it holds one, and shrinks again after it."""
    monkeypatch.setattr("strandline.backup.directory.READ_BYTES", read_bytes)
    lengths = []
    pread = backup.disk.pread
    monkeypatch.setattr(backup.disk, "pread", lambda *to: lengths.append(to[1]) or pread(*to))
    values = [[b"x" * 10_000], [b"y"], [b"z" * 300]]
    file = copied(backup, *(batch(at, each) for at, each in enumerate(values)), end=3)
    backup.verify(manifest_of(file))
    lengths.clear()
    found = b"".join(bytes(each) for each, _ in backup.batches(file.name))
    assert found == b"".join(batch(at, each) for at, each in enumerate(values))
    assert max(lengths) < 4 * len(found)
    assert lengths.count(read_bytes) == len([*backup.batches(file.name)])


def test_one_backup_at_a_time(backup):
    """A second one into the same directory is refused, and works afterwards."""
    other = BackupDirectory(backup.path)
    with (
        backup.locked(),
        pytest.raises(DataDirLockedError, match="another backup"),
        other.locked(),
    ):
        pass
    with other.locked():
        pass


def test_a_directory_with_other_files_is_refused(backup):
    """Such as a broker's data directory."""
    backup.path.mkdir()
    (backup.path / "metadata.json").write_text("")
    with pytest.raises(InvalidRequestError, match=r"backup's: metadata\.json"), backup.locked():
        pass
    assert [path.name for path in backup.path.iterdir()] == ["metadata.json"]
