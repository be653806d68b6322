"""Transaction markers for partitions that other brokers lead.

Rules: a request is sent once; its answer, or the loss of the link, ends it. Requests and answers
stay in order on a link, so the end of a transaction never overtakes its beginning on the way to one
leader. After a change of leaders, the partition's own transaction index rejects late markers.
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
    """Marker requests to and from other brokers.

    Args:
        rpc: requests to and from other brokers.
        write_here: writes a marker of a partition that this broker leads.
    """

    def __init__(self, rpc: PeerRpc, write_here: Callable[[SendMarker, MarkerDone], None]) -> None:
        self._rpc = rpc
        self._write_here = write_here

    def order(self, leader: BrokerId, mark: SendMarker, done: MarkerDone) -> None:
        """Have ``leader`` write a marker; ``done`` is called once, perhaps during this call."""
        answer = self._rpc.ask(
            leader,
            lambda n: WriteMarker(n, mark.place, mark.producer, mark.kind),
            MarkerWritten,
        )
        if answer is None:
            done(UnavailableError(f"broker {leader} leads {mark.place} and is not reached"))
        else:
            answer.add_done_callback(lambda answer: done(_outcome(answer)))

    def serve(self, sender: BrokerId, order: WriteMarker) -> None:
        """Write a marker for another broker, and answer."""

        def done(error: StrandlineError | None) -> None:
            failure = "" if error is None else error.message or error.code
            self._rpc.answer(sender, MarkerWritten(order.number, failure))

        self._write_here(SendMarker("", order.producer, order.place, order.kind), done)


def _outcome(answer: asyncio.Future[MarkerWritten]) -> StrandlineError | None:
    """Return the error if a marker may not be written, or None."""
    error = answer.exception()
    if error is None:
        failure = answer.result().failure
        return UnavailableError(failure) if failure else None
    assert isinstance(error, StrandlineError), "the only errors of requests"
    return error
