"""Encrypted streams at a broker: hidden on disk, recovered, and rejected without the key."""

import pytest

from strandline.encryption.master_keys import MasterKey, MasterKeys
from strandline.errors import DecryptionError, EncryptionKeyError, InvalidRequestError
from strandline.record.batch import HEADER_BYTES, iter_headers
from strandline.record.codec import MESSAGE_ID_HEADER, decode_batches
from strandline.record.sealed import put_checksum, read_seal

OLD, NEW = MasterKey(b"o" * 32), MasterKey(b"n" * 32)
SECRET = b"what nobody may read "

pytestmark = pytest.mark.usefixtures("without_spares")


def master_keys(*keys):
    return MasterKeys(lambda: keys)


@pytest.fixture
async def encrypted(open_broker, make_stream, answers, kit):
    """A broker with an encrypted stream, and a way to fill it."""
    broker = await open_broker(cleaner_interval_ms=10**9, master_keys=master_keys(OLD))

    async def fill(count, *, of=None, keys=1 << 30, size=1000, **settings):
        of = of or broker
        if "s" not in [stream.name for stream in of.streams()]:
            await make_stream(of, encryption=True, **settings)
        partition = of.stream("s").partition(0)
        for number in range(count):
            token, key = len(answers.order), SECRET + b"%d" % (number % keys)
            kit.put(partition, answers, token, key=key, value=SECRET + b"%d" % number + bytes(size))
            await answers.wait(token + 1)
        return partition

    broker.fill = fill
    return broker


def key_numbers(partition):
    """Which data key each batch was sealed with."""
    stored = partition.log.read(partition.log_start_offset, 1 << 30).buffer
    return [read_seal(stored[at : at + h.length]).key_number for at, h in iter_headers(stored)]


async def test_nothing_of_a_record_is_in_the_data_directory(encrypted, data_dir, kit):
    """Journal, segments, indexes and metadata; readers see everything."""
    partition = await encrypted.fill(100)
    await encrypted._checkpoints.checkpoint()
    assert len(kit.values(partition)) == 100
    await encrypted.stop()
    files = [path for path in data_dir.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files if path.suffix == ".log") > 100_000
    for path in files:
        assert SECRET not in path.read_bytes(), path
        assert b"o" * 32 not in path.read_bytes(), path


async def test_a_stream_without_encryption_is_stored_as_ever(open_broker, make_stream, kit):
    """Byte for byte the same, on a broker that has keys and on one that has none."""
    stored = []
    for given in (master_keys(OLD), None):
        broker = await open_broker(master_keys=given)
        partition = await make_stream(broker, f"plain{len(stored)}")
        answers = kit.Answers()
        kit.put(partition, answers, *range(5), key=SECRET)
        await answers.wait(5)
        stored.append(bytes(partition.log.read(0, 1 << 20).buffer[HEADER_BYTES:]))
        await broker.stop()
    assert stored[0] == stored[1]
    assert SECRET in stored[0]


async def test_records_survive_a_crash(encrypted, open_broker, kit):
    """Batches that are only in the journal are replayed and decrypted."""
    partition = await encrypted.fill(20, size=10)
    before = kit.values(partition)
    kit.abandon(encrypted)
    again = await open_broker(master_keys=master_keys(OLD))
    partition = again.stream("s").partition(0)
    assert kit.values(partition) == before
    await encrypted.fill(3, of=again, size=10)
    assert len(kit.values(partition)) == 23
    seals = set()
    stored = partition.log.read(0, 1 << 30).buffer
    for at, header in iter_headers(stored):
        seal = read_seal(stored[at : at + header.length])
        assert (seal.salt, seal.nonce) not in seals, "a nonce came twice"
        seals.add((seal.salt, seal.nonce))
    assert len({salt for salt, _ in seals}) == 2


async def test_ids_are_remembered_over_a_restart(encrypted, open_broker, make_stream, kit):
    """They are read back from encrypted headers."""
    partition = await make_stream(encrypted, encryption=True)
    answers = kit.Answers()
    given = {"headers": [(MESSAGE_ID_HEADER, b"one")], "message_id": "one"}
    kit.put(partition, answers, "first", **given)
    await answers.wait(1)
    await encrypted.stop()
    again = await open_broker(master_keys=master_keys(OLD))
    kit.put(again.stream("s").partition(0), answers, "repeat", **given)
    await answers.wait(2)
    assert answers.duplicates == {"repeat"}
    assert answers.acks == {"first": 0, "repeat": 0}


async def test_compaction_by_encrypted_keys(encrypted, kit, data_dir):
    """The newest record of each key stays; rewritten batches are encrypted with other nonces."""
    partition = await encrypted.fill(300, keys=5, compact=True)
    await encrypted._checkpoints.checkpoint()
    await encrypted._cleaner.clean()
    assert encrypted.telemetry.compaction_records > 150
    offset, left = 0, []
    while offset < partition.high_watermark:
        buffer = partition.read(offset, 1 << 20)
        for rows in decode_batches(buffer, columns=["offset", "key"]):
            left += rows.column("key").to_pylist()
            offset = rows.column("offset")[-1].as_py() + 1
    assert set(left) == {SECRET + b"%d" % number for number in range(5)}
    assert len(left) < 150
    for path in data_dir.rglob("*.log"):
        assert SECRET not in path.read_bytes()


