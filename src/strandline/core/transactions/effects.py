"""Effects of the transaction coordinator besides those in ``coordinator_effects``."""

import enum
from typing import NamedTuple

import msgspec

from strandline.core.coordinator_effects import Decision
from strandline.core.transactions.state import (
    Publication,
    TransactionalProducer,
    TransactionEntry,
    TransactionPartition,
)


class MarkerKind(enum.Enum):
    """The content of a marker for a partition."""

    BEGIN = "begin"
    """Records of this producer and epoch are accepted from here on."""
    COMMIT = "commit"
    """No more records are accepted from here on; earlier ones are committed."""
    ABORT = "abort"
    """No more records are accepted from here on; earlier ones are aborted."""


class SendMarker(msgspec.Struct, frozen=True):
    """Write a marker to a partition; ``events.Marked`` or ``NotMarked`` reports the result."""

    id: str
    producer: TransactionalProducer
    place: TransactionPartition
    kind: MarkerKind


class TimedOut(msgspec.Struct, frozen=True):
    """A transaction was aborted after its timeout: that of this id, or one of its parts."""

    name: str


Effect = Decision[TransactionEntry] | SendMarker | TimedOut


class Begun(NamedTuple):
    """A transaction has begun."""

    producer: TransactionalProducer
    is_published: bool = False
    """The batch is published already, so there is nothing to stage."""


class Published(NamedTuple):
    """A batch is published."""

    publication: Publication
    is_repeat: bool
