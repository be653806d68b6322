"""A leader's view of one follower, and the batches in flight to it.

    SILENT ──Fetch, logs agree──► STREAMING ──its end fell below our log start──► MISPLACED
       ▲                             │ ▲                                             │
       └────link lost, logs part─────┘ └────────────────────Fetch────────────────────┘

Invariants:
- while streaming, ``durable_offset <= next_offset`` and what is between was sent in this session;
- ``durable_offset`` counts only what was acked in this epoch by a follower whose log agreed up to
  there. It may outlive a session: within an epoch a follower never truncates below it;
- ``caught_up_ms`` is a time at which the follower had everything there was, as far as we know;
- ``is_gaining`` until it was found, within a session, that the follower only falls further behind.
"""

from collections import deque
from enum import Enum
from typing import Final

from strandline.core.replication.messages import Acked, BatchRef, Fetch, Session
from strandline.types import BrokerId, Offset

NO_SESSION: Final = Session(-1)
"""Before any: whatever the follower counts from, its next one is newer."""


class Phase(Enum):
    """The leader's state towards one follower."""

    SILENT = "silent"
    STREAMING = "streaming"
    MISPLACED = "misplaced"


class Progress:
    """One follower as its leader sees it."""

    __slots__ = (
        "_in_flight",
        "_lag_before",
        "acked",
        "acked_high_watermark",
        "broker",
        "caught_up_ms",
        "durable_offset",
        "goal_ms",
        "goal_offset",
        "in_flight_bytes",
        "incarnation",
        "is_gaining",
        "is_reading",
        "next_offset",
        "phase",
        "resend_ms",
        "sent_high_watermark",
        "session",
        "wants_ack",
    )  # fmt: skip

    def __init__(self, broker: BrokerId, *, log_end_offset: Offset, now_ms: int) -> None:
        self.broker = broker
        self.phase = Phase.SILENT
        self.session = NO_SESSION
        self.incarnation = ""
        self.next_offset = Offset(0)
        self.durable_offset = Offset(0)
        self.acked = False
        self.caught_up_ms = now_ms
        self.goal_offset, self.goal_ms = log_end_offset, now_ms
        self.is_gaining = True
        self._lag_before: int | None = None
        self.is_reading = False
        self.wants_ack = False
        self.sent_high_watermark = self.acked_high_watermark = Offset(0)
        self.resend_ms: int | None = None
        self.in_flight_bytes = 0
        self._in_flight: deque[tuple[Offset, int]] = deque()

    # Sessions

    def begin(self, fetch: Fetch) -> None:
        """The follower's log agrees with ours to its end: stream on from there."""
        self._stop()
        self.session = fetch.session
        self.incarnation = fetch.incarnation
        self.phase = Phase.STREAMING
        self.next_offset = fetch.end_offset
        # Less than it acked before: it lost records, and does not count for them any more.
        self.durable_offset = min(self.durable_offset, fetch.end_offset)
        self.is_gaining, self._lag_before = True, None
        self.wants_ack = True

    def silence(self, session: Session) -> None:
        """Stream no more until the follower fetches anew."""
        self._stop()
        self.session = session

    def misplace(self) -> None:
        """Note that the follower must restart at our log start: its next offset was removed."""
        self._stop()
        self.phase = Phase.MISPLACED
        self.wants_ack = True

    def _stop(self) -> None:
        self.phase = Phase.SILENT
        self.acked = self.is_reading = self.wants_ack = False
        self.sent_high_watermark = self.acked_high_watermark = Offset(0)
        self.resend_ms = None
        self.in_flight_bytes = 0
        self._in_flight.clear()

    # Sending

    def sent(self, batches: tuple[BatchRef, ...], high_watermark: Offset) -> None:
        """A ``Replicate`` left."""
        for batch in batches:
            assert batch.base_offset == self.next_offset, "a session streams without gaps"
            self.next_offset = batch.next_offset
            self.in_flight_bytes += batch.size
            self._in_flight.append((batch.next_offset, batch.size))
        self.sent_high_watermark = high_watermark
        self.wants_ack = False

    @property
    def is_outstanding(self) -> bool:
        """Whether an answer is due: the session's first, for batches or the high watermark.

        Or a read of our own log: one that fails is tried again after the same time.
        """
        return self.phase is Phase.MISPLACED or (
            self.phase is Phase.STREAMING
            and (
                not self.acked
                or self.is_reading
                or self.durable_offset < self.next_offset
                or self.acked_high_watermark < self.sent_high_watermark
            )
        )

    def room(self, window_bytes: int) -> int:
        """Bytes that may still be sent; a batch larger than the window goes alone."""
        return max(window_bytes - self.in_flight_bytes, 0 if self._in_flight else 1)

    # Being told

    def take_ack(self, ack: Acked) -> None:
        """The follower synced up to ``ack.durable_offset``, which is ours up to there."""
        self.acked = True
        durable = min(ack.durable_offset, self.next_offset)
        self.durable_offset = max(self.durable_offset, durable)
        self.acked_high_watermark = max(self.acked_high_watermark, ack.high_watermark)
        while self._in_flight and self._in_flight[0][0] <= self.durable_offset:
            self.in_flight_bytes -= self._in_flight.popleft()[1]

    # Keeping up

    def log_grew(self, old_end: Offset, new_end: Offset, now_ms: int) -> None:
        """The leader appended: who had everything until now is behind from now on."""
        if self.durable_offset >= old_end:
            self.caught_up_ms = self.goal_ms = now_ms
            self.goal_offset = new_end

    def keep_up(self, log_end_offset: Offset, now_ms: int) -> None:
        """Note how current the follower is after an ack.

        One that always lags a little under steady load is in sync: what counts is how long ago the
        log ended where the follower is now. One remembered end is enough to know that roughly.
        """
        if self.durable_offset >= log_end_offset:
            self.caught_up_ms = now_ms
        elif self.durable_offset >= self.goal_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.goal_ms)
            self.goal_offset, self.goal_ms = log_end_offset, now_ms
            lag = log_end_offset - self.durable_offset
            if self._lag_before is not None and lag >= self._lag_before:
                self.is_gaining = False
            self._lag_before = lag
