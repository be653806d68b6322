"""The metadata as far as one broker's disk tells, without asking the others.

It may lack what the others decided since, and hold what they never agreed to: enough to find the
copies on this disk, and for an operator who lets this broker decide alone.
"""

from typing import NamedTuple

from strandline.broker.cluster.state_machine import MetadataMachine
from strandline.broker.quorum_store import QuorumStore
from strandline.core.raft.log import decode_members
from strandline.core.raft.messages import Index, Kind, Members, Term


class LocalMetadata(NamedTuple):
    """The metadata as it is on a broker's disk.

    Attributes:
        machine: with every entry on the disk applied.
        members: of the quorum, as the last entry about them has it.
        last_index: of the last entry.
        term: of the last entry.
    """

    machine: MetadataMachine
    members: Members
    last_index: Index
    term: Term


def remembered(store: QuorumStore, founders: Members) -> LocalMetadata:
    """Read the metadata from a broker's disk.

    Raises:
        CorruptBatchError: what the disk has is corrupt.
        UnavailableError: it cannot be read.
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
