"""An internal stream of one copy, in a cluster of three brokers: it gets two more."""

from strandline.broker.internal import is_internal

NAME = "__groups"


async def test_what_was_stored_with_one_copy_outlives_its_broker(cluster):
    """Copies are added, settings follow on every broker, and the first one may be lost."""
    await cluster.start(1, 2, 3)
    assert is_internal(NAME)
    await cluster.create(NAME, replicas=1, min_isr=1, acks="disk", dedup_window_ms=60_000)
    await cluster.isr(1, 2, 3, name=NAME)

    def is_settled():
        known = [broker.stream(NAME) for broker in cluster.brokers.values()]
        configs = [s.config for s in known] + [s.partition(0).config for s in known]
        return all((c.replicas, c.min_isr, c.acks) == (3, 2, "replicated") for c in configs)

    await cluster.kit.until(is_settled, seconds=20)
    await cluster.put("a", "b", name=NAME)
    first = await cluster.leader(NAME)
    driver = cluster.partition(first, NAME).replica_hooks
    assert driver.replica.leader.min_isr == 2
    await cluster.kill(first)
    await cluster.kit.until(lambda: cluster.image(NAME).leader not in (None, first), seconds=20)
    await cluster.put("c", name=NAME)
    await cluster.agree(["a", "b", "c"], name=NAME)
