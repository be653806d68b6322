"""An encrypted stream with several replicas: one without the key still stores it byte for byte."""

import pytest

from strandline.encryption.master_keys import MasterKey, MasterKeys
from strandline.errors import EncryptionKeyError
from strandline.record.codec import decode_batches
from strandline.types import BrokerId, PartitionName

KEY = MasterKey(b"k" * 32)
SECRET = b"what nobody may read" + b"." * 3000


@pytest.fixture
async def encrypted(cluster):
    """Three brokers with an encrypted, compacted stream; the third has no key."""
    cluster.master_keys = {number: MasterKeys(lambda: (KEY,)) for number in (1, 2)}
    await cluster.start(1, 2, 3)
    await cluster.create(encryption=True, compact=True, at=1)
    await cluster.isr(1, 2, 3)
    await cluster.kit.until(lambda: cluster.image().leader is not None, seconds=20)
    if await cluster.leader() == 3:
        operations = cluster.brokers[1].operations
        await operations.elect(PartitionName("s", 0), BrokerId(1), is_unclean=False)
        await cluster.kit.until(lambda: cluster.image().leader == 1, seconds=20)

    async def put(count, keys):
        """Publish records, all acked; until every copy has them committed."""
        answers = cluster.kit.Answers()
        partition = cluster.partition(await cluster.leader())
        for number in range(count):
            key, value = b"%d" % (number % keys), SECRET + b"%d" % number
            partition.append(value, subject="s", key=key, ack_sink=answers, token=number)
        await answers.wait(count)
        assert len(answers.acks) == count
        end = partition.log_end_offset
        await cluster.kit.until(
            lambda: all(cluster.partition(n).high_watermark == end for n in (1, 2, 3)), seconds=20
        )

    cluster.put_records = put
    return cluster


def stored(partition):
    """The bytes of a copy."""
    found, offset = bytearray(), partition.log_start_offset
    while offset < partition.high_watermark:
        read = partition.log.read(offset, 1 << 20)
        found += read.buffer
        offset = read.next_offset
    return bytes(found)


def newest(partition):
    """The newest value of each key that a copy serves."""
    found, offset = {}, partition.log_start_offset
    while offset < partition.high_watermark and (buffer := partition.read(offset, 1 << 20)).size:
        for rows in decode_batches(buffer, columns=["offset", "key", "value"]):
            offsets, keys, values = (column.to_pylist() for column in rows.columns)
            found |= dict(zip(keys, values, strict=True))
            offset = offsets[-1] + 1
    return found


async def test_a_copy_is_whole_without_the_key(encrypted):
    """It replicates the bytes as they are, cannot be read, and can once the key is there."""
    await encrypted.put_records(10, keys=10)
    copies = [stored(encrypted.partition(number)) for number in (1, 2, 3)]
    assert copies[0] == copies[1] == copies[2]
    assert SECRET not in copies[0]
    assert len(newest(encrypted.partition(1))) == len(newest(encrypted.partition(2))) == 10
    with pytest.raises(EncryptionKeyError, match=KEY.id):
        newest(encrypted.partition(3))
    await encrypted.kill(3)
    encrypted.master_keys[3] = MasterKeys(lambda: (KEY,))
    await encrypted.start(3)
    await encrypted.isr(1, 2, 3)
    await encrypted.put_records(1, keys=1)
    assert newest(encrypted.partition(3)) == newest(encrypted.partition(1))


async def test_each_copy_compacts_with_the_key_it_has(encrypted, caplog):
    """Copies compacted at other times say the same; the one without the key says why it cannot."""
    for _ in range(2):
        await encrypted.put_records(40, keys=4)
        for number in (1, 3):
            broker = encrypted.brokers[number]
            await broker.committer.passed()
            encrypted.partition(number).log.roll()
            await broker._checkpoints.checkpoint()
            await broker._cleaner.clean()
    assert newest(encrypted.partition(1)) == newest(encrypted.partition(2))
    assert len(newest(encrypted.partition(1))) == 4
    sizes = {number: encrypted.partition(number).log.size_bytes for number in (1, 2, 3)}
    assert sizes[1] < sizes[2] == sizes[3]
    assert SECRET not in stored(encrypted.partition(1))
    assert f"needs master key {KEY.id}" in caplog.text
