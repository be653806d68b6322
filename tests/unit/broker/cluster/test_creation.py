"""Creating streams one after another: the cost of one more on three brokers."""

from strandline.config import StreamConfig
from tests.kit.opcodes import counted

FEW, MANY, TRIES = 5, 120, 5


async def test_a_creation_costs_the_same_however_many_streams_there_are(cluster):
    """Deciding, applying and announcing it examine no other stream.

    The least of a few is taken: heartbeats and what goes on now and then come in between.
    """
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    brokers, made, named = cluster.brokers.values(), [], []
    for broker in brokers:
        broker.on_streams_changed(lambda names: named.append(set(names)))

    async def create():
        made.append(f"s{len(made)}")
        config = StreamConfig(name=made[-1], subject=made[-1], replicas=3, min_isr=2)
        await cluster.brokers[2].create_stream(config)
        for broker in brokers:
            await broker._until(lambda b=broker: made[-1] in b._streams)

    costs = []
    for count in (FEW, MANY):
        while len(made) < count:
            await create()
        named.clear()
        tries = []
        for _ in range(TRIES):
            with counted() as steps:
                await create()
            tries.append(steps.opcodes)
        costs.append(min(tries))
        assert max(map(len, named)) == 1
        assert set().union(*named) == set(made[-TRIES:])
    few, many = costs
    assert many < 1.3 * few
