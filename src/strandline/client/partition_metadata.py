"""Who leads the partitions of a stream that a producer writes to: known, or being looked up.

A partition that was refused, or whose leader was lost, waits until its leader was looked up anew
(with one broker alone: for a moment). Partitions that the stream is given later are found, too.

Threads: callers hold the delivery's lock; a thread of its own looks, without the lock, while any
partition waits, and another one whether there are more of them.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final, Protocol

from strandline.client.cluster_client import ClusterClient, Routes
from strandline.client.retry import Backoff
from strandline.errors import ClientClosedError, StrandlineError, UnknownStreamError

logger = logging.getLogger(__name__)

LOOK_S = 10.0
"""How often a producer that is used looks whether its stream has more partitions."""
UNKNOWN_MAX = 5
"""So often in a row a stream may be unknown before it is believed."""
FAILED: Final = "the producer failed; see the log"
"""What people are told of a bug of ours."""


class Sender(Protocol):
    """Who sends to the leaders; see ``Delivery``."""

    def send_to(self, addresses: Iterable[str]) -> None:
        """These lead a partition now; the lock is held."""
        ...

    def give_all_up(self, error: StrandlineError) -> None:
        """Nothing can be delivered any more; without the lock."""
        ...


class PartitionMetadata:
    """The leaders of a stream's partitions.

    Args:
        brokers: of the cluster.
        stream: its name.
        sender: told whom to send to.
        changed: with the delivery's lock; notified when leaders were found.
        is_over: set when nobody needs leaders any more.
    """

    def __init__(
        self,
        brokers: ClusterClient,
        stream: str,
        sender: Sender,
        *,
        changed: threading.Condition,
        is_over: threading.Event,
    ) -> None:
        self._brokers = brokers
        self._stream = stream
        self._sender = sender
        self._changed = changed
        self._is_over = is_over
        self._leaders: dict[int, str] = {}
        self._waiting: set[int] = set()
        """Partitions whose leader has to be looked up."""
        self._backoff = Backoff()
        self._is_looking = False
        self._look_s = time.monotonic() + LOOK_S
        self.partitions = 0
        """How many there are, as far as known; read without the lock."""
        self.last_loss: StrandlineError | None = None
        """Why leaders were looked up last, or were not found."""
        self._last_loss_s = 0.0

    def __getitem__(self, partition: int) -> str:
        """The address of a partition's leader, as far as known; empty if it has none."""
        return self._leaders.get(partition, "")

    def led_by(self, address: str) -> list[int]:
        """The partitions whose leader is at an address, as far as known."""
        return [number for number, leader in self._leaders.items() if leader == address]

    def may_send(self, partition: int, address: str) -> bool:
        """Whether the leader of a partition is there for certain, as far as anybody knows."""
        return self[partition] == address and partition not in self._waiting

    def answered(self) -> None:
        """A leader has done what it was asked: look quickly the next time."""
        self._backoff.succeeded()

    def look_up(self, partitions: Iterable[int], error: StrandlineError) -> None:
        """Partitions wait until their leaders were looked up, because of an error."""
        self._note_loss(error)
        if not self._waiting:
            self._backoff.failed(time.monotonic())
            self._brokers.ask_another()
        self._waiting.update(partitions)
        self._begin_to_look()

    def loss_since(self, time_s: float) -> StrandlineError | None:
        """The last loss, if it was not before ``time_s``."""
        return self.last_loss if self._last_loss_s >= time_s else None

    def _note_loss(self, error: StrandlineError) -> None:
        self.last_loss, self._last_loss_s = error, time.monotonic()

    def take(self, routes: Routes) -> None:
        """Know the leaders that a broker has named."""
        self._found(self._brokers.leaders(routes))

    def look_for_more(self, now_s: float) -> None:
        """Once in a while, see on a thread of its own whether there are more partitions."""
        if self._brokers.is_cluster and now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            threading.Thread(target=self._add, name="strandline-partitions", daemon=True).start()

    def _add(self) -> None:
        try:
            routes = self._brokers.routes(self._stream)
        except StrandlineError as error:
            logger.debug("stream %s could not be looked at: %s", self._stream, error)
            return
        with self._changed:
            self.take({n: each for n, each in routes.items() if n >= self.partitions})

    def _found(self, leaders: dict[int, str]) -> None:
        """Know these from now on; the lock is held."""
        for partition, leader in leaders.items():
            self._leaders[partition] = leader
            if leader:
                self._waiting.discard(partition)
            else:
                self._waiting.add(partition)
        self.partitions = len(self._leaders)
        self._sender.send_to({leader for leader in leaders.values() if leader})
        if self._waiting:
            self._begin_to_look()
        self._changed.notify_all()

    def _begin_to_look(self) -> None:
        """Look for leaders on a thread of its own, unless one does; the lock is held."""
        if not self._is_looking:
            self._is_looking = True
            threading.Thread(target=self._look, name="strandline-leaders", daemon=True).start()

    def _look(self) -> None:
        """Look for leaders until nobody waits for one."""
        try:
            self._look_until_found()
        except Exception:
            # A bug of ours must not leave callers waiting for ever.
            logger.exception("looking for leaders of stream %s failed", self._stream)
            self._sender.give_all_up(StrandlineError(FAILED))

    def _look_until_found(self) -> None:
        unknown = 0
        while not self._is_over.wait(self._backoff.wait_s(time.monotonic())):
            try:
                found = self._ask()
                unknown = 0
            except StrandlineError as error:
                found = {}
                self._note_loss(error)
                unknown = unknown + 1 if isinstance(error, UnknownStreamError) else 0
                if unknown == UNKNOWN_MAX or isinstance(error, ClientClosedError):
                    self._sender.give_all_up(error)
            with self._changed:
                self._found(found)
                if not self._waiting:
                    self._is_looking = False
                    return
                self._backoff.failed(time.monotonic())
            self._brokers.ask_another()

    def _ask(self) -> dict[int, str]:
        """Who leads now; with one broker alone there is nobody to ask."""
        if not self._brokers.is_cluster:
            self._brokers.server_info()  # one that was asked as it started may know others now
        if not self._brokers.is_cluster:
            return dict.fromkeys(self._leaders, self._brokers.home)
        return self._brokers.leaders(self._brokers.routes(self._stream))
