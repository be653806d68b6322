"""The replica selector of a read: decides where each partition is read, and at which offsets.

Rules:
- relative bounds are resolved once, at the leaders, so that a change of replicas does not move
  them;
- a replica that has not yet committed a record that was read elsewhere is waited for, or avoided;
- a read of ``"this"`` broker's replicas waits for them and never reads elsewhere.
"""

import random
import threading
import time
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from strandline.api import admin
from strandline.api.admin import PartitionInfo
from strandline.api.local import WORTH_BYTES
from strandline.api.tickets import Bound, ReadRequest, counts_from_end
from strandline.client.cluster_client import ClusterClient, group
from strandline.client.coordinator_client import ATTEMPT_S
from strandline.client.deadline import within
from strandline.client.metadata import Routes
from strandline.client.reader.local import begin_read
from strandline.client.reader.read_checks import (
    check_offsets,
    has_offset,
    may_exist_later,
    numbers_of,
)
from strandline.client.reader.reading import BatchStream
from strandline.client.retry_policy import RetryDeadline, is_passing
from strandline.errors import (
    DisconnectedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StrandlineError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.record.schema import project

Replica = Literal["leader", "any", "this"]
"""Which replica to read: the leader, any in-sync one, or that of the connected broker."""


class ReadTarget(NamedTuple):
    """A broker, and the partitions read there."""

    address: str
    partitions: tuple[int, ...]


class ReplicaSelector:
    """The bounds of a read's partitions, and the brokers where they are read.

    Args:
        brokers: the brokers of the cluster.
        request: what to read.
        replica: which replicas to read.
        timeout_s: how long a partition may be unreachable.

    Raises:
        StrandlineError: the request is invalid, or a partition cannot be reached.
    """

    def __init__(
        self, brokers: ClusterClient, request: ReadRequest, *, replica: Replica, timeout_s: float
    ) -> None:
        self._brokers = brokers
        self._request = request
        self._replica = replica
        self._timeout_s = timeout_s
        self._is_cancelled = threading.Event()
        self._streams: dict[BatchStream, ReadTarget] = {}
        self._read: set[int] = set()
        """The partitions of which at least one record was read."""
        self._avoided = ""
        """The address of the broker that failed last."""
        self._only = brokers.named_broker() if replica == "this" else ""
        """The address of the only broker to read at; empty: any broker."""
        self._positions: dict[int, Bound] = {}
        self._stops: dict[int, Bound | None] = {}
        self._sizes: dict[int, int] = {}
        """The bytes of each partition whose leader was asked."""
        self._resolve()
        is_whole = request.partition is None and len(brokers.known_routes(request.stream)) > 1
        self.schema: pa.Schema = project(
            request.columns, with_partition=is_whole and request.columns is None
        )
        self._has_resolved_stops = not isinstance(request.stop, int)
        """Whether the ends were resolved by leaders."""
        self._left = request.records_max
        extra = [name for name in ("partition", "offset") if name not in self.schema.names]
        self._columns = [*self.schema.names, *extra]

    # Where it begins and ends

    def _resolve(self) -> None:
        """Determine where each partition begins and ends.

        Relative bounds are resolved once, at the leaders. But "earliest" as a start stays as it is,
        since retention moves it, unless the read follows.
        """
        request, brokers = self._request, self._brokers
        start, stop = request.start, request.stop
        is_fixed = isinstance(start, int) and not counts_from_end(start)
        is_earliest = start == "earliest" and not request.follow
        has_start = request.starts is not None or is_fixed or is_earliest
        is_open = stop is None and bool(request.follow or request.wait_ms_max)
        has_stop = isinstance(stop, int) or is_open
        if has_start and has_stop:
            numbers = self._numbers(brokers.routes(request.stream))
            self._positions = dict.fromkeys(numbers, start) | (request.starts or {})
            self._stops = dict.fromkeys(numbers, stop)
            return
        asked = ReadRequest(
            stream=request.stream,
            partition=request.partition,
            start="earliest" if has_start else start,
            starts=request.starts,
            stop=None if has_stop else stop,
            follow=has_stop,  # with a stop, the leaders need not determine the end
        )
        ranges = brokers.resolve(asked, self._numbers)
        starts = {n: start if has_start else each.start for n, each in ranges.items()}
        self._positions = {**starts, **(request.starts or {})}
        self._stops = {n: stop if has_stop else each.stop for n, each in ranges.items()}
        self._sizes = {n: each.partition.size_bytes for n, each in ranges.items()}

    def _numbers(self, routes: Routes) -> list[int]:
        """Return the partitions to read.

        Raises:
            StrandlineError: a partition does not exist, or one offset is given for several.
        """
        numbers = numbers_of(self._request, sorted(routes))
        check_offsets(self._request, numbers)
        return numbers

    # Where it is read

    def _targets(self, numbers: Iterable[int]) -> dict[str, tuple[int, ...]]:
        """Group partitions by the broker to read them at; leave out those not readable now.

        Raises:
            UnavailableError: none of them is readable.
        """
        routes = self._brokers.known_routes(self._request.stream)
        targets = group({number: self._target_of(routes[number]) for number in numbers})
        nowhere = targets.pop("", ())
        if not targets:
            raise self._unavailable(nowhere[0])
        return targets

    def _unavailable(self, number: int) -> UnavailableError:
        """Return the error for a partition that no replica can serve now."""
        name = f"{self._request.stream}/{number}"
        if self._only:
            return UnavailableError(
                f"{self._only} has no in-sync replica of {name}; retry, or read with "
                "replica='leader' or 'any'"
            )
        return NotLeaderError(f"{name} has no leader now; retry")

    def _target_of(self, partition: PartitionInfo) -> str:
        if self._replica == "leader":
            return partition.leader
        if self._only:
            return self._only if self._only in partition.in_sync else ""
        nearest = self._brokers.home
        able = [a for a in partition.in_sync if a != self._avoided] or list(partition.in_sync)
        if nearest in able:
            return nearest
        return random.choice(able) if able else partition.leader  # noqa: S311 - balances load

    def _open(self, address: str, numbers: tuple[int, ...]) -> BatchStream:
        """Read partitions at a broker, each from its position.

        Raises:
            StrandlineError: the broker's error.
        """
        request = self._request
        target: dict[str, object] = {"starts": {n: self._positions[n] for n in numbers}}
        if len(numbers) == 1:
            target = {"partition": numbers[0], "start": self._positions[numbers[0]], "starts": None}
        asked = msgspec.structs.replace(
            request,
            **{"partition": None, "start": "earliest", **target},
            stop=self._stops[numbers[0]],
            columns=self._columns,
            records_max=self._left,
        )
        if self._is_cancelled.is_set():
            raise DisconnectedError("the read was cancelled")
        connection = self._brokers.connection(address)
        try:
            stream = begin_read(connection, asked, is_small=self._is_small(numbers))
        except OffsetOutOfRangeError as error:
            raise self._classify_out_of_range(error, address, numbers) from error
        except (UnknownStreamError, UnknownPartitionError) as error:
            # The stream or partition is new, and this broker does not know it yet.
            raise NotLeaderError(f"{address}: {error.message}; others have it; retry") from error
        except StrandlineError as error:
            self._avoid(address, error)
            raise
        self._streams[stream] = ReadTarget(address, numbers)
        return stream

    def _is_small(self, numbers: tuple[int, ...]) -> bool:
        """Return whether partitions are known to be so small that reading files does not pay."""
        return all(self._sizes.get(number, WORTH_BYTES) < WORTH_BYTES for number in numbers)

    def _avoid(self, address: str, error: StrandlineError) -> None:
        """Avoid a broker, after an error."""
        self._avoided = address
        if isinstance(error, DisconnectedError):
            self._brokers.connection(address).reset()

    def _classify_out_of_range(
        self, error: OffsetOutOfRangeError, address: str, numbers: tuple[int, ...]
    ) -> StrandlineError:
        """Return the error; a retriable one if this broker may only not know the offset yet."""
        body = admin.StreamInfoRequest(name=self._request.stream)
        connection = self._brokers.connection(address)
        [info] = connection.action(admin.STREAM_INFO, body)
        self._avoided = address
        for number in numbers:
            part = info.partitions[number]
            position, stop = self._positions[number], self._stops[number]
            if isinstance(position, int) and position < part.log_start_offset:
                return error
            # An offset that was read or resolved before is committed, even if a new leader lags.
            is_sure = number in self._read or (
                self._has_resolved_stops and isinstance(stop, int) and stop > part.high_watermark
            )
            if is_sure or any(may_exist_later(at, part, address) for at in (position, stop)):
                return NotLeaderError(
                    f"{address} has {self._request.stream}/{number} only up to offset "
                    f"{part.high_watermark}, behind what was read elsewhere; retry"
                )
            if any(isinstance(at, int) and not has_offset(at, part) for at in (position, stop)):
                return error
        return NotLeaderError(f"{address} knows the requested offset by now; retry")

    def _open_one(self, number: int, retry_deadline: RetryDeadline) -> BatchStream:
        """Read one partition; retry until that succeeds.

        Raises:
            StrandlineError: it did not succeed in time, or the request is invalid.
        """
        while True:
            try:
                left_s = retry_deadline.left_s(time.monotonic())
                with within(left_s):
                    [address] = self._targets((number,))
                    with within(max(ATTEMPT_S, left_s / 2)):
                        return self._open(address, (number,))
            except StrandlineError as error:
                self._is_cancelled.wait(self._pause_s(retry_deadline, error))

    def _pause_s(self, retry_deadline: RetryDeadline, error: StrandlineError) -> float:
        """Return the pause before the next attempt.

        Raises:
            StrandlineError: ``error``, if another attempt is useless.
        """
        self._check_passing(error)
        return retry_deadline.pause_s(error, time.monotonic())

    def _check_passing(self, error: StrandlineError) -> None:
        """Raise the error if it is permanent or the read was cancelled; else forget the leaders.

        Raises:
            StrandlineError: ``error``, if another attempt is useless.
        """
        self._brokers.metadata.forget(self._request.stream)
        if self._is_cancelled.is_set() or not is_passing(error):
            raise error
