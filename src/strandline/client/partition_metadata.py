"""The leaders of the partitions that a producer writes to, and their lookup.

A partition that a broker has rejected, or whose leader was lost, waits until its leader was looked
up again (with a single broker, for a moment). Partitions added to the stream are found, too.

Threads: callers hold the delivery's lock. A lookup thread runs, without the lock, while any
    partition waits; another thread checks for added partitions.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable
from typing import Final, Protocol

from strandline.client.cluster_client import ClusterClient
from strandline.client.metadata import Routes
from strandline.client.retry_policy import RetryBackoff
from strandline.errors import (
    ClientClosedError,
    InvalidRequestError,
    StrandlineError,
    UnknownStreamError,
)

logger = logging.getLogger(__name__)

METADATA_REFRESH_S = 10.0
"""The interval at which a producer in use checks for added partitions."""
UNKNOWN_MAX = 5
"""After so many consecutive lookups an unknown stream counts as deleted."""
FAILED: Final = "the producer failed; see the log"
"""The message of records that failed because of a bug in the client."""


class MetadataListener(Protocol):
    """The user of this class; see ``ProducerDelivery``."""

    def send_to(self, addresses: Iterable[str]) -> None:
        """Handle that these addresses lead a partition; called with the lock."""
        ...

    def fail_partitions(self, partitions: Collection[int], error: StrandlineError) -> None:
        """Fail the records of partitions whose leaders cannot be found; called without the lock."""
        ...

    def fail_all(self, error: StrandlineError) -> None:
        """Fail all records: nothing can be delivered any more; called without the lock."""
        ...


class PartitionMetadata:
    """The leaders of a stream's partitions.

    Args:
        brokers: the brokers of the cluster.
        stream: the stream's name.
        listener: notified of leaders, and of failures.
        changed: holds the delivery's lock; notified when leaders were found.
        is_over: set when leaders are no longer needed.
    """

    def __init__(
        self,
        brokers: ClusterClient,
        stream: str,
        listener: MetadataListener,
        *,
        changed: threading.Condition,
        is_over: threading.Event,
    ) -> None:
        self._brokers = brokers
        self._stream = stream
        self._listener = listener
        self._changed = changed
        self._is_over = is_over
        self._leaders: dict[int, str] = {}
        self._waiting: set[int] = set()
        """The partitions whose leader must be looked up."""
        self._backoff = RetryBackoff()
        self._is_looking = False
        self._look_s = time.monotonic() + METADATA_REFRESH_S
        self.partitions = 0
        """The number of partitions known; may be read without the lock."""
        self.last_loss: StrandlineError | None = None
        """The error that caused the last lookup, or the error of that lookup."""
        self._last_loss_s = 0.0

    def __getitem__(self, partition: int) -> str:
        """Return the address of a partition's leader; empty if none is known."""
        return self._leaders.get(partition, "")

    def led_by(self, address: str) -> list[int]:
        """Return the partitions that an address leads, as far as known."""
        return [number for number, leader in self._leaders.items() if leader == address]

    def may_send(self, partition: int, address: str) -> bool:
        """Return whether an address leads a partition whose leader need not be looked up."""
        return self[partition] == address and partition not in self._waiting

    def answered(self) -> None:
        """Note a success, so that the next lookup starts without a pause."""
        self._backoff.succeeded()

    def look_up(self, partitions: Iterable[int], error: StrandlineError) -> None:
        """Look up the leaders of these partitions again, because of an error."""
        self._note_loss(error)
        if not self._waiting:
            self._backoff.failed(time.monotonic())
            self._brokers.metadata.ask_another()
        self._waiting.update(partitions)
        self._start_lookup()

    def loss_since(self, time_s: float) -> StrandlineError | None:
        """Return the last error, unless it was before ``time_s``."""
        return self.last_loss if self._last_loss_s >= time_s else None

    def _note_loss(self, error: StrandlineError) -> None:
        self.last_loss, self._last_loss_s = error, time.monotonic()

    def take(self, routes: Routes) -> None:
        """Note the leaders that a broker has named."""
        self._found(self._brokers.leaders(routes))

    def refresh_partitions(self, now_s: float) -> None:
        """Check for added partitions on a thread, if the interval has passed."""
        if self._brokers.is_cluster and now_s >= self._look_s:
            self._look_s = now_s + METADATA_REFRESH_S
            threading.Thread(target=self._add, name="strandline-partitions", daemon=True).start()

    def _add(self) -> None:
        try:
            routes = self._brokers.routes(self._stream)
        except StrandlineError as error:
            logger.debug("cannot look up partitions of stream %s: %s", self._stream, error)
            return
        with self._changed:
            self.take({n: each for n, each in routes.items() if n >= self.partitions})

    def _found(self, leaders: dict[int, str]) -> None:
        """Set leaders; called with the lock."""
        for partition, leader in leaders.items():
            self._leaders[partition] = leader
            if leader:
                self._waiting.discard(partition)
            else:
                self._waiting.add(partition)
        self.partitions = len(self._leaders)
        self._listener.send_to({leader for leader in leaders.values() if leader})
        if self._waiting:
            self._start_lookup()
        self._changed.notify_all()

    def _start_lookup(self) -> None:
        """Start the lookup thread unless it runs; called with the lock."""
        if not self._is_looking:
            self._is_looking = True
            threading.Thread(
                target=self._run_lookup, name="strandline-leaders", daemon=True
            ).start()

    def _run_lookup(self) -> None:
        """Look up leaders until no partition waits."""
        try:
            self._look_up_until_found()
        except Exception:
            # Even after a bug no caller may wait for ever.
            logger.exception("leader lookup of stream %s failed", self._stream)
            self._listener.fail_all(StrandlineError(FAILED))

    def _look_up_until_found(self) -> None:
        unknown = 0
        while not self._is_over.wait(self._backoff.wait_s(time.monotonic())):
            try:
                found = self._ask()
                unknown = 0
            except StrandlineError as error:
                found = {}
                self._note_loss(error)
                is_unknown = isinstance(error, UnknownStreamError)
                unknown = unknown + 1 if is_unknown else 0
                if unknown == UNKNOWN_MAX or isinstance(error, ClientClosedError):
                    self._listener.fail_all(error)
                elif isinstance(error, InvalidRequestError) and not is_unknown:
                    # A rejection, such as of a revoked token, is reported to the caller at once.
                    # Otherwise the caller would not renew the token until records time out, while
                    # later records wait.
                    with self._changed:
                        waiting = frozenset(self._waiting)
                    self._listener.fail_partitions(waiting, error)
            with self._changed:
                self._found(found)
                if not self._waiting:
                    self._is_looking = False
                    return
                self._backoff.failed(time.monotonic())
            self._brokers.metadata.ask_another()

    def _ask(self) -> dict[int, str]:
        """Return the current leaders; a single broker leads everything."""
        if not self._brokers.is_cluster:
            self._brokers.server_info()  # a broker that was starting may list other brokers now
        if not self._brokers.is_cluster:
            return dict.fromkeys(self._leaders, self._brokers.home)
        return self._brokers.leaders(self._brokers.routes(self._stream))
