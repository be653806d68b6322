"""Markers of transactions for partitions that other brokers lead.

Rules: an order is given once; its answer, or the loss of the link, ends it. Orders and answers keep
their order on a link, so the end of a transaction never overtakes its beginning on the way to one
leader; between leaders the partition's own ledger tells what is too late.
"""

from collections.abc import Callable

from strandline.broker.cluster.channels import MarkerWritten, Request, WriteMarker
from strandline.broker.transactions.office import MarkerDone
from strandline.errors import StrandlineError, UnavailableError
from strandline.transactions.effects import Mark
from strandline.types import BrokerId


class RemoteMarkers:
    """Orders to other brokers, and theirs to this one.

    Args:
        send: hands a request to a broker; False if it is not there.

    Attributes:
        write_here: writes a marker of a partition that this broker leads.
    """

    def __init__(self, send: Callable[[BrokerId, Request], bool]) -> None:
        self.write_here: Callable[[Mark, MarkerDone], None] = _not_yet
        self._send = send
        self._last_number = 0
        self._ordered: dict[int, tuple[BrokerId, MarkerDone]] = {}

    def order(self, leader: BrokerId, mark: Mark, done: MarkerDone) -> None:
        """Have ``leader`` write a marker; ``done`` is called once, perhaps at once."""
        self._last_number += 1
        number = self._last_number
        self._ordered[number] = (leader, done)
        if not self._send(leader, WriteMarker(number, mark.place, mark.producer, mark.kind)):
            del self._ordered[number]
            done(UnavailableError(f"broker {leader} leads {mark.place} and is not reached"))

    def written(self, sender: BrokerId, answer: MarkerWritten) -> None:
        """An answer came, perhaps to an order that was given up."""
        leader, done = self._ordered.get(answer.number, (None, None))
        if done is not None and leader == sender:
            del self._ordered[answer.number]
            done(UnavailableError(answer.failure) if answer.failure else None)

    def serve(self, sender: BrokerId, order: WriteMarker) -> None:
        """Write what another broker orders, and answer."""

        def done(error: StrandlineError | None) -> None:
            failure = "" if error is None else error.message or error.code
            self._send(sender, MarkerWritten(order.number, failure))  # lost with the link

        self.write_here(Mark("", order.producer, order.place, order.kind), done)

    def peer_lost(self, broker: BrokerId) -> None:
        """What was ordered of the broker may or may not happen."""
        lost = [number for number, (leader, _) in self._ordered.items() if leader == broker]
        for number in lost:
            _, done = self._ordered.pop(number)
            done(UnavailableError(f"the link to broker {broker} broke"))


def _not_yet(mark: Mark, done: MarkerDone) -> None:
    """Before the broker has begun."""
    done(UnavailableError(f"no marker for {mark.place} yet: this broker begins"))
