"""Seeded bugs of transactions that the judge of histories must find.

Rule: as ``metadata_bugs``.
"""

from typing import Any, Final

from simulation.bugs import Replacement, SourceRewrite
from strandline.broker.read_path.transaction_visibility import PartitionTransactions
from strandline.core.coordinator_effects import DecisionLog
from strandline.core.groups import coordinator as groups
from strandline.core.groups.transactions import Transactions
from strandline.core.transactions import coordinator
from strandline.core.transactions.coordinator import Coordinator
from strandline.core.transactions.index import TransactionIndex
from strandline.core.transactions.markers import Markers

_COORDINATOR = "strandline.core.transactions.coordinator:Coordinator"
_INDEX = "strandline.core.transactions.index:TransactionIndex"
_VISIBILITY = "strandline.broker.read_path.transaction_visibility:PartitionTransactions"


def _nothing(*_: object, **__: object) -> None:
    """A step that is left out."""


class _HastyLog(DecisionLog[Any, Any]):
    """Releases effects before earlier entries are stored."""

    def give(self, *effects: Any) -> None:
        """Give them at once."""
        self._out += effects


TRANSACTION_BUGS: Final = (
    Replacement("a new coordinator owes no markers", "resume", lambda *_: [], (Coordinator,)),
    Replacement(
        "decisions are told before they are stored", "DecisionLog", _HastyLog, (coordinator,)
    ),
    Replacement("a lost marker is not given again", "again", _nothing, (Markers,)),
    Replacement(
        "the next transaction keeps the epoch",
        "next_epoch",
        lambda producer: producer,
        (coordinator,),
    ),
    Replacement(
        "a late beginning opens a transaction again",
        "may_begin",
        lambda *_: True,
        (TransactionIndex,),
    ),
    Replacement("records get in at any time", "check", _nothing, (PartitionTransactions,)),
    Replacement("aborted records count", "counts", lambda *_: True, (PartitionTransactions,)),
    Replacement(
        "reading goes past open transactions",
        "last_stable_offset",
        lambda _, high_watermark: high_watermark,
        (TransactionIndex,),
    ),
    Replacement("parts that lost are kept", "is_overtaken", lambda *_: False, (coordinator,)),
    SourceRewrite(
        "a prepared transaction is taken over",
        f"{_COORDINATOR}._begin",
        "known.status is TransactionStatus.PREPARED",
        "False",
    ),
    SourceRewrite(
        "a repeat is published again",
        f"{_COORDINATOR}._publish",
        "batch.number <= last.batch",
        "batch.number < last.batch",
    ),
    SourceRewrite(
        "records get in behind the end that is on its way",
        f"{_VISIBILITY}.check",
        "producer in self._ending or ",
        "",
    ),
    SourceRewrite(
        "a marker counts before it is committed",
        f"{_VISIBILITY}.commit",
        "while noted and noted[0].offset < high_watermark",
        "while noted",
    ),
    Replacement(
        "what was cut off the log is remembered", "forget_from", _nothing, (PartitionTransactions,)
    ),
    SourceRewrite(
        "an abort forgets what it aborts",
        f"{_INDEX}.note",
        "if kind is MarkerKind.ABORT:",
        "if kind is None:",
    ),
    SourceRewrite(
        "a timeout commits",
        f"{_COORDINATOR}._time_passed",
        "TransactionStatus.ABORTING",
        "TransactionStatus.COMMITTING",
    ),
    SourceRewrite(
        "positions of aborted transactions count",
        "strandline.core.groups.state:GroupsState._end",
        "if not is_commit:",
        "if not waited:",
    ),
    Replacement(
        "a late beginning lets positions in again", "may_begin", lambda *_: True, (Transactions,)
    ),
    Replacement(
        "the end of a transaction is told before groups have it stored",
        "DecisionLog",
        _HastyLog,
        (groups,),
    ),
)
