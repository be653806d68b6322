"""Those who wait at a replica are told, whenever it goes."""

from types import SimpleNamespace

from strandline.broker.cluster.replica_publishers import ReplicaPublishers
from strandline.broker.write_path.pending import AckWaiter
from strandline.errors import UnavailableError, UnknownStreamError
from strandline.types import Offset


class Outcomes:
    """A responder that keeps what it is told."""

    def __init__(self):
        self.told = []

    def rejected(self, token, error):
        self.told.append((token, error))


def chunk(ack_sink, token):
    """A chunk with a record that somebody waits for."""
    waiting = [AckWaiter(ack_sink, token, Offset(0))]
    return SimpleNamespace(on_disk=[], waiting=waiting, is_transactional=False)


def test_who_published_just_before_the_stream_was_deleted_is_told():
    """Also if it was between the write of the turn and its sync: nothing is committed any more."""
    partition = SimpleNamespace(
        config=SimpleNamespace(acks_in_force="replicated"),
        refuse=lambda _: None,
        reject_from=lambda *_: None,
    )
    publishers = ReplicaPublishers(
        partition, SimpleNamespace(reject_reason=None), SimpleNamespace()
    )
    outcomes = Outcomes()
    publishers.synced(chunk(outcomes, "synced"), Offset(1))
    assert not outcomes.told
    publishers.end(UnknownStreamError("stream 's' was deleted"))
    publishers.synced(chunk(outcomes, "syncing"), Offset(2))
    assert [token for token, _ in outcomes.told] == ["synced", "syncing"]
    for _, error in outcomes.told:
        assert isinstance(error, UnavailableError)
        assert error.message.startswith("stream 's' was deleted; retry")
    assert not publishers.has_waiting
