"""The state of a cluster for the pages, queried from all brokers at once.

Rules: what a page shows of a partition comes from its leader, whichever broker renders the page. A
broker that does not answer in time is shown as such and delays a page by a few seconds at most.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from strandline.api.admin import (
    LIST_STREAMS,
    STREAM_INFO,
    PartitionInfo,
    StreamInfo,
    StreamInfoRequest,
)
from strandline.api.cluster import CLUSTER_STATUS, ClusterStatus, CopiesInfo
from strandline.api.command import AdminCommand
from strandline.api.monitoring import BROKER_STATUS, BrokerStatus
from strandline.client.client import Client
from strandline.config import StreamConfig
from strandline.errors import NotAllowedError, StrandlineError

TIMEOUT_S: Final = 2.5
RATE_MS_MIN: Final = 900.0
RATE_MS_MAX: Final = 12_000.0
"""A rate is the mean over at most this time."""
FORGET_MS: Final = 60_000.0
RATED_MAX: Final = 20_000
Q = TypeVar("Q")
A = TypeVar("A")


class BrokerRow(NamedTuple):
    """A broker as a row of the cluster page."""

    id: int
    address: str
    state: str
    rack: str
    is_voter: bool
    status: BrokerStatus | None
    error: str
    """Why the broker did not answer; empty if it did."""


class ClusterView(NamedTuple):
    """A cluster, or a broker alone."""

    name: str
    is_cluster: bool
    controller: int | None
    brokers: tuple[BrokerRow, ...]
    partitions: tuple[CopiesInfo, ...]
    age_ms: int

    @property
    def problems(self) -> list[str]:
        """What is wrong in the cluster, the worst first."""
        found = []
        if self.is_cluster and self.controller is None:
            found.append("there is no controller: streams cannot be created nor leaders elected")
        for row in self.brokers:
            name = f"broker {row.id}" if self.is_cluster else "this broker"
            if row.state not in ("live", "draining"):
                found.append(f"{name} is {row.state}")
            elif row.status is None:
                found.append(f"{name} does not answer: {row.error}")
            if row.status is not None and row.status.why_not_ready:
                found.append(f"{name} is not ready: {row.status.why_not_ready}")
        leaderless = [each for each in self.partitions if each.leader is None]
        if leaderless:
            found.append(f"{_count(leaderless)} without a leader, the first is {_name(leaderless)}")
        if self.under_replicated:
            found.append(
                f"{_count(self.under_replicated)} under-replicated, the first is "
                f"{_name(self.under_replicated)}"
            )
        return found

    @property
    def under_replicated(self) -> list[CopiesInfo]:
        """The partitions with a replica that is not in sync."""
        return [each for each in self.partitions if set(each.replicas) - set(each.isr)]


def _count(partitions: list[CopiesInfo]) -> str:
    return f"{len(partitions):,} partition{'s are' if len(partitions) > 1 else ' is'}"


def _name(partitions: list[CopiesInfo]) -> str:
    return f"{partitions[0].stream}/{partitions[0].partition}"


def cluster_view(client: Client) -> ClusterView:
    """Return the cluster with the status of every broker; blocks.

    Raises:
        StrandlineError: no broker answers, or the user may not read the cluster.
    """
    brokers = client.brokers
    statuses = {
        address: found if isinstance(found, StrandlineError) else found[0]
        for address, found in brokers.ask_all(BROKER_STATUS, None, timeout_s=TIMEOUT_S).items()
    }
    _raise_denial(statuses.values())
    if not brokers.metadata.brokers:
        [found] = statuses.values()
        if isinstance(found, StrandlineError):
            raise found
        row = BrokerRow(0, brokers.home, "live", "", is_voter=False, status=found, error="")
        return ClusterView("", False, None, (row,), (), 0)
    [cluster] = brokers.ask(CLUSTER_STATUS, None)
    rows = tuple(
        BrokerRow(
            each.id,
            each.flight_address,
            each.state,
            each.rack,
            each.is_voter,
            *_status_of(statuses.get(each.flight_address), each.state),
        )
        for each in cluster.brokers
    )
    partitions = cluster.partitions
    return ClusterView(cluster.cluster, True, cluster.controller, rows, partitions, cluster.age_ms)


def _status_of(
    found: BrokerStatus | StrandlineError | None, state: str
) -> tuple[BrokerStatus | None, str]:
    """Return the status of a broker, or the reason why there is none.

    Args:
        found: the broker's answer; None if it was not asked, because the metadata does not list it
            as in service.
        state: the broker's state, as the controller knows it.
    """
    if found is None:
        is_serving = state in ("live", "draining")
        return None, "it has just registered" if is_serving else f"it is {state}"
    if isinstance(found, StrandlineError):
        return None, found.message
    return found, ""


def _raise_denial(found: Iterable[object]) -> None:
    """Raise the first denial among answers: a user denied by one broker is denied by all."""
    for each in found:
        if isinstance(each, NotAllowedError):
            raise each


def answers_of_all(client: Client, command: AdminCommand[Q, A], request: Q) -> dict[str, list[A]]:
    """Return the results of every broker that answers; blocks.

    Raises:
        StrandlineError: no broker answers.
    """
    found = client.brokers.ask_all(command, request, timeout_s=TIMEOUT_S)
    answers = {
        address: each for address, each in found.items() if not isinstance(each, StrandlineError)
    }
    if not answers:
        raise next(each for each in found.values() if isinstance(each, StrandlineError))
    return answers


class ReplicaState(NamedTuple):
    """A replica of a partition."""

    broker: str
    """The broker's id, or its address if the user may not read the cluster."""
    is_leader: bool
    is_in_sync: bool
    lag_records: int | None
    """The number of records that the replica lacks; None if unknown."""


