"""Seeded bugs of transactions that histories must find; rule as in ``metadata_bugs``."""

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
    """Do nothing, in place of a step."""


class _HastyLog(DecisionLog[Any, Any]):
    """Releases effects before earlier entries are stored."""

    def give(self, *effects: Any) -> None:
        """Release the effects at once."""
        self._out += effects


TRANSACTION_BUGS: Final = (
    Replacement(
        "a new coordinator forgets pending markers", "resume", lambda *_: [], (Coordinator,)
    ),
    Replacement(
        "decisions are answered before they are stored", "DecisionLog", _HastyLog, (coordinator,)
    ),
    Replacement("a lost marker is not sent again", "again", _nothing, (Markers,)),
    Replacement(
        "the next transaction keeps the epoch",
        "next_epoch",
        lambda producer: producer,
        (coordinator,),
    ),
    Replacement(
        "a late BEGIN marker opens a transaction again",
        "may_begin",
        lambda *_: True,
        (TransactionIndex,),
    ),
    Replacement("records are accepted at any time", "check", _nothing, (PartitionTransactions,)),
    Replacement("aborted records count", "is_committed", lambda *_: True, (PartitionTransactions,)),
    Replacement(
        "reading goes past open transactions",
        "last_stable_offset",
        lambda _, high_watermark: high_watermark,
        (TransactionIndex,),
    ),
    Replacement(
        "parts that were not published are kept", "is_overtaken", lambda *_: False, (coordinator,)
    ),
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
        "records are accepted after an end marker that is not committed",
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
        "truncated batches stay in the index", "forget_from", _nothing, (PartitionTransactions,)
    ),
    SourceRewrite(
        "an abort loses the aborted range",
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
        "offsets of aborted transactions count",
        "strandline.core.groups.state:GroupsState._end",
        "if not is_commit:",
        "if not waited:",
    ),
    Replacement(
        "a late beginning accepts offsets again", "may_begin", lambda *_: True, (Transactions,)
    ),
    Replacement(
        "the end of a transaction is answered before groups have stored it",
        "DecisionLog",
        _HastyLog,
        (groups,),
    ),
)
