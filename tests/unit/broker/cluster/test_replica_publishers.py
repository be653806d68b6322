"""Publishers that wait at a replica are notified, whenever it is dropped."""

from types import SimpleNamespace

from strandline.broker.cluster.replica_publishers import ReplicaPublishers
from strandline.broker.write_path.pending import AckWaiter
from strandline.errors import UnavailableError, UnknownStreamError
from strandline.types import Offset


class Outcomes:
    """An ack sink that keeps the outcomes."""

    def __init__(self):
        self.told = []

    def rejected(self, token, error):
        self.told.append((token, error))


def chunk(ack_sink, token):
    """A batch with a record whose publisher waits."""
    waiting = [AckWaiter(ack_sink, token, Offset(0))]
    return SimpleNamespace(on_disk=[], waiting=waiting, is_transactional=False)


def test_who_published_just_before_the_stream_was_deleted_is_told():
    """Also between the group commit's write and its sync: nothing is committed after that."""
    partition = SimpleNamespace(
        config=SimpleNamespace(acks_in_force="replicated"),
        set_write_error=lambda _: None,
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
