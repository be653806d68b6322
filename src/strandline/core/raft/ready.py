"""The work that a member asks for, in the order that is safe.

1. Send ``early`` at any time: nothing in it promises what is not on disk yet.
2. Make ``hard_state``, ``snapshot`` and ``entries`` durable, together or in this order.
3. Call ``Raft.persisted(ready)``.
4. Only now send ``late``: these messages promise what step 2 wrote. Losing one does no harm.
5. Apply ``committed`` in order (or take the state of ``snapshot`` first, if there is one).
6. Answer a read in ``reads`` once the entry it names is applied. Those in ``lost_reads`` fail: ask
   the new leader.

One ``Ready`` at a time: the outcome of messages and ticks that come meanwhile is in the next.
"""

from typing import NamedTuple

from strandline.core.raft.messages import Envelope, HardState, Index, RaftEntry, Snapshot


class ReadAllowed(NamedTuple):
    """A linearizable read that may be answered from the state after the entry at ``after``."""

    context: object
    after: Index


class Ready(NamedTuple):
    """Work to do in the order that the module describes; false if there is none."""

    hard_state: HardState | None
    snapshot: Snapshot | None
    entries: tuple[RaftEntry, ...]
    early: tuple[Envelope, ...]
    late: tuple[Envelope, ...]
    committed: tuple[RaftEntry, ...]
    reads: tuple[ReadAllowed, ...]
    lost_reads: tuple[object, ...]

    def __bool__(self) -> bool:
        return any(each is not None and each != () for each in self)
