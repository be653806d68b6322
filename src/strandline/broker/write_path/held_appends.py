"""Appends that wait until the message ids of their partition are read back from the log.

A publish with an id cannot be judged before, and stock NATS clients do not repeat one that is
refused. Later appends to the partition wait behind it, with an id or without, so that all keep
their order.

Rules: loop thread only. At most ``HELD_MAX`` appends are held, and none for longer than
``HELD_S_MAX``; the others are refused. Their bytes count as pending, which slows publishers down.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from strandline.broker.write_path.ack_sink import AckSink
from strandline.broker.write_path.admission import Admission
from strandline.errors import StillLoadingError, StrandlineError

HELD_MAX: Final = 10_000
HELD_S_MAX: Final = 4.0
"""Stock NATS clients wait five seconds for an answer: they get the reason before."""


class HeldAppend(NamedTuple):
    """An append that waits."""

    append: Callable[[], None]
    """Appends again; the outcome reaches the ack sink."""
    ack_sink: AckSink | None
    token: object
    size: int
    records: int = 1


class HeldAppends:
    """The appends of one partition that wait.

    Args:
        stream: its stream.
        admission: counts their bytes.
    """

    def __init__(self, stream: str, admission: Admission[Any]) -> None:
        self._stream = stream
        self._admission = admission
        self._timer: asyncio.TimerHandle | None = None
        self.waiting: list[HeldAppend] = []

    def add(self, held: HeldAppend) -> StrandlineError | None:
        """Hold an append; return an error if it is refused instead."""
        if len(self.waiting) >= HELD_MAX:
            return self._still_loading()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HELD_S_MAX, self._expire)
        self.waiting.append(held)
        self._admission.pending_bytes += held.size
        self._admission.held += 1
        return None

    def release(self) -> None:
        """Append them, in order; those that have to wait again do so in order, too."""
        for each in self._take():
            each.append()

    def reject(self, error: StrandlineError) -> None:
        """Refuse them all."""
        for each in self._take():
            self._admission.reject(
                error, each.ack_sink, each.token, stream=self._stream, records=each.records
            )

    def _take(self) -> list[HeldAppend]:
        waiting, self.waiting = self.waiting, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._admission.pending_bytes -= sum(each.size for each in waiting)
        self._admission.held -= len(waiting)
        if waiting:
            self._admission.outbox.send_answers_soon()
        return waiting

    def _expire(self) -> None:
        self.reject(self._still_loading())

    def _still_loading(self) -> StillLoadingError:
        return StillLoadingError(
            f"message ids of stream {self._stream} are still read back from the log; retry"
        )
