"""The metadata on one broker's disk, read without the other brokers.

It may lack newer decisions, and may have entries that were never committed. That is enough to find
the replicas on this disk, and for an operator who makes this broker the only voter.
"""

from typing import NamedTuple

from strandline.broker.cluster.state_machine import MetadataMachine
from strandline.broker.quorum_store import QuorumStore
from strandline.core.raft.log import decode_members
from strandline.core.raft.messages import Index, Kind, Members, Term


class LocalMetadata(NamedTuple):
    """The metadata on a broker's disk.

    Attributes:
        machine: the image, with every entry on the disk applied.
        members: the quorum's members, according to the last membership entry.
        last_index: the index of the last entry.
        term: the term of the last entry.
    """

    machine: MetadataMachine
    members: Members
    last_index: Index
    term: Term


def load_local_metadata(store: QuorumStore, founders: Members) -> LocalMetadata:
    """Load the metadata from a broker's disk.

    Raises:
        CorruptBatchError: the metadata is corrupt.
        UnavailableError: the metadata cannot be read.
    """
    _, snapshot, entries = store.load(founders)
    machine = MetadataMachine(lambda: None)
    machine.restore(snapshot.data)
    members, index, term = snapshot.members, snapshot.index, snapshot.term
    for entry in entries:
        index, term = entry.index, entry.term
        if entry.kind is Kind.COMMAND:
            machine.apply(entry.data)
        elif entry.kind is Kind.MEMBERS:
            members = decode_members(entry.data)
    return LocalMetadata(machine, members, index, term)