class PartitionRow(NamedTuple):
    """A partition as its leader describes it."""

    info: PartitionInfo
    leader: str
    """The id or address of the leader; empty without one."""
    replicas: tuple[ReplicaState, ...]
    is_moving: bool

    @property
    def lag_records(self) -> int:
        """The number of records that the furthest replica lacks."""
        return max((each.lag_records or 0 for each in self.replicas), default=0)


class StreamRow(NamedTuple):
    """A stream with the totals over its partitions."""

    config: StreamConfig
    created_ns: int
    partitions: tuple[PartitionInfo, ...]

    @property
    def records(self) -> int:
        """The number of visible records."""
        return sum(each.records for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        """The total size of the leaders' logs."""
        return sum(each.size_bytes for each in self.partitions)

    @property
    def end(self) -> int:
        """The sum of the log end offsets, which grows with every record."""
        return sum(each.log_end_offset for each in self.partitions)


def stream_rows(client: Client) -> list[StreamRow]:
    """Return every stream that the user may see, by name; blocks.

    Raises:
        StrandlineError: no broker answers.
    """
    merged: dict[str, list[tuple[str, StreamInfo]]] = {}
    for address, infos in answers_of_all(client, LIST_STREAMS, None).items():
        for info in infos:
            merged.setdefault(info.name, []).append((address, info))
    return [stream_row(merged[name]) for name in sorted(merged)]


def stream_row(answers: list[tuple[str, StreamInfo]]) -> StreamRow:
    """Return a stream from the answers of several brokers, each with its address."""
    newest = max((info for _, info in answers), key=lambda info: info.metadata_index)
    of_same = [(at, info) for at, info in answers if info.created_ns == newest.created_ns]
    partitions = []
    for number in range(len(newest.partitions)):
        known = [(at, info.partitions[number]) for at, info in of_same if _has(info, number)]
        leaders = [part for at, part in known if part.leader in ("", at)]
        # Without the leader's answer, show the replica with the most records.
        partitions.append(max(leaders or [part for _, part in known], key=_end_of))
    return StreamRow(newest.config, newest.created_ns, tuple(partitions))


def _has(info: StreamInfo, number: int) -> bool:
    return number < len(info.partitions)


def _end_of(part: PartitionInfo) -> int:
    return part.log_end_offset


class StreamDetails(NamedTuple):
    """A stream with the replicas of its partitions."""

    row: StreamRow
    partitions: tuple[PartitionRow, ...]


def stream_view(client: Client, name: str) -> StreamDetails:
    """Return one stream; blocks.

    Raises:
        UnknownStreamError: there is no such stream.
    """
    answers = answers_of_all(client, STREAM_INFO, StreamInfoRequest(name=name))
    infos = {address: found for address, [found] in answers.items()}
    row = stream_row(list(infos.items()))
    cluster = _cluster_of(client)
    copies = _copies_of(cluster, name)
    addresses = {each.id: each.flight_address for each in cluster.brokers} if cluster else {}
    by_id = {number: infos.get(address) for number, address in addresses.items()}
    rows = tuple(
        _row_of_addresses(part)
        if cluster is None
        else _row_of_copies(part, copies.get(part.partition), by_id)
        for part in row.partitions
    )
    return StreamDetails(row, rows)


def _cluster_of(client: Client) -> ClusterStatus | None:
    """Return the cluster's status; None for a broker alone, or if the user may not read it."""
    if not client.brokers.metadata.brokers:
        return None
    try:
        [found] = client.brokers.ask(CLUSTER_STATUS, None)
    except NotAllowedError:
        return None
    return found


def _copies_of(cluster: ClusterStatus | None, name: str) -> dict[int, CopiesInfo]:
    """Return the replicas of a stream's partitions, by number."""
    copies = cluster.partitions if cluster is not None else ()
    return {each.partition: each for each in copies if each.stream == name}


def _row_of_addresses(part: PartitionInfo) -> PartitionRow:
    """Return a partition for a user who may not read the cluster: addresses instead of ids."""
    replicas = tuple(
        ReplicaState(at, at == part.leader, is_in_sync=True, lag_records=None)
        for at in part.in_sync
    )
    return PartitionRow(part, part.leader, replicas, is_moving=False)


def _row_of_copies(
    part: PartitionInfo, copies: CopiesInfo | None, infos: dict[int, StreamInfo | None]
) -> PartitionRow:
    """Return a partition with its replicas; ``infos`` has each broker's answer by its id."""
    if copies is None:  # the partition was created a moment ago
        return PartitionRow(part, part.leader, (), is_moving=False)
    replicas = tuple(
        ReplicaState(
            str(broker),
            broker == copies.leader,
            broker in copies.isr,
            _lag(part, infos.get(broker)),
        )
        for broker in copies.replicas
    )
    leader = "" if copies.leader is None else str(copies.leader)
    return PartitionRow(part, leader, replicas, copies.is_moving)


def _lag(part: PartitionInfo, info: StreamInfo | None) -> int | None:
    if info is None or not _has(info, part.partition):
        return None
    return max(0, part.log_end_offset - info.partitions[part.partition].log_end_offset)


class RateTracker:
    """Rates of counters, computed from the values seen at earlier page loads; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def of_streams(self, rows: Iterable[StreamRow], now_ms: float) -> dict[str, float | None]:
        """Return each stream's records per second; None for a stream seen for the first time."""
        return self.observe("stream", {row.config.name: row.end for row in rows}, now_ms)

    def observe(
        self, kind: str, totals: Mapping[str, int], now_ms: float
    ) -> dict[str, float | None]:
        """Return the growth per second of each total; None for a total seen for the first time."""
        with self._lock:
            self._forget(now_ms)
            return {name: self._rate((kind, name), total, now_ms) for name, total in totals.items()}

    def _rate(self, key: tuple[str, str], total: int, now_ms: float) -> float | None:
        seen = self._seen.setdefault(key, deque())
        if seen and total < seen[-1][1]:  # the stream was recreated, or the counter was reset
            seen.clear()
        if not seen or now_ms - seen[-1][0] >= RATE_MS_MIN:
            seen.append((now_ms, total))
        while len(seen) > 2 and now_ms - seen[0][0] > RATE_MS_MAX:
            seen.popleft()
        (from_ms, before), (until_ms, after) = seen[0], seen[-1]
        return (after - before) / (until_ms - from_ms) * 1e3 if until_ms > from_ms else None

    def _forget(self, now_ms: float) -> None:
        old = [key for key, seen in self._seen.items() if now_ms - seen[-1][0] > FORGET_MS]
        for key in old:
            del self._seen[key]
        if len(self._seen) > RATED_MAX:
            self._seen.clear()
