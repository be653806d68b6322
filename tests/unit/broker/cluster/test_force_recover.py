"""One survivor of three becomes the only voter, with its own records."""

import shutil

import pytest

from strandline.broker.cluster.force_recover import force_recover, unsafe_partitions
from strandline.config import StreamConfig
from strandline.core.metadata.image import MetadataImage, PartitionImage, StreamImage
from strandline.errors import DataDirLockedError, InvalidConfigError, InvalidRequestError
from strandline.storage.disk import Disk
from strandline.types import BrokerId, LogId, PartitionName


def test_a_directory_of_no_cluster_is_rejected(tmp_path):
    """Nothing is created in it."""
    with pytest.raises(InvalidConfigError, match="not the data directory"):
        force_recover(tmp_path, disk=Disk())


async def lose_most(cluster, survivor):
    """Kill all brokers, of which the others never return; return the survivor's directory."""
    directory = cluster.brokers[survivor].data_dir
    with pytest.raises(DataDirLockedError):
        force_recover(directory, disk=Disk())
    for number in list(cluster.brokers):
        await cluster.kill(number)
    return directory


async def test_a_survivor_continues_alone(cluster, kit):
    """Records that were acked are there and more are taken, streams come and go, after restarts."""
    await cluster.start(1, 2, 3)
    await cluster.create("s", min_isr=1)
    await cluster.create("gone", at=3)
    await cluster.put("a", "b")
    await cluster.isr(1, 2, 3)
    directory = await lose_most(cluster, 2)
    done = force_recover(directory, disk=Disk())
    assert (done.broker, done.voters, done.in_doubt, done.without_copy) == (2, (1, 2, 3), (), ())
    with pytest.raises(InvalidRequestError, match="only voter already"):
        force_recover(directory, disk=Disk())
    await cluster.start(2)
    await cluster.put("c")
    await cluster.brokers[2].delete_stream("gone")
    await cluster.kill(2)
    await cluster.start(2)
    await cluster.put("d")
    await cluster.agree(["a", "b", "c", "d"])
    assert [stream.name for stream in cluster.brokers[2].streams()] == ["s"]
    assert cluster.brokers[2].membership.quorum.members.voters == (2,)


def test_what_may_be_missing_is_named():
    """Copies that were not in sync, unless they were safe, and partitions without a copy here."""
    me, others = BrokerId(2), (BrokerId(1), BrokerId(3))
    copies = [
        PartitionImage(log_id=LogId(1), replicas=(*others, me), isr=(me,)),
        PartitionImage(log_id=LogId(2), replicas=(*others, me), isr=others),
        PartitionImage(log_id=LogId(3), replicas=(*others, me), isr=others, last_known_safe=(me,)),
        PartitionImage(log_id=LogId(4), replicas=others, isr=others),
    ]
    config = StreamConfig(name="s", subject="s", partitions=4)
    stream = StreamImage(config=config, created_ns=1, partitions=tuple(copies))
    in_doubt, without_copy = unsafe_partitions(MetadataImage(streams={"s": stream}), me)
    assert [str(name) for name in in_doubt] == ["s/1"]
    assert [str(name) for name in without_copy] == ["s/3"]


async def test_a_partition_without_a_copy_on_the_survivor_goes_on_empty(cluster, kit):
    """As the guide says: another disk for a lost broker, its start, and its unclean election."""
    await cluster.start(1, 2, 3)
    await cluster.create("here", min_isr=1)
    survivor = 3
    await cluster.create("s", replicas=2, min_isr=1)
    keeping = cluster.image().replicas
    if survivor in keeping:
        survivor = next(n for n in (1, 2, 3) if n not in keeping)
    await cluster.put("lost")
    await cluster.isr(*sorted(keeping))
    directory = await lose_most(cluster, survivor)
    done = force_recover(directory, disk=Disk())
    assert [str(name) for name in done.without_copy] == ["s/0"]
    await cluster.start(survivor)
    operations = cluster.brokers[survivor].operations
    with pytest.raises(InvalidRequestError, match="replace-disk"):
        await operations.elect(PartitionName("s", 0), BrokerId(survivor), is_unclean=True)
    again = keeping[0]
    await operations.replace_disk(BrokerId(again))
    shutil.rmtree(cluster.tmp_path / f"broker-{again}")
    cluster.tls[again] = {"join": True}
    await cluster.start(again)
    await cluster.until_live()
    await operations.elect(PartitionName("s", 0), BrokerId(again), is_unclean=True)
    await cluster.put("new")
    assert kit.values(cluster.partition(again)) == [b"new"]
