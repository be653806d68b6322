"""Key-value buckets on three brokers: any of them takes a put, and a killed leader loses none."""

import asyncio

import nats.errors
import nats.js.errors as js_errors
import pytest
from nats.js.api import KeyValueConfig

from tests.kit.clusters import leader_of

from .conftest import IDS, connected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
RETRIED = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    js_errors.ServiceUnavailableError,
    js_errors.NoStreamResponseError,
)
BUCKET = KeyValueConfig(bucket="config", history=2, replicas=3)


async def until(action, *also):
    """Do something until it succeeds: a leader may have just been chosen, or is to be."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await action()
            except (*RETRIED, *also):
                await asyncio.sleep(0.1)


async def test_a_bucket_goes_on_at_the_next_leader(cluster):
    """With its revisions and history; what expects an old revision is refused there, too."""
    clients = [await connected(cluster[number].nats_url) for number in IDS]
    js = clients[0].jetstream(timeout=2)
    await until(lambda: js.create_key_value(BUCKET), js_errors.APIError)
    buckets = [await until(lambda c=c: c.jetstream(timeout=2).key_value("config")) for c in clients]
    await until(lambda: buckets[0].put("other", b"0"))
    revision = await until(lambda: buckets[0].create("k", b"1"))
    for number in range(2, 6):
        revision = await buckets[number % 3].update("k", b"%d" % number, last=revision)
    await buckets[1].purge("other")
    await js.purge_stream("KV_config", subject="$KV.config.none")
    for client in clients:
        await client.close()

    leader = await asyncio.to_thread(leader_of, cluster, "KV_config")
    cluster[leader].kill()
    survivor = next(number for number in IDS if number != leader)
    client = await connected(cluster[survivor].nats_url)
    bucket = await until(lambda: client.jetstream(timeout=2).key_value("config"))
    entry = await until(lambda: bucket.get("k"))
    assert (entry.value, entry.revision) == (b"5", revision)
    assert (await bucket.get("k", revision=revision - 1)).value == b"4"
    with pytest.raises(js_errors.KeyNotFoundError):
        await bucket.get("k", revision=revision - 2)
    with pytest.raises(js_errors.KeyNotFoundError):
        await bucket.get("other")
    with pytest.raises(js_errors.KeyWrongLastSequenceError):
        await until(lambda: bucket.update("k", b"x", last=revision - 1))
    newer = await until(lambda: bucket.update("k", b"6", last=revision))
    assert (await bucket.get("k")).revision == newer
    assert (await bucket.status()).values == 3
    await client.close()
