"""A broker's copy of the metadata with a flipped bit: rebuilt, by itself or with a command."""

import pytest

from strandline.broker.cluster.discard import discard_metadata
from strandline.broker.cluster.identity import load_identity
from strandline.broker.quorum_store import SNAPSHOT_NAME, VOTE_NAME
from strandline.errors import CorruptBatchError, InvalidConfigError
from strandline.storage.disk import Disk


def flip(path, position=-3):
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


async def three_with_records(cluster):
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a", "b")
    await cluster.isr(1, 2, 3)
    await cluster.agree(["a", "b"])


@pytest.mark.parametrize("name", ["broker.json", "quorum-vote", "broker.json.twin"])
async def test_a_small_file_with_a_flipped_bit_stops_nothing(cluster, name):
    """The file is restored from its twin, with the same directory id and vote."""
    await three_with_records(cluster)
    directory = cluster.brokers[3].data_dir
    known = cluster.brokers[3]._identity.directory_id
    await cluster.kill(3)
    flip(directory / name)
    await cluster.start(3)
    assert cluster.brokers[3]._identity.directory_id == known
    await cluster.isr(1, 2, 3)
    await cluster.put("c")
    await cluster.agree(["a", "b", "c"])


async def test_a_flipped_bit_in_the_log_of_the_metadata_is_told_with_the_commands(cluster, kit):
    """The broker does not start, names the commands to run, and has its records afterwards."""
    await three_with_records(cluster)
    directory = cluster.brokers[3].data_dir
    await cluster.brokers[3]._checkpoints.checkpoint()  # the journal gives nothing back
    await cluster.kill(3)
    [segment] = (directory / "quorum").glob("*.log")
    flip(segment, 300)
    with pytest.raises(CorruptBatchError) as caught:
        await cluster.start(3)
    assert "replace-disk 3" in caught.value.message
    assert f"discard-metadata --data-dir {directory}" in caught.value.message
    await kit.until(lambda: cluster.brokers[1]._image.brokers[3].is_fenced, seconds=20)
    await cluster.put("c")
    await cluster.brokers[1].operations.replace_disk(3)
    assert discard_metadata(directory, disk=Disk()) == 3
    await cluster.start(3)
    await cluster.isr(1, 2, 3)
    await cluster.agree(["a", "b", "c"])
    await kit.until(lambda: 3 in cluster.brokers[1].membership.quorum.members.voters, seconds=20)
    await cluster.kill(3)
    await cluster.start(3)
    await cluster.agree(["a", "b", "c"])


async def test_metadata_that_was_discarded_too_soon_does_not_let_a_broker_vote_twice(cluster, kit):
    """It is rejected until its vote is withdrawn; the error names the command."""
    await three_with_records(cluster)
    directory = cluster.brokers[3].data_dir
    await cluster.kill(3)
    await kit.until(lambda: cluster.brokers[1]._image.brokers[3].is_fenced, seconds=20)
    discard_metadata(directory, disk=Disk())
    assert not [*directory.glob(f"{VOTE_NAME}*"), *directory.glob(f"{SNAPSHOT_NAME}*")]
    # As a founder it would be a voter of its empty log, and two such brokers a majority.
    assert load_identity(directory, disk=Disk()).founders == ()
    until, kit.until = kit.until, _no_wait
    try:
        await cluster.start(3)
    finally:
        kit.until = until
    broker = cluster.brokers[3]
    await kit.until(lambda: "replace-disk 3" in broker.why_not_ready, seconds=30)
    assert broker.membership.quorum.leader is None


async def _no_wait(*_, **__):
    pass


def test_a_directory_of_no_cluster_has_nothing_to_discard(tmp_path):
    """Nothing is created in it."""
    with pytest.raises(InvalidConfigError, match="not the data directory"):
        discard_metadata(tmp_path, disk=Disk())
