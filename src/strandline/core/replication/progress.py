"""A leader's view of one follower, and the batches in flight to it.

    SILENT ──Fetch, logs agree──► STREAMING ──its end fell below our log start──► MISPLACED
       ▲                             │ ▲                                             │
       └────link lost, logs part─────┘ └────────────────────Fetch────────────────────┘

Invariants:
- while streaming, ``durable_offset <= next_offset``; what is between was sent in this session;
- ``durable_offset`` counts only acks of this epoch by a follower whose log agreed up to there. It
  may outlive a session: within an epoch a follower never truncates below it;
- ``caught_up_ms`` is the last known time at which the follower had all records;
- ``is_gaining`` is true until the follower was seen, within a session, to fall further behind.
"""

from collections import deque
from enum import Enum
from typing import Final

from strandline.core.replication.messages import Acked, BatchRef, Fetch, Session
from strandline.types import BrokerId, Offset

NO_SESSION: Final = Session(-1)
"""Older than every session of a follower."""


class Phase(Enum):
    """The leader's state towards one follower."""

    SILENT = "silent"
    STREAMING = "streaming"
    MISPLACED = "misplaced"


class Progress:
    """A follower as its leader sees it."""

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
        """Start sending after the end of the follower's log, which is a prefix of ours."""
        self._stop()
        self.session = fetch.session
        self.incarnation = fetch.incarnation
        self.phase = Phase.STREAMING
        self.next_offset = fetch.end_offset
        # If that is less than it acked before, it has lost records and must not count for them.
        self.durable_offset = min(self.durable_offset, fetch.end_offset)
        self.is_gaining, self._lag_before = True, None
        self.wants_ack = True

    def silence(self, session: Session) -> None:
        """Send nothing until the follower fetches again."""
        self._stop()
        self.session = session

    def misplace(self) -> None:
        """Note that the follower must restart at our log start: the records it needs are gone."""
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
        """Note that a ``Replicate`` was sent."""
        for batch in batches:
            assert batch.base_offset == self.next_offset, "a session streams without gaps"
            self.next_offset = batch.next_offset
            self.in_flight_bytes += batch.size
            self._in_flight.append((batch.next_offset, batch.size))
        self.sent_high_watermark = high_watermark
        self.wants_ack = False

    @property
    def is_outstanding(self) -> bool:
        """Whether the follower owes an answer: its first one, to batches, or to the high watermark.

        A read of our own log counts too: a failed one is retried after the same time.
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
        """Return how many bytes may still be sent; a batch larger than the window is sent alone."""
        return max(window_bytes - self.in_flight_bytes, 0 if self._in_flight else 1)

    # Receiving

    def take_ack(self, ack: Acked) -> None:
        """Note that the follower's log is synced up to ``ack.durable_offset``."""
        self.acked = True
        durable = min(ack.durable_offset, self.next_offset)
        self.durable_offset = max(self.durable_offset, durable)
        self.acked_high_watermark = max(self.acked_high_watermark, ack.high_watermark)
        while self._in_flight and self._in_flight[0][0] <= self.durable_offset:
            self.in_flight_bytes -= self._in_flight.popleft()[1]

    # Keeping up

    def log_grew(self, old_end: Offset, new_end: Offset, now_ms: int) -> None:
        """Note the leader's append: a follower that had all records is behind from now on."""
        if self.durable_offset >= old_end:
            self.caught_up_ms = self.goal_ms = now_ms
            self.goal_offset = new_end

    def keep_up(self, log_end_offset: Offset, now_ms: int) -> None:
        """Note how current the follower is after an ack.

        A follower that always lags a little under steady load is in sync. What counts is how long
        ago the log ended where the follower is now. One remembered log end is enough to know that
        roughly.
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
