"""Calls to a coordinator, the leader of an internal stream, wherever it is.

Rules: every call may be repeated after a lost answer, so lost connections, leader changes and
loading leaders are retried until the timeout. Safe to use from several threads.
"""

import time
from collections.abc import Collection
from typing import TypeVar

from strandline.api.command import AdminCommand
from strandline.client.cluster_client import ClusterClient
from strandline.client.deadline import within
from strandline.client.retry_policy import RetryBackoff, is_connection_loss
from strandline.errors import NotLeaderError, StrandlineError, UnknownStreamError

ATTEMPT_S = 5.0
Q = TypeVar("Q")
A = TypeVar("A")


class CoordinatorClient:
    """The client of a coordinator.

    Args:
        brokers: of the cluster.
        stream: the internal stream whose leader is the coordinator.
    """

    def __init__(self, brokers: ClusterClient, stream: str) -> None:
        self._brokers = brokers
        self._stream = stream
        self._address = ""

    def ask(
        self,
        command: AdminCommand[Q, A],
        request: Q,
        *,
        timeout_s: float,
        streams: Collection[str] = (),
    ) -> list[A]:
        """Run a command at the coordinator.

        Args:
            command: the command.
            request: its request.
            timeout_s: how long to try.
            streams: streams of the request; the coordinator may not know the newest yet.

        Raises:
            StrandlineError: the coordinator's error, or that it did not answer in time.
        """
        backoff = RetryBackoff()
        with within(timeout_s) as deadline_s:
            while True:
                try:
                    return self._attempt(command, request)
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
        """Return whether a stream is only not known at the coordinator yet."""
        is_unknown = isinstance(error, UnknownStreamError) and self._stream not in streams
        return is_unknown and self._brokers.any_broker_knows((stream, 0) for stream in streams)

    def _attempt(self, command: AdminCommand[Q, A], request: Q) -> list[A]:
        address = self._address or self._found()
        connection = self._brokers.connection(address)
        try:
            answers = connection.action(command, request, timeout_s=ATTEMPT_S)
        except StrandlineError as error:
            if is_connection_loss(error):
                connection.reset()
            raise
        self._address = address
        return answers

    def _found(self) -> str:
        """Return the coordinator's address.

        Raises:
            NotLeaderError: the stream has no leader now.
        """
        try:
            leader = self._brokers.leaders(self._brokers.routes(self._stream)).get(0, "")
        except UnknownStreamError:
            return self._brokers.home  # not created yet: any broker creates it
        if not leader:
            raise NotLeaderError(f"{self._stream} has no leader now; retry")
        return leader
