"""Markers of transactions for partitions that other brokers lead.

Rules: an order is given once; its answer, or the loss of the link, ends it. Orders and answers keep
their order on a link, so the end of a transaction never overtakes its beginning on the way to one
leader; between leaders the partition's own ledger tells what is too late.
"""

import asyncio
from collections.abc import Callable

from strandline.broker.cluster.channels import MarkerWritten, WriteMarker
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.broker.coordinators.transactions import MarkerDone
from strandline.core.transactions.effects import SendMarker
from strandline.errors import StrandlineError, UnavailableError
from strandline.types import BrokerId


class RemoteMarkers:
    """Orders to other brokers, and theirs to this one.

    Args:
        questions: to other brokers and theirs.

    Attributes:
        write_here: writes a marker of a partition that this broker leads.
    """

    def __init__(self, questions: PeerRpc) -> None:
        self.write_here: Callable[[SendMarker, MarkerDone], None] = _not_yet
        self._questions = questions

    def order(self, leader: BrokerId, mark: SendMarker, done: MarkerDone) -> None:
        """Have ``leader`` write a marker; ``done`` is called once, perhaps at once."""
        answer = self._questions.ask(
            leader,
            lambda n: WriteMarker(n, mark.place, mark.producer, mark.kind),
            MarkerWritten,
        )
        if answer is None:
            done(UnavailableError(f"broker {leader} leads {mark.place} and is not reached"))
        else:
            answer.add_done_callback(lambda answer: done(_outcome(answer)))

    def serve(self, sender: BrokerId, order: WriteMarker) -> None:
        """Write what another broker orders, and answer."""

        def done(error: StrandlineError | None) -> None:
            failure = "" if error is None else error.message or error.code
            self._questions.answer(sender, MarkerWritten(order.number, failure))

        self.write_here(SendMarker("", order.producer, order.place, order.kind), done)


def _outcome(answer: asyncio.Future[MarkerWritten]) -> StrandlineError | None:
    """Why an order was perhaps not carried out; None: it was."""
    error = answer.exception()
    if error is None:
        failure = answer.result().failure
        return UnavailableError(failure) if failure else None
    assert isinstance(error, StrandlineError), "what ends questions"
    return error


def _not_yet(mark: SendMarker, done: MarkerDone) -> None:
    """Before the broker has begun."""
    done(UnavailableError(f"no marker for {mark.place} yet: this broker begins"))
