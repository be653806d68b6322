"""The brokers a client knows: a connection to each, and who is asked for what.

One that stands alone is asked for everything, and failures are told at once. In a cluster any
broker answers questions and takes orders, so the next one is asked when one is away, until
``timeout_s``; what belongs to a partition is asked of its leader.

Rules: a change that may have happened is never sent again; metadata that is older than what was
seen before is not believed, as long as another broker may know more. Safe to use from several
threads.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from strandline.client.arguments import check_number
from strandline.client.connection import Connection
from strandline.client.deadline import within
from strandline.client.retry import Backoff, is_connection_loss, is_refusal, is_worth_a_retry
from strandline.client.tls import Credentials
from strandline.errors import (
    InvalidRequestError,
    NotLeaderError,
    RequestTimeoutError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.protocol import admin

ATTEMPT_S = 3.0
"""How long one broker of several may take to answer what changes nothing: a leader of a moment ago
does within two seconds, the others from memory."""
STALE_S = 3.0
"""How long metadata is refused that is older than what was seen before."""
T = TypeVar("T")

Routes = dict[int, admin.PartitionInfo]
"""Partition → who leads it, and who copies it."""


class ClusterClient:
    """The brokers of a cluster, or the only one.

    Args:
        addresses: ``host:port``, or several of them separated by commas.
        timeout_s: how long a question may take, all attempts together.
        credentials: for TLS; by default those of the environment.

    Raises:
        InvalidRequestError, InvalidConfigError: as ``Connection``.
    """

    def __init__(
        self, addresses: str, *, timeout_s: float, credentials: Credentials | None = None
    ) -> None:
        if not isinstance(addresses, str):
            raise InvalidRequestError(
                f"{addresses!r} is no address; write 'host:port', several separated by commas"
            )
        check_number(timeout_s, "timeout_s", least=1e-3)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        given = [
            Connection(each, timeout_s=timeout_s, credentials=credentials)
            for each in addresses.split(",")
        ]
        self._connections = {each.address: each for each in given}
        self._seeds = tuple(self._connections)
        self._known: tuple[str, ...] = ()
        self._home = self._seeds[0]
        self._is_closed = False
        self._newest_index = 0
        """The newest metadata that any broker has answered with."""
        self._stale_since_s: float | None = None
        """Since when all answers have been older."""

    @property
    def home(self) -> str:
        """``host:port`` of the broker that answered last."""
        return self._home

    @property
    def timeout_s(self) -> float:
        """How long a question may take."""
        return self._timeout_s

    @property
    def is_cluster(self) -> bool:
        """Whether there is anybody else to ask."""
        return bool(self._known) or len(self._seeds) > 1

    def connection(self, address: str) -> Connection:
        """The connection to a broker, made when first asked for."""
        with self._lock:
            found = self._connections.get(address)
            if found is None:
                known = self._connections[self._seeds[0]]
                found = self._connections[address] = known.sibling(address)
            if self._is_closed:
                found.close()
            return found

    def asked(self) -> str:
        """Where the only broker that was named is reached, as its cluster says it.

        Raises:
            InvalidRequestError: several were named.
            StrandlineError: it does not answer.
        """
        if len(self._seeds) > 1:
            raise InvalidRequestError(
                f"replica 'this' is that of one broker, and {len(self._seeds)} are named: "
                "connect to one address"
            )
        [info] = self._attempt(self._seeds[0], _Call(admin.SERVER_INFO, None, admin.ServerInfo))
        return info.address or self._seeds[0]

    def learn(self, info: admin.ServerInfo) -> None:
        """Note which brokers there are."""
        if info.brokers:
            self._known = info.brokers

    def close(self) -> None:
        """End every connection; harmless when repeated."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()

    # Any broker

    def ask(self, name: str, body: object, kind: type[T], *, wait_s: float = 0.0) -> list[T]:
        """Run an action that changes nothing, at any broker; arguments as ``Connection.action``.

        Raises:
            StrandlineError: what the last broker answered, or that none did in time.
        """
        with within(self._timeout_s + wait_s) as deadline_s:
            call = _Call(name, body, kind, wait_s)
            return self._run(call, deadline_s=deadline_s, is_change=False)

    def change(self, name: str, body: object, kind: type[T]) -> list[T]:
        """Run an action that changes something, at any broker.

        Raises:
            DisconnectedError, RequestTimeoutError: whether it was done is not known.
            StrandlineError: as ``ask``; it was not done.
        """
        with within(self._timeout_s) as deadline_s:
            if self.is_cluster:
                self.server_info()  # so that a broker which is there is asked
            return self._run(_Call(name, body, kind), deadline_s=deadline_s, is_change=True)

    def server_info(self) -> admin.ServerInfo:
        """Version and limits of a broker, and which brokers there are."""
        [info] = self.ask(admin.SERVER_INFO, None, admin.ServerInfo)
        self.learn(info)
        return info

    def routes(self, stream: str) -> Routes:
        """Who leads the partitions of a stream, as any broker knows it.

        Raises:
            UnknownStreamError: there is none.
            UnavailableError: no broker is in touch with the majority of the cluster.
        """
        body = admin.StreamInfoRequest(name=stream)
        [info] = self.ask(admin.STREAM_INFO, body, admin.StreamInfo)
        # A broker that was asked as it started did not know of the others yet.
        copies = {at for each in info.partitions for at in each.in_sync}
        if not copies.issubset(self._known):
            self._known = tuple(sorted(copies.union(self._known)))
        return {each.partition: each for each in info.partitions}

    def ask_another(self) -> None:
        """Let another broker answer next: what this one said led to no leader that answers."""
        ring = tuple(dict.fromkeys((*self._known, *self._seeds, self._home)))
        self._home = ring[(ring.index(self._home) + 1) % len(ring)]

    def know(self, partitions: Iterable[tuple[str, int]]) -> bool:
        """Whether some of them know these, created a moment ago, though not all do yet."""
        try:
            return self.is_cluster and all(
                number in self.routes(stream) for stream, number in partitions
            )
        except StrandlineError:
            return False

    def leaders(self, routes: Routes) -> dict[int, str]:
        """Where the leader of each partition is; nowhere, if it has none now."""
        if not self._known:
            return dict.fromkeys(routes, self._home)
        return {number: each.leader for number, each in routes.items()}

    def _run(self, call: "_Call[T]", *, deadline_s: float, is_change: bool) -> list[T]:
        backoff = Backoff()
        while True:
            failure: StrandlineError | None = None
            for address in self._order():
                try:
                    found = self._attempt(address, call, is_change=is_change)
                    self._check_newest(address, found)
                except StrandlineError as error:
                    # What a broker says tells more than that another one does not answer.
                    if failure is None or not is_connection_loss(error):
                        failure = error
                    if not self._may_ask_another(error, is_change=is_change):
                        raise _told_before(error, failure) from None
                    if time.monotonic() >= deadline_s:
                        raise failure from None
                else:
                    self._home = address
                    return found
            assert failure is not None, "one was asked at least"
            now_s = time.monotonic()
            backoff.failed(now_s)
            if isinstance(failure, UnknownStreamError) or backoff.not_before_s >= deadline_s:
                raise failure
            time.sleep(backoff.wait_s(now_s))

    def _order(self) -> Iterator[str]:
        """The broker that answered last, and then the others."""
        home = self._home
        yield home
        yield from dict.fromkeys(a for a in (*self._known, *self._seeds) if a != home)

    def _check_newest(self, address: str, found: list[T]) -> None:
        """Refuse metadata that is older than what was seen, as of a broker that is cut off.

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
                f"{address} knows the metadata up to entry {index} only, others up to "
                f"{self._newest_index}; retry"
            )
        # Nobody knows more any longer: the cluster was recovered by force, without the newest.
        self._newest_index, self._stale_since_s = index, None

    def _attempt(self, address: str, call: "_Call[T]", *, is_change: bool = False) -> list[T]:
        connection = self.connection(address)
        limit_s = ATTEMPT_S if self.is_cluster and not is_change else self._timeout_s
        try:
            return connection.action(
                call.name,
                call.body,
                call.kind,
                wait_s=call.wait_s,
                timeout_s=min(limit_s, self._timeout_s),
            )
        except StrandlineError as error:
            if is_connection_loss(error) and self.is_cluster:
                connection.reset()
            raise

    def _may_ask_another(self, error: StrandlineError, *, is_change: bool) -> bool:
        """Whether another broker may do better, and nothing is done twice."""
        if not self.is_cluster or self._is_closed:
            return False
        if is_change:
            return is_refusal(error) or type(error) is UnavailableError
        is_silent = isinstance(error, RequestTimeoutError)
        # A stream that was created a moment ago is not known everywhere yet.
        return is_silent or is_worth_a_retry(error) or isinstance(error, UnknownStreamError)

    # Leaders

    def ask_leaders(
        self,
        stream: str,
        name: str,
        kind: type[T],
        *,
        body: Any,
        numbers: Collection[int] | None = None,
    ) -> list[tuple[tuple[int, ...], T]]:
        """Ask the leader of each partition; returns its partitions with each answer.

        Args:
            stream: its name.
            name: the action, which answers once.
            kind: type of the answer.
            body: the body for some partitions, a function of their numbers.
            numbers: which partitions; None: all. What the others' leaders do does not matter.

        Raises:
            NotLeaderError: a partition has no leader for too long.
            StrandlineError: what a leader answered.
        """
        backoff = Backoff()
        with within(self._timeout_s) as deadline_s:
            while True:
                try:
                    leaders = self.leaders(self.routes(stream))
                    return self._ask_each(
                        {n: at for n, at in leaders.items() if numbers is None or n in numbers},
                        lambda led: _Call(name, body(led), kind),
                        stream=stream,
                    )
                except StrandlineError as error:
                    now_s = time.monotonic()
                    backoff.failed(now_s)
                    # A stream that was created a moment ago is not known everywhere yet.
                    is_passing = is_worth_a_retry(error) or isinstance(
                        error, RequestTimeoutError | UnknownStreamError
                    )
                    if not (self.is_cluster and is_passing) or backoff.not_before_s >= deadline_s:
                        raise
                    self.ask_another()
                    time.sleep(backoff.wait_s(now_s))

    def _ask_each(
        self,
        leaders: dict[int, str],
        call: Callable[[tuple[int, ...]], "_Call[T]"],
        *,
        stream: str,
    ) -> list[tuple[tuple[int, ...], T]]:
        by_leader = group(leaders)
        if "" in by_leader:
            raise NotLeaderError(f"{stream}/{by_leader[''][0]} has no leader now; retry")
        return [(led, self._attempt(leader, call(led))[0]) for leader, led in by_leader.items()]


class _Call(NamedTuple, Generic[T]):
    """An action, as ``Connection.action`` takes it."""

    name: str
    body: Any
    kind: type[T]
    wait_s: float = 0.0


def _told_before(error: StrandlineError, before: StrandlineError) -> StrandlineError:
    """The error, and what another broker said before."""
    if error is before:
        return error
    return type(error)(f"{error.message}; before that: {before.message}")


def group(leaders: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """Leader → its partitions, in order."""
    found: dict[str, list[int]] = {}
    for number, leader in sorted(leaders.items()):
        found.setdefault(leader, []).append(number)
    return {leader: tuple(numbers) for leader, numbers in found.items()}
