"""Opening a data directory: recovery of the logs in the metadata, and care with others."""

import pytest

from strandline.broker.opening import log_plan, open_storage
from strandline.config import BrokerConfig, JournalConfig, StreamConfig
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import CreateStream, DeleteStream
from strandline.core.metadata.image import MetadataImage
from strandline.errors import CorruptBatchError, LogPoisonedError

CONFIG = BrokerConfig(journal=JournalConfig(file_bytes=64 << 10))


def with_streams(*names):
    image = MetadataImage()
    for name in names:
        config = StreamConfig(name=name, subject=name)
        image = apply(image, CreateStream(config=config, now_ns=1))
    return image


def open_with(tmp_path, image, disk):
    return open_storage(tmp_path, image, CONFIG, disk=disk)


def log_file(tmp_path, log_id, content=b"records"):
    directory = tmp_path / "logs" / f"{log_id:08d}"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}.log").write_bytes(content)
    return directory


def test_a_log_is_made_for_every_partition(tmp_path, disk):
    """Each partition's log has a directory of its own, named after its id."""
    recovered = open_with(tmp_path, with_streams("a", "b"), disk)
    assert sorted(recovered.logs) == [1, 2]
    plan = log_plan(tmp_path, 2, StreamConfig(name="b", subject="b", segment_bytes=77))
    assert plan.directory == recovered.logs[2].directory
    assert plan.segment_bytes == 77


def test_deletions_that_a_crash_cut_short_are_finished(tmp_path, disk):
    """Logs of deleted streams go, under either of their names; other files stay."""
    image = apply(with_streams("a", "b"), DeleteStream(name="a"))
    gone = log_file(tmp_path, 1)
    renamed = log_file(tmp_path, 0).rename(tmp_path / "logs" / "00000000.deleted")
    others = tmp_path / "logs" / "notes"
    others.mkdir()
    open_with(tmp_path, image, disk)
    assert not gone.exists()
    assert not renamed.exists()
    assert others.exists()


def test_records_of_unknown_streams_are_never_removed(tmp_path, disk):
    """Metadata without a log's id was lost: the start fails and touches nothing."""
    kept = log_file(tmp_path, 1)
    with pytest.raises(CorruptBatchError, match=r"metadata.json .*restore it from a backup"):
        open_with(tmp_path, MetadataImage(), disk)
    assert (kept / f"{0:020d}.log").read_bytes() == b"records"


def test_an_empty_log_of_an_unknown_stream_is_no_obstacle(tmp_path, disk):
    """A crash between making a stream's directory and its metadata leaves nothing of worth."""
    empty = log_file(tmp_path, 1, b"")
    open_with(tmp_path, MetadataImage(), disk)
    assert not empty.exists()


def test_a_directory_that_cannot_be_listed_is_a_typed_error(tmp_path, disk, monkeypatch):
    """The system's error is translated."""
    (tmp_path / "logs").write_text("not a directory")
    with pytest.raises(LogPoisonedError, match="listing"):
        open_with(tmp_path, MetadataImage(), disk)
