"""Committed offsets in the log: of the partitions that are asked for, as far as there are any."""

from strandline.client.consumer.offset_store import LogOffsetStore, Owner
from strandline.types import PartitionName

ONE, TWO, THREE = (PartitionName("orders", number) for number in range(3))


def test_a_member_gets_the_offsets_of_its_partitions(monkeypatch):
    """Of no other ones, and none where nothing was committed."""
    store = LogOffsetStore(None)
    monkeypatch.setattr(store, "read", lambda group: {ONE: 5, TWO: 0})
    assert store.claim("billing", [TWO, THREE], Owner()) == {TWO: 0}
    assert store.claim("billing", [ONE, TWO, THREE], Owner()) == {ONE: 5, TWO: 0}
    assert store.claim("billing", [], Owner()) == {}
