"""The brokers that a client knows: a connection to each, and the routing of calls.

A single broker gets every call, and its failures are raised at once. In a cluster any broker
answers queries and accepts admin commands; if one cannot be reached, the next is asked, until
``timeout_s``. Calls about a partition go to its leader.

Rule: a change that may have been made is never sent again. Safe to use from several threads.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from strandline.api import admin
from strandline.api.command import AdminCommand
from strandline.api.tickets import ReadRequest
from strandline.client.arguments import check_number
from strandline.client.connection import BrokerConnection, ResolvedRange, ResolvedRead
from strandline.client.deadline import has_passed, within
from strandline.client.metadata import ClusterMetadata, Routes
from strandline.client.retry_policy import call_with_retries, is_passing
from strandline.client.tls import Credentials
from strandline.errors import (
    InvalidRequestError,
    NotLeaderError,
    StrandlineError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)

ATTEMPT_S = 3.0
"""The timeout of a query at one of several brokers. A leader answers within two seconds even if it
has just lost its leadership; other brokers answer from memory."""
Q = TypeVar("Q")
A = TypeVar("A")
R = TypeVar("R")
Call = Callable[[BrokerConnection, float], list[A]]
"""A call to a broker, with a timeout in seconds."""


class ClusterClient:
    """The brokers of a cluster, or a single broker.

    Args:
        addresses: ``host:port``, or several separated by commas.
        timeout_s: the timeout of a query, including all attempts.
        credentials: a token, and files for TLS; by default from the environment.

    Raises:
        InvalidRequestError, InvalidConfigError: as for ``BrokerConnection``.
    """

    def __init__(
        self, addresses: str, *, timeout_s: float, credentials: Credentials | None = None
    ) -> None:
        if not isinstance(addresses, str):
            raise InvalidRequestError(
                f"{addresses!r} is not an address; write 'host:port', several separated by commas"
            )
        check_number(timeout_s, "timeout_s", least=1e-3)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        given = [
            BrokerConnection(each, timeout_s=timeout_s, credentials=credentials)
            for each in addresses.split(",")
        ]
        self._connections = {each.address: each for each in given}
        self.metadata = ClusterMetadata(tuple(self._connections))
        self._is_closed = False

    @property
    def home(self) -> str:
        """Return ``host:port`` of the broker that answered last."""
        return self.metadata.home

    @property
    def timeout_s(self) -> float:
        """Return the timeout of a query, in seconds."""
        return self._timeout_s

    @property
    def is_cluster(self) -> bool:
        """Return whether there are several brokers to ask."""
        return self.metadata.is_cluster

    def connection(self, address: str) -> BrokerConnection:
        """Return the connection to a broker, opened on first use."""
        with self._lock:
            found = self._connections.get(address)
            if found is None:
                known = self._connections[self.metadata.seeds[0]]
                found = self._connections[address] = known.sibling(address)
            if self._is_closed:
                found.close()
            return found

    def named_broker(self) -> str:
        """Return the address of the only broker that the caller named, as its cluster knows it.

        Raises:
            InvalidRequestError: several brokers were named.
            StrandlineError: the broker does not answer.
        """
        seeds = self.metadata.seeds
        if len(seeds) > 1:
            raise InvalidRequestError(
                f"replica 'this' needs a client of one address, and this one has {len(seeds)}"
            )
        [info] = self._attempt(seeds[0], _action(admin.SERVER_INFO, None))
        return info.address or seeds[0]

    def close(self) -> None:
        """Close every connection; has no effect when repeated."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()

    # Any broker

    def ask(self, command: AdminCommand[Q, A], request: Q, *, wait_s: float = 0.0) -> list[A]:
        """Run a query at any broker; the arguments are those of ``BrokerConnection.action``.

        Raises:
            StrandlineError: the last broker's error, or that none answered in time.
        """
        call = _action(command, request, wait_s=wait_s)
        return self._run(call, timeout_s=self._timeout_s + wait_s)

    def change(self, command: AdminCommand[Q, A], request: Q) -> list[A]:
        """Run a command that changes something at any broker.

        Raises:
            DisconnectedError, RequestTimeoutError: the change may have been made.
            StrandlineError: as for ``ask``; the change was not made.
        """
        with within(self._timeout_s):
            if self.is_cluster:
                self.server_info()  # finds a broker that answers
            call = _action(command, request)
            return self._run(call, timeout_s=self._timeout_s, is_change=True)

    def server_info(self) -> admin.ServerInfo:
        """Return the version and limits of a broker, and note the brokers it lists."""
        [info] = self.ask(admin.SERVER_INFO, None)
        self.metadata.learn(info)
        return info

    def routes(self, stream: str) -> Routes:
        """Return the leaders of a stream's partitions, as any broker knows them.

        Raises:
            UnknownStreamError: there is no such stream.
            UnavailableError: no broker reaches a majority of the cluster.
        """
        body = admin.StreamInfoRequest(name=stream)
        [info] = self.ask(admin.STREAM_INFO, body)
        return self.metadata.take(info)

    def known_routes(self, stream: str) -> Routes:
        """Return the leaders of a stream's partitions from the last lookup.

        Raises:
            StrandlineError: as for ``routes``, if there was no lookup yet, or a partition had no
                leader.
        """
        known = self.metadata.routes(stream)
        if known is None or "" in self.leaders(known).values():
            return self.routes(stream)
        return known

    def any_broker_knows(self, partitions: Iterable[tuple[str, int]]) -> bool:
        """Return whether any broker knows these partitions; others may learn of them later."""
        try:
            return self.is_cluster and all(
                number in self.routes(stream) for stream, number in partitions
            )
        except StrandlineError:
            return False

    def leaders(self, routes: Routes) -> dict[int, str]:
        """Return the address of each partition's leader; "" if it has no leader now."""
        if not self.metadata.brokers:
            return dict.fromkeys(routes, self.home)
        return {number: each.leader for number, each in routes.items()}

    def _run(self, call: Call[A], *, timeout_s: float, is_change: bool = False) -> list[A]:
        return call_with_retries(
            lambda: self._ask_each_broker(call, is_change=is_change),
            timeout_s=timeout_s,
            should_retry=lambda error: (
                self._may_ask_another(error, is_change=is_change)
                and not isinstance(error, UnknownStreamError)
            ),
        )

    def _ask_each_broker(self, call: Call[A], *, is_change: bool) -> list[A]:
        """Ask one broker after another, until one answers."""
        failure: StrandlineError | None = None
        for address in self.metadata.order():
            try:
                found = self._attempt(address, call, is_change=is_change)
                self.metadata.check_newest(address, _metadata_index(found))
            except StrandlineError as error:
                # An error that a broker answered says more than that another did not answer.
                if failure is None or not error.is_connection_loss:
                    failure = error
                if not self._may_ask_another(error, is_change=is_change):
                    raise _with_earlier_error(error, failure) from None
                if has_passed():
                    break
            else:
                self.metadata.home = address
                return found
        assert failure is not None, "at least one was asked"
        raise failure

    def _attempt(self, address: str, call: Call[A], *, is_change: bool = False) -> list[A]:
        connection = self.connection(address)
        limit_s = ATTEMPT_S if self.is_cluster and not is_change else self._timeout_s
        try:
            return call(connection, min(limit_s, self._timeout_s))
        except StrandlineError as error:
            if error.is_connection_loss and self.is_cluster:
                connection.reset()
            raise

    def _may_ask_another(self, error: StrandlineError, *, is_change: bool) -> bool:
        """Return whether to ask another broker: nothing would be done twice, and it may succeed."""
        if not self.is_cluster or self._is_closed:
            return False
        if is_change:
            return error.is_rejection or type(error) is UnavailableError
        # A broker may not know a new stream yet.
        return is_passing(error) or isinstance(error, UnknownStreamError)

    # Every broker

    def ask_all(
        self, command: AdminCommand[Q, A], request: Q, *, timeout_s: float = ATTEMPT_S
    ) -> dict[str, list[A] | StrandlineError]:
        """Run a query at all brokers in service at the same time; return the answers by address.

        Args:
            command: the query.
            request: the query's request.
            timeout_s: how long to wait for each broker.

        Returns:
            The results of each broker, or the error of one that did not answer.

        Raises:
            StrandlineError: no broker answers at all.
        """
        self.server_info()
        call = _action(command, request)
        addresses = self.metadata.brokers or (self.home,)

        def attempt(address: str) -> list[A] | StrandlineError:
            connection = self.connection(address)
            try:
                return call(connection, timeout_s)
            except StrandlineError as error:
                if error.is_connection_loss:
                    connection.reset()
                return error

        if len(addresses) == 1:
            return {addresses[0]: attempt(addresses[0])}
        with ThreadPoolExecutor(len(addresses), thread_name_prefix="ask-all") as threads:
            return dict(zip(addresses, threads.map(attempt, addresses), strict=True))

    # Leaders

    def ask_leaders(
        self,
        stream: str,
        command: AdminCommand[Q, A],
        *,
        request: Callable[[tuple[int, ...]], Q],
        numbers: Collection[int] | None = None,
        routes: Routes | None = None,
    ) -> list[tuple[tuple[int, ...], A]]:
        """Ask the leader of each partition; return each answer with the partitions it is about.

        Args:
            stream: the stream's name.
            command: the command, which has one result.
            request: makes the request to a leader from the numbers of its partitions.
            numbers: the partitions; None: all.
            routes: the leaders, if they were looked up just before.

        Raises:
            NotLeaderError: a partition has had no leader for too long.
            StrandlineError: a leader's error.
        """
        looked_up = [routes] if routes is not None else []

        def attempt() -> list[tuple[tuple[int, ...], A]]:
            leaders = self.leaders(looked_up.pop() if looked_up else self.routes(stream))
            return self._ask_each(
                {n: at for n, at in leaders.items() if numbers is None or n in numbers},
                lambda led: _action(command, request(led)),
                stream=stream,
            )

        return self._retried(attempt)

    def resolve(
        self, request: ReadRequest, numbers_of: Callable[[Routes], list[int]]
    ) -> dict[int, ResolvedRange]:
        """Resolve the range of each partition of a read at its leader, with one call to each.

        Args:
            request: the read: its stream, partitions and bounds.
            numbers_of: chooses the partitions that are needed.

        Raises:
            NotLeaderError: a partition has had no leader for too long.
            StrandlineError: a leader's error.
        """
        asked = msgspec.structs.replace(request, of_leaders=True)

        def call(connection: BrokerConnection, timeout_s: float) -> list[ResolvedRead]:
            return [connection.resolve(asked, timeout_s=timeout_s)]

        [first] = self._run(call, timeout_s=self._timeout_s)
        numbers = numbers_of(self.metadata.take(first.stream))
        answers = [first]

        def attempt() -> dict[int, ResolvedRange]:
            found = answers.pop() if answers else self._run(call, timeout_s=self._timeout_s)[0]
            routes, ranges = self.metadata.take(found.stream), dict(found.ranges)
            left = {n: self.leaders(routes).get(n, "") for n in numbers if n not in ranges}
            for _, answer in self._ask_each(left, lambda _: call, stream=request.stream):
                ranges |= answer.ranges
            if missing := [number for number in numbers if number not in ranges]:
                raise NotLeaderError(
                    f"{request.stream}/{missing[0]} is not led by {left[missing[0]]} now; retry"
                )
            return {number: ranges[number] for number in numbers}

        return self._retried(attempt)

    def _retried(self, attempt: Callable[[], R]) -> R:
        """Repeat a call to leaders while the reason of its failure may be a change of leaders."""

        def should_retry(error: StrandlineError) -> bool:
            # A broker may not know a new stream or partition yet.
            is_early = isinstance(error, UnknownStreamError | UnknownPartitionError)
            return self.is_cluster and (is_passing(error) or is_early)

        return call_with_retries(
            attempt,
            timeout_s=self._timeout_s,
            should_retry=should_retry,
            before_retry=self.metadata.ask_another,
        )

    def _ask_each(
        self,
        leaders: dict[int, str],
        call: Callable[[tuple[int, ...]], Call[A]],
        *,
        stream: str,
    ) -> list[tuple[tuple[int, ...], A]]:
        by_leader = group(leaders)
        if "" in by_leader:
            raise NotLeaderError(f"{stream}/{by_leader[''][0]} has no leader now; retry")
        return [(led, self._attempt(leader, call(led))[0]) for leader, led in by_leader.items()]


def _action(command: AdminCommand[Q, A], request: Q, *, wait_s: float = 0.0) -> Call[A]:
    """Return a function that runs a command at a broker."""
    return lambda connection, timeout_s: connection.action(
        command, request, wait_s=wait_s, timeout_s=timeout_s
    )


def _metadata_index(found: list[Any]) -> int:
    """Return the metadata index of a broker's answer; 0 if it has none."""
    return max((getattr(each, "metadata_index", 0) for each in found), default=0)


def _with_earlier_error(error: StrandlineError, before: StrandlineError) -> StrandlineError:
    """Return the error, extended by the message of an earlier broker's error."""
    if error is before:
        return error
    return type(error)(f"{error.message}; before that: {before.message}")


def group(leaders: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """Group partitions by their leader, in order."""
    found: dict[str, list[int]] = {}
    for number, leader in sorted(leaders.items()):
        found.setdefault(leader, []).append(number)
    return {leader: tuple(numbers) for leader, numbers in found.items()}