async def test_time_is_found_within_an_encrypted_batch(encrypted, clock, kit, make_stream):
    """Offsets by time are the same as of a stream that is not encrypted."""
    found = []
    for name, encryption in (("plain", False), ("hidden", True)):
        partition = await make_stream(encrypted, name, encryption=encryption)
        answers = kit.Answers()
        times = []
        for number in range(4):
            times.append(clock.now_ns())
            kit.put(partition, answers, number)
            await answers.wait(number + 1)
            clock.advance_ms(10)
        found.append([partition.offset_for_timestamp(time) for time in times])
    assert found[0] == found[1]


async def test_without_its_key_a_broker_starts_and_says_what_is_missing(
    encrypted, open_broker, make_stream, kit
):
    """Other streams work; reading, publishing and creating name the key; it may come back."""
    await encrypted.fill(3)
    await encrypted.stop()
    keys = [NEW]
    broker = await open_broker(master_keys=MasterKeys(lambda: tuple(keys)))
    partition, answers = broker.stream("s").partition(0), kit.Answers()
    kit.put(partition, answers, "refused")
    await answers.wait(1)
    assert answers.codes == {"refused": "encryption_key"}
    assert OLD.id in answers.errors["refused"].message
    assert partition.write_error.code == "encryption_key"
    assert "1 partitions take no records" in broker.why_not_ready
    with pytest.raises(EncryptionKeyError, match=OLD.id):
        partition.read(0, 1 << 20)
    other = await make_stream(broker, "other")
    kit.put(other, answers, "taken")
    await answers.wait(2)
    keys.append(OLD)
    kit.put(partition, answers, "again")
    await answers.wait(3)
    assert answers.acks == {"taken": 0, "again": 3}
    assert not broker.why_not_ready
    assert len(kit.values(partition)) == 4


async def test_an_encrypted_stream_needs_a_master_key(broker, make_stream):
    """Its creation is rejected with a remedy."""
    with pytest.raises(EncryptionKeyError, match="new-key"):
        await make_stream(broker, encryption=True)
    assert not broker.streams()


async def test_another_master_key_rewrites_nothing(encrypted, open_broker, kit):
    """Data keys are rewrapped; then the old master key is no longer needed."""
    partition = await encrypted.fill(5)
    await encrypted.stop()
    both = await open_broker(master_keys=master_keys(NEW, OLD))
    partition = both.stream("s").partition(0)
    before = bytes(partition.log.read(0, 1 << 20).buffer)
    await both.change(both.keys.rotation("s", has_new_key=False))
    assert [key.master for key in both.image.streams["s"].keys] == [NEW.id]
    assert bytes(partition.log.read(0, 1 << 20).buffer) == before
    await both.stop()
    after = await open_broker(master_keys=master_keys(NEW))
    assert len(kit.values(after.stream("s").partition(0))) == 5
    await encrypted.fill(1, of=after)


async def test_a_new_stream_takes_the_master_key_that_is_first_now(open_broker, make_stream):
    """Not the one that was at the start: it may be about to be dropped."""
    keys = [OLD]
    broker = await open_broker(master_keys=MasterKeys(lambda: tuple(keys)))
    keys.insert(0, NEW)
    await make_stream(broker, encryption=True)
    assert [key.master for key in broker.image.streams["s"].keys] == [NEW.id]


async def test_another_data_key_is_for_new_batches(encrypted, open_broker, kit):
    """Old ones open with theirs, also after a restart."""
    partition = await encrypted.fill(2)
    await encrypted.change(encrypted.keys.rotation("s", has_new_key=True))
    await encrypted.fill(2)
    assert key_numbers(partition) == [1, 1, 2, 2]
    await encrypted.stop()
    again = await open_broker(master_keys=master_keys(OLD))
    assert len(kit.values(again.stream("s").partition(0))) == 4


async def test_keys_are_rotated_where_there_are_some(encrypted, make_stream):
    """A stream that is not encrypted is rejected."""
    await make_stream(encrypted, "plain")
    with pytest.raises(InvalidRequestError, match="not encrypted"):
        encrypted.keys.rotation("plain", has_new_key=False)


async def test_a_forged_batch_is_not_served(encrypted, kit):
    """Its checksum is right, so it is no corruption to be repaired; those before it are served."""
    partition = await encrypted.fill(3, size=10)
    segment = partition.log.segments[-1]
    stored = bytearray(partition.log.read(0, 1 << 20).buffer)
    at, header = list(iter_headers(stored))[2]
    forged = stored[at : at + header.length]
    forged[-1] ^= 1
    put_checksum(forged)
    await encrypted._checkpoints.checkpoint()
    with segment.path.open("r+b") as file:
        file.seek(at)
        file.write(forged)
    assert partition.read(0, 1 << 20).size > 0
    with pytest.raises(DecryptionError, match="offset 2 of s/0"):
        partition.read(2, 1 << 20)


async def test_transactions_of_encrypted_records(encrypted, make_stream, kit, tx):
    """Markers are encrypted, too; committed records are visible, aborted ones are not."""
    partition = await make_stream(encrypted, encryption=True)
    caller, answers = tx.Asker(encrypted), kit.Answers()
    for number, value in enumerate(("kept", "dropped")):
        who = await caller.begin("work")
        await caller.add("work", who, partition.name)
        caller.write(who, partition, answers, value)
        await answers.wait(number + 1)
        await caller.end("work", who, is_commit=value == "kept")
    await kit.until(lambda: partition.last_stable_offset == partition.high_watermark > 5)
    assert tx.seen(partition) == ["kept"]
    assert len(key_numbers(partition)) == 6
