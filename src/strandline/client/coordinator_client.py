"""Questions to a coordinator: the leader of an internal stream, wherever it is just now.

Rules: every question may be asked again when its answer was lost, so a lost connection, another
leader or one that is still loading are waited out until the time is over. Safe to use from several
threads.
"""

import time
from collections.abc import Collection
from typing import TypeVar

from strandline.client.cluster_client import ClusterClient
from strandline.client.deadline import within
from strandline.client.retry import Backoff, is_connection_loss
from strandline.errors import NotLeaderError, StrandlineError, UnknownStreamError

ATTEMPT_S = 5.0
T = TypeVar("T")


class CoordinatorClient:
    """A coordinator, as clients see it.

    Args:
        brokers: of which one is it.
        stream: the internal stream whose leader it is.
    """

    def __init__(self, brokers: ClusterClient, stream: str) -> None:
        self._brokers = brokers
        self._stream = stream
        self._address = ""

    def ask(
        self,
        name: str,
        body: object,
        kind: type[T],
        *,
        timeout_s: float,
        streams: Collection[str] = (),
    ) -> list[T]:
        """Run an action there.

        Args:
            name: of the action.
            body: the request.
            kind: type of each answer.
            timeout_s: how long to try.
            streams: which the action is about; the coordinator may not know the newest yet.

        Raises:
            StrandlineError: what it answered, or that it did not in time.
        """
        backoff = Backoff()
        with within(timeout_s) as deadline_s:
            while True:
                try:
                    return self._attempt(name, body, kind)
                except StrandlineError as error:
                    self._address = ""
                    now_s = time.monotonic()
                    backoff.failed(now_s)
                    is_passing = error.retriable or self._is_early(error, streams)
                    if not is_passing or backoff.not_before_s >= deadline_s:
                        raise
                    self._brokers.ask_another()
                    time.sleep(backoff.wait_s(now_s))

    def _is_early(self, error: StrandlineError, streams: Collection[str]) -> bool:
        """Whether a stream is only not known there yet."""
        is_unknown = isinstance(error, UnknownStreamError) and self._stream not in streams
        return is_unknown and self._brokers.know((stream, 0) for stream in streams)

    def tell(self, name: str, body: object, *, timeout_s: float) -> None:
        """Run an action that answers nothing; as ``ask``."""
        self.ask(name, body, object, timeout_s=timeout_s)

    def _attempt(self, name: str, body: object, kind: type[T]) -> list[T]:
        address = self._address or self._found()
        connection = self._brokers.connection(address)
        try:
            answers = connection.action(name, body, kind, timeout_s=ATTEMPT_S)
        except StrandlineError as error:
            if is_connection_loss(error):
                connection.reset()
            raise
        self._address = address
        return answers

    def _found(self) -> str:
        """Where it is.

        Raises:
            NotLeaderError: nowhere, now.
        """
        try:
            leader = self._brokers.leaders(self._brokers.routes(self._stream)).get(0, "")
        except UnknownStreamError:
            return self._brokers.home  # nobody has used it yet: any broker begins
        if not leader:
            raise NotLeaderError(f"{self._stream} has no leader just now; retry")
        return leader
