"""The brokers a client knows: a connection to each, and the routing of calls.

A single broker gets every call, and its failures are raised at once. In a cluster any broker
answers queries and takes admin commands, so the next one is asked when one is away, until
``timeout_s``; calls about a partition go to its leader.

Rules: a change that may have happened is never sent again; metadata older than what was seen before
is ignored as long as another broker may have newer. Safe to use from several threads.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from strandline.api import admin
from strandline.api.command import AdminCommand
from strandline.client.arguments import check_number
from strandline.client.connection import BrokerConnection
from strandline.client.deadline import within
from strandline.client.retry_policy import (
    RetryBackoff,
    is_connection_loss,
    is_refusal,
    is_worth_a_retry,
)
from strandline.client.tls import Credentials
from strandline.errors import (
    InvalidRequestError,
    NotLeaderError,
    RequestTimeoutError,
    StrandlineError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)

ATTEMPT_S = 3.0
"""Timeout of a query at one broker of several. A leader answers within two seconds even if it has
just lost its leadership, other brokers from memory.
"""
STALE_S = 3.0
"""How long metadata older than what was seen before is refused."""
Q = TypeVar("Q")
A = TypeVar("A")

Routes = dict[int, admin.PartitionInfo]
"""The leader and the replicas of each partition."""


class ClusterClient:
    """The brokers of a cluster, or the only one.

    Args:
        addresses: ``host:port``, or several of them separated by commas.
        timeout_s: timeout of a query, all attempts together.
        credentials: for TLS; by default those of the environment.

    Raises:
        InvalidRequestError, InvalidConfigError: as ``BrokerConnection``.
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
        self._seeds = tuple(self._connections)
        self._known: tuple[str, ...] = ()
        self._home = self._seeds[0]
        self._is_closed = False
        self._newest_index = 0
        """The highest metadata index that any broker has answered with."""
        self._stale_since_s: float | None = None
        """When answers became older than that; None if they are not."""

    @property
    def home(self) -> str:
        """Return ``host:port`` of the broker that answered last."""
        return self._home

    @property
    def timeout_s(self) -> float:
        """Return the timeout of a query, in seconds."""
        return self._timeout_s

    @property
    def is_cluster(self) -> bool:
        """Return whether there is another broker to ask."""
        return bool(self._known) or len(self._seeds) > 1

    def connection(self, address: str) -> BrokerConnection:
        """Return the connection to a broker, opened on first use."""
        with self._lock:
            found = self._connections.get(address)
            if found is None:
                known = self._connections[self._seeds[0]]
                found = self._connections[address] = known.sibling(address)
            if self._is_closed:
                found.close()
            return found

    def named_broker(self) -> str:
        """Return the address of the only broker the caller named, as its cluster knows it.

        Raises:
            InvalidRequestError: several were named.
            StrandlineError: it does not answer.
        """
        if len(self._seeds) > 1:
            raise InvalidRequestError(
                f"replica 'this' needs a client of one address, and this one has {len(self._seeds)}"
            )
        [info] = self._attempt(self._seeds[0], _Call(admin.SERVER_INFO, None))
        return info.address or self._seeds[0]

    def learn(self, info: admin.ServerInfo) -> None:
        """Note the brokers that an answer lists."""
        if info.brokers:
            self._known = info.brokers

    def close(self) -> None:
        """Close every connection; has no effect when repeated."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()

    # Any broker

    def ask(self, command: AdminCommand[Q, A], request: Q, *, wait_s: float = 0.0) -> list[A]:
        """Run a query at any broker; arguments as ``BrokerConnection.action``.

        Raises:
            StrandlineError: the last broker's error, or that none answered in time.
        """
        with within(self._timeout_s + wait_s) as deadline_s:
            call = _Call(command, request, wait_s)
            return self._run(call, deadline_s=deadline_s, is_change=False)

    def change(self, command: AdminCommand[Q, A], request: Q) -> list[A]:
        """Run a command that changes something at any broker.

        Raises:
            DisconnectedError, RequestTimeoutError: whether it was done is unknown.
            StrandlineError: as ``ask``; it was not done.
        """
        with within(self._timeout_s) as deadline_s:
            if self.is_cluster:
                self.server_info()  # finds a broker that answers
            return self._run(_Call(command, request), deadline_s=deadline_s, is_change=True)

    def server_info(self) -> admin.ServerInfo:
        """Return the version and limits of a broker, and note the brokers it lists."""
        [info] = self.ask(admin.SERVER_INFO, None)
        self.learn(info)
        return info

    def routes(self, stream: str) -> Routes:
        """Return the leaders of a stream's partitions, as any broker knows them.

        Raises:
            UnknownStreamError: there is no such stream.
            UnavailableError: no broker is in touch with a majority of the cluster.
        """
        body = admin.StreamInfoRequest(name=stream)
        [info] = self.ask(admin.STREAM_INFO, body)
        # A broker that was starting did not know the others yet.
        copies = {at for each in info.partitions for at in each.in_sync}
        if not copies.issubset(self._known):
            self._known = tuple(sorted(copies.union(self._known)))
        return {each.partition: each for each in info.partitions}

    def ask_another(self) -> None:
        """Let another broker answer next, after the leaders this one named did not answer."""
        ring = tuple(dict.fromkeys((*self._known, *self._seeds, self._home)))
        self._home = ring[(ring.index(self._home) + 1) % len(ring)]

    def any_broker_knows(self, partitions: Iterable[tuple[str, int]]) -> bool:
        """Return whether a broker knows these partitions, which others may not know yet."""
        try:
            return self.is_cluster and all(
                number in self.routes(stream) for stream, number in partitions
            )
        except StrandlineError:
            return False

    def leaders(self, routes: Routes) -> dict[int, str]:
        """Return the address of each partition's leader; "" if it has none now."""
        if not self._known:
            return dict.fromkeys(routes, self._home)
        return {number: each.leader for number, each in routes.items()}

    def _run(self, call: "_Call[Q, A]", *, deadline_s: float, is_change: bool) -> list[A]:
        backoff = RetryBackoff()
        while True:
            failure: StrandlineError | None = None
            for address in self._order():
                try:
                    found = self._attempt(address, call, is_change=is_change)
                    self._check_newest(address, found)
                except StrandlineError as error:
                    # A broker's error says more than another one's silence.
                    if failure is None or not is_connection_loss(error):
                        failure = error
                    if not self._may_ask_another(error, is_change=is_change):
                        raise _with_earlier_error(error, failure) from None
                    if time.monotonic() >= deadline_s:
                        raise failure from None
                else:
                    self._home = address
                    return found
            assert failure is not None, "at least one was asked"
            now_s = time.monotonic()
            backoff.failed(now_s)
            if isinstance(failure, UnknownStreamError) or backoff.not_before_s >= deadline_s:
                raise failure
            time.sleep(backoff.wait_s(now_s))

    def _order(self) -> Iterator[str]:
        """Yield the broker that answered last, then the others."""
        home = self._home
        yield home
        yield from dict.fromkeys(a for a in (*self._known, *self._seeds) if a != home)

    def _check_newest(self, address: str, found: list[Any]) -> None:
        """Refuse metadata older than what was seen, such as that of a partitioned broker.

        Raises:
            UnavailableError: it is older, and has been for less than ``STALE_S``.
        """
        index = max(
            (each.metadata_index for each in found if isinstance(each, admin.StreamInfo)), default=0
        )
        now_s = time.monotonic()
        if not index:
            return
        if index >= self._newest_index:
            self._newest_index, self._stale_since_s = index, None
            return
        self._stale_since_s = self._stale_since_s or now_s
        if now_s - self._stale_since_s < STALE_S:
            raise UnavailableError(
                f"{address} has metadata up to entry {index}, other brokers up to "
                f"{self._newest_index}; retry"
            )
        # No broker has newer metadata: a forced recovery has lost it.
        self._newest_index, self._stale_since_s = index, None

    def _attempt(self, address: str, call: "_Call[Q, A]", *, is_change: bool = False) -> list[A]:
        connection = self.connection(address)
        limit_s = ATTEMPT_S if self.is_cluster and not is_change else self._timeout_s
        try:
            return connection.action(
                call.command,
                call.request,
                wait_s=call.wait_s,
                timeout_s=min(limit_s, self._timeout_s),
            )
        except StrandlineError as error:
            if is_connection_loss(error) and self.is_cluster:
                connection.reset()
            raise

    def _may_ask_another(self, error: StrandlineError, *, is_change: bool) -> bool:
        """Return whether another broker may succeed without doing anything twice."""
        if not self.is_cluster or self._is_closed:
            return False
        if is_change:
            return is_refusal(error) or type(error) is UnavailableError
        is_silent = isinstance(error, RequestTimeoutError)
        # A new stream is not known everywhere yet.
        return is_silent or is_worth_a_retry(error) or isinstance(error, UnknownStreamError)

    # Leaders

    def ask_leaders(
        self,
        stream: str,
        command: AdminCommand[Q, A],
        *,
        request: Callable[[tuple[int, ...]], Q],
        numbers: Collection[int] | None = None,
        must_exist: bool = False,
    ) -> list[tuple[tuple[int, ...], A]]:
        """Ask the leader of each partition; return its partitions with each answer.

        Args:
            stream: its name.
            command: the command, which has one result.
            request: makes the request from the numbers of a leader's partitions.
            numbers: the partitions; None: all.
            must_exist: wait for a broker that knows all ``numbers``, which another one has named.

        Raises:
            NotLeaderError: a partition has had no leader for too long.
            StrandlineError: a leader's error.
        """
        backoff = RetryBackoff()
        with within(self._timeout_s) as deadline_s:
            while True:
                try:
                    leaders = self.leaders(self.routes(stream))
                    if must_exist and numbers is not None and not leaders.keys() >= set(numbers):
                        raise UnknownPartitionError(
                            f"{self._home} does not know all of partitions {list(numbers)} of "
                            f"stream {stream!r} yet; retry"
                        )
                    return self._ask_each(
                        {n: at for n, at in leaders.items() if numbers is None or n in numbers},
                        lambda led: _Call(command, request(led)),
                        stream=stream,
                    )
                except StrandlineError as error:
                    now_s = time.monotonic()
                    backoff.failed(now_s)
                    # New streams and partitions are not known everywhere yet.
                    is_passing = is_worth_a_retry(error) or isinstance(
                        error, RequestTimeoutError | UnknownStreamError | UnknownPartitionError
                    )
                    if not (self.is_cluster and is_passing) or backoff.not_before_s >= deadline_s:
                        raise
                    self.ask_another()
                    time.sleep(backoff.wait_s(now_s))

    def _ask_each(
        self,
        leaders: dict[int, str],
        call: Callable[[tuple[int, ...]], "_Call[Q, A]"],
        *,
        stream: str,
    ) -> list[tuple[tuple[int, ...], A]]:
        by_leader = group(leaders)
        if "" in by_leader:
            raise NotLeaderError(f"{stream}/{by_leader[''][0]} has no leader now; retry")
        return [(led, self._attempt(leader, call(led))[0]) for leader, led in by_leader.items()]


class _Call(NamedTuple, Generic[Q, A]):
    """A command, as ``BrokerConnection.action`` takes it."""

    command: AdminCommand[Q, A]
    request: Q
    wait_s: float = 0.0


def _with_earlier_error(error: StrandlineError, before: StrandlineError) -> StrandlineError:
    """Return the error, with the message of another broker's earlier one."""
    if error is before:
        return error
    return type(error)(f"{error.message}; before that: {before.message}")


def group(leaders: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """Group partitions by leader, in order."""
    found: dict[str, list[int]] = {}
    for number, leader in sorted(leaders.items()):
        found.setdefault(leader, []).append(number)
    return {leader: tuple(numbers) for leader, numbers in found.items()}
