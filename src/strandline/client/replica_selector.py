"""Where a read in a cluster reads each partition: at its leader, or at a replica that is able.

Rules:
- places that move are resolved once, at the leaders, so that going on elsewhere changes nothing;
- a replica that does not have committed yet what was read elsewhere is waited for, or passed over
  for another;
- a read at this broker's replicas is one at theirs alone: it waits for them, and goes nowhere else.
"""

import random
import threading
import time
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from strandline.client.cluster_client import ClusterClient, group
from strandline.client.coordinator_client import ATTEMPT_S
from strandline.client.deadline import within
from strandline.client.local import begin_read
from strandline.client.read_checks import check_places, knows, may_come, numbers_of
from strandline.client.reading import BatchStream
from strandline.client.retry import Patience, is_passing
from strandline.errors import (
    DisconnectedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.protocol import admin
from strandline.protocol.admin import PartitionInfo
from strandline.protocol.tickets import Bound, ReadRequest, counts_from_end
from strandline.record.schema import project

Replica = Literal["leader", "any", "this"]
"""Who is read: the leader of each partition, any in-sync replica, or those of the broker asked."""


class ReadTarget(NamedTuple):
    """What is read where."""

    address: str
    partitions: tuple[int, ...]


class ReplicaSelector:
    """Where the partitions of a read begin, end and are read.

    Args:
        brokers: of the cluster.
        request: what to read.
        replica: where.
        timeout_s: how long a partition may be unreachable.

    Raises:
        StrandlineError: the request is wrong, or a partition cannot be reached.
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
        """Partitions of which something was read."""
        self._avoided = ""
        """A replica that failed last."""
        self._only = brokers.asked() if replica == "this" else ""
        """The only broker to read at."""
        routes = brokers.routes(request.stream)
        numbers = numbers_of(request, sorted(routes))
        check_places(request, numbers)
        is_whole = request.partition is None and len(routes) > 1
        self.schema: pa.Schema = project(
            request.columns, with_partition=is_whole and request.columns is None
        )
        self._positions = self._resolved(request.start, numbers, request.starts)
        self._stops = self._resolved_stops(numbers)
        self._has_told_stops = not isinstance(request.stop, int)
        """Whether leaders said where the ends are."""
        self._left = request.records_max
        extra = [name for name in ("partition", "offset") if name not in self.schema.names]
        self._columns = [*self.schema.names, *extra]

    # Where it begins and ends

    def _resolved(
        self, bound: Bound, numbers: list[int], starts: dict[int, int] | None
    ) -> dict[int, Bound]:
        """The place in each partition; "earliest" stays, it is where the log begins by then."""
        if starts is not None:
            return dict(starts)
        is_fixed = isinstance(bound, int) and not counts_from_end(bound)
        if is_fixed or (bound == "earliest" and not self._request.follow):
            return dict.fromkeys(numbers, bound)
        return dict(self._offsets(bound, numbers))

    def _resolved_stops(self, numbers: list[int]) -> dict[int, Bound | None]:
        """The end of each partition's part; None: where it is when it is read."""
        stop = self._request.stop
        is_fixed = isinstance(stop, int)
        if is_fixed or (stop is None and (self._request.follow or self._request.wait_ms_max)):
            return dict.fromkeys(numbers, stop)
        return dict(self._offsets("latest" if stop is None else stop, numbers))

    def _offsets(self, at: Bound, numbers: list[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for _, answer in self._brokers.ask_leaders(
            self._request.stream,
            admin.OFFSETS,
            admin.Offsets,
            body=lambda of: admin.OffsetsRequest(
                name=self._request.stream, at=at, partitions=of, of_leader=True
            ),
            numbers=numbers,
        ):
            found |= answer.offsets
        return {number: found[number] for number in numbers}

    # Where it is read

    def _places(self, numbers: Iterable[int]) -> dict[str, tuple[int, ...]]:
        """Which broker to read which partitions at, as far as they can be read now.

        Raises:
            UnavailableError: none of them can.
        """
        routes = self._brokers.routes(self._request.stream)
        places = group({number: self._place(routes[number]) for number in numbers})
        nowhere = places.pop("", ())
        if not places:
            raise self._nowhere(nowhere[0])
        return places

    def _nowhere(self, number: int) -> UnavailableError:
        """Why a partition can be read nowhere now."""
        name = f"{self._request.stream}/{number}"
        if self._only:
            return UnavailableError(
                f"{self._only} has no copy of {name} that is in sync; retry, or read it at the "
                "'leader' or at 'any' replica"
            )
        return NotLeaderError(f"{name} has no leader now; retry")

    def _place(self, partition: PartitionInfo) -> str:
        if self._replica == "leader":
            return partition.leader
        if self._only:
            return self._only if self._only in partition.in_sync else ""
        nearest = self._brokers.home
        able = [a for a in partition.in_sync if a != self._avoided] or list(partition.in_sync)
        if nearest in able:
            return nearest
        return random.choice(able) if able else partition.leader  # noqa: S311 - to spread readers

    def _open(self, address: str, numbers: tuple[int, ...]) -> BatchStream:
        """Read some partitions at a broker, each from its position.

        Raises:
            StrandlineError: what the broker answered.
        """
        request = self._request
        place: dict[str, object] = {"starts": {n: self._positions[n] for n in numbers}}
        if len(numbers) == 1:
            place = {"partition": numbers[0], "start": self._positions[numbers[0]], "starts": None}
        asked = msgspec.structs.replace(
            request,
            **{"partition": None, "start": "earliest", **place},
            stop=self._stops[numbers[0]],
            columns=self._columns,
            records_max=self._left,
        )
        if self._is_cancelled.is_set():
            raise DisconnectedError("the read was cancelled")
        connection = self._brokers.connection(address)
        try:
            stream = begin_read(connection, asked)
        except OffsetOutOfRangeError as error:
            raise self._judged(error, address, numbers) from error
        except UnknownStreamError as error:  # others know it: it was created a moment ago
            raise NotLeaderError(f"{address} does not know {request.stream} yet; retry") from error
        except StrandlineError as error:
            self._avoid(address, error)
            raise
        self._streams[stream] = ReadTarget(address, numbers)
        return stream

    def _avoid(self, address: str, error: StrandlineError) -> None:
        """A broker cannot be read now."""
        self._avoided = address
        if isinstance(error, DisconnectedError):
            self._brokers.connection(address).reset()

    def _judged(
        self, error: OffsetOutOfRangeError, address: str, numbers: tuple[int, ...]
    ) -> StrandlineError:
        """Whether an offset does not exist, or is only not known there yet."""
        body = admin.StreamName(name=self._request.stream)
        connection = self._brokers.connection(address)
        [info] = connection.action(admin.STREAM_INFO, body, admin.StreamInfo)
        self._avoided = address
        for number in numbers:
            part = info.partitions[number]
            position, stop = self._positions[number], self._stops[number]
            if isinstance(position, int) and position < part.log_start_offset:
                return error
            # What was read, or told by a leader before, is committed; a new one may not know so.
            is_sure = number in self._read or (
                self._has_told_stops and isinstance(stop, int) and stop > part.high_watermark
            )
            if is_sure or any(may_come(at, part, address) for at in (position, stop)):
                return NotLeaderError(
                    f"{address} has {self._request.stream}/{number} to {part.high_watermark} only, "
                    "not yet what was read or seen elsewhere; retry"
                )
            if any(isinstance(at, int) and not knows(at, part) for at in (position, stop)):
                return error
        return NotLeaderError(f"{address} has heard meanwhile of what it was asked for; retry")

    def _open_one(self, number: int, patience: Patience) -> BatchStream:
        """Read one partition, as soon as that is possible.

        Raises:
            StrandlineError: it is not in time, or the request is wrong.
        """
        while True:
            try:
                left_s = patience.left_s(time.monotonic())
                with within(left_s):
                    [address] = self._places((number,))
                    with within(max(ATTEMPT_S, left_s / 2)):
                        return self._open(address, (number,))
            except StrandlineError as error:
                self._is_cancelled.wait(self._pause_s(patience, error))

    def _pause_s(self, patience: Patience, error: StrandlineError) -> float:
        """How long to wait before another attempt.

        Raises:
            StrandlineError: ``error``, if there is no point in one.
        """
        self._check_passing(error)
        return patience.pause_s(error, time.monotonic())

    def _check_passing(self, error: StrandlineError) -> None:
        """Go on after an error that will pass, unless the read was cancelled.

        Raises:
            StrandlineError: ``error``, if there is no point in another attempt.
        """
        if self._is_cancelled.is_set() or not is_passing(error):
            raise error
