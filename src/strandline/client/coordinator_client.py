"""Calls to a coordinator: the leader of an internal stream, on whichever broker.

Rules: every call may be repeated after a lost answer. So calls are retried until the timeout after
lost connections, changes of leaders, and while a leader is still loading. Safe to use from several
threads.
"""

from collections.abc import Collection
from functools import partial
from typing import TypeVar

from strandline.api.command import AdminCommand
from strandline.client.cluster_client import ClusterClient
from strandline.client.retry_policy import call_with_retries
from strandline.errors import (
    NotLeaderError,
    StrandlineError,
    UnknownPartitionError,
    UnknownStreamError,
)

ATTEMPT_S = 5.0
Q = TypeVar("Q")
A = TypeVar("A")


class CoordinatorClient:
    """The client of a coordinator.

    Args:
        brokers: the brokers of the cluster.
        stream: the internal stream whose leader is the coordinator.
    """

    def __init__(self, brokers: ClusterClient, stream: str) -> None:
        self._brokers = brokers
        self._stream = stream

    def ask(
        self,
        command: AdminCommand[Q, A],
        request: Q,
        *,
        timeout_s: float,
        partitions: Collection[tuple[str, int]] = (),
    ) -> list[A]:
        """Run a command at the coordinator.

        Args:
            command: the command.
            request: the command's request.
            timeout_s: how long to try.
            partitions: the partitions in the request; the coordinator may not know new ones yet.

        Raises:
            StrandlineError: the coordinator's error, or it did not answer in time.
        """

        def should_retry(error: StrandlineError) -> bool:
            self._brokers.metadata.forget(self._stream)
            return error.retriable or self._is_early(error, partitions)

        return call_with_retries(
            partial(self._attempt, command, request),
            timeout_s=timeout_s,
            should_retry=should_retry,
            before_retry=self._brokers.metadata.ask_another,
        )

    def _is_early(self, error: StrandlineError, partitions: Collection[tuple[str, int]]) -> bool:
        """Return whether the only problem is that the coordinator does not know a partition yet."""
        is_unknown = isinstance(error, UnknownStreamError | UnknownPartitionError)
        is_own = any(stream == self._stream for stream, _ in partitions)
        return is_unknown and not is_own and self._brokers.any_broker_knows(partitions)

    def _attempt(self, command: AdminCommand[Q, A], request: Q) -> list[A]:
        connection = self._brokers.connection(self._address())
        try:
            return connection.action(command, request, timeout_s=ATTEMPT_S)
        except StrandlineError as error:
            if error.is_connection_loss:
                connection.reset()
            raise

    def _address(self) -> str:
        """Return the coordinator's address.

        Raises:
            NotLeaderError: the stream has no leader now.
        """
        try:
            leader = self._brokers.leaders(self._brokers.known_routes(self._stream)).get(0, "")
        except UnknownStreamError:
            return self._brokers.home  # the stream does not exist yet: any broker creates it
        if not leader:
            raise NotLeaderError(f"{self._stream} has no leader now; retry")
        return leader
