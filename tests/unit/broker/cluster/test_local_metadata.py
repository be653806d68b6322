"""The metadata on one broker's disk: its snapshot, and the entries after it."""

from types import SimpleNamespace

import pytest

from strandline.broker.cluster.local_metadata import load_local_metadata
from strandline.config import StreamConfig
from strandline.core.metadata.apply import apply_entry
from strandline.core.metadata.commands import CreateStream, encode_entry
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import encode_image
from strandline.core.raft.log import encode_members
from strandline.core.raft.messages import HardState, Kind, Members, RaftEntry, Snapshot

FOUNDERS, LATER = Members((1, 2, 3)), Members((1, 2), (4,))


def created(name):
    return CreateStream(config=StreamConfig(name=name, subject=name), now_ns=1)


@pytest.fixture
def store():
    """A store whose snapshot has stream ``a``."""
    image, _ = apply_entry(MetadataImage(), created("a"))
    snapshot = Snapshot(index=5, term=2, members=FOUNDERS, data=encode_image(image))
    entries = []
    return SimpleNamespace(load=lambda founders: (HardState(), snapshot, entries), entries=entries)


def test_a_snapshot_alone_is_all_of_it(store):
    """Its place and members are the newest that are known."""
    found = load_local_metadata(store, FOUNDERS)
    assert set(found.machine.image.streams) == {"a"}
    assert found[1:] == (FOUNDERS, 5, 2)


def test_entries_come_on_top(store):
    """Commands change the image, members replace members; an empty entry is only counted."""
    store.entries += [
        RaftEntry(6, 2, Kind.COMMAND, encode_entry(created("b"))),
        RaftEntry(7, 3, Kind.MEMBERS, encode_members(LATER)),
        RaftEntry(8, 4, Kind.NOTHING, b""),
    ]
    found = load_local_metadata(store, FOUNDERS)
    assert set(found.machine.image.streams) == {"a", "b"}
    assert found[1:] == (LATER, 8, 4)
