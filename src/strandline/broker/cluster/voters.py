"""The voters of the metadata quorum, derived from the registered brokers, one change at a time.

Rules:
- an admitted or registered broker becomes a learner, which gets the log and has no vote;
- a learner in service becomes a voter, up to ``VOTERS_MAX``; the quorum rejects this until the
  learner has caught up;
- a voter that was removed, or lost its disk and so its votes, leaves, but only if most of the
  remaining voters are in service: otherwise the quorum could no longer decide. If it lost its disk,
  it then starts as a learner, and nothing is assumed of its former log.

Pure. Must not know who executes a change, or when.
"""

from collections.abc import Iterator

from strandline.core.metadata.image import MetadataImage
from strandline.core.raft.messages import Members
from strandline.types import BrokerId

VOTERS_MAX = 7
"""The most voters; with more, every change would be slower."""


def next_members(members: Members, image: MetadataImage) -> Iterator[Members]:
    """Yield the memberships to try next; the first that is possible now should be proposed."""
    voters, learners = members.voters, _learners(members, image)
    if learners != members.learners:
        yield Members(voters, learners)
    for broker in learners:
        if may_vote(broker, image) and len(voters) < VOTERS_MAX:
            yield Members(tuple(sorted((*voters, broker))), _without(learners, broker))
    for broker in voters:
        rest = _without(voters, broker)
        if must_not_vote(broker, image) and most_serve(rest, image):
            yield Members(rest, learners)


def _learners(members: Members, image: MetadataImage) -> tuple[BrokerId, ...]:
    """Return the learners that there should be, besides changes of the voters."""
    known = {*members.learners, *image.brokers} - set(image.removed) - set(members.voters)
    return tuple(sorted(known))


def may_vote(broker: BrokerId, image: MetadataImage) -> bool:
    """Whether a learner should become a voter."""
    known = image.brokers.get(broker)
    return known is not None and bool(known.directory_id) and known.may_take_replicas


def must_not_vote(broker: BrokerId, image: MetadataImage) -> bool:
    """Whether a voter was removed, or has lost its votes.

    A voter that never registered is neither: it is a founder that has not started yet.
    """
    known = image.brokers.get(broker)
    return broker in image.removed or (known is not None and not known.directory_id)


def most_serve(voters: tuple[BrokerId, ...], image: MetadataImage) -> bool:
    """Whether most of these voters are in service."""
    return len(_serving(voters, image)) > len(voters) // 2


def successor(members: Members, image: MetadataImage) -> BrokerId:
    """Return the successor of a leader that leaves; most of the voters are in service."""
    return _serving(members.voters, image)[0]


def successors(members: Members, image: MetadataImage, leaver: BrokerId) -> tuple[BrokerId, ...]:
    """Return the possible successors of a leader that stops; empty if all others stop, too."""
    others = _without(members.voters, leaver)
    return tuple(b for b in others if b in image.brokers and image.brokers[b].may_lead)


def _serving(brokers: tuple[BrokerId, ...], image: MetadataImage) -> list[BrokerId]:
    return [b for b in brokers if b in image.brokers and not image.brokers[b].is_fenced]


def _without(brokers: tuple[BrokerId, ...], one: BrokerId) -> tuple[BrokerId, ...]:
    return tuple(broker for broker in brokers if broker != one)
