"""What a client reads: as Arrow, as objects, once or for ever.

Part of ``Client``. Offsets are resolved once, so that a reconnect changes nothing of what is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from strandline.client.cluster_client import ClusterClient
from strandline.client.cluster_reader import ClusterReader
from strandline.client.deadline import within
from strandline.client.local import begin_read
from strandline.client.reading import BatchStream, EndlessReader, Place, read_request
from strandline.client.replica_selector import Replica
from strandline.client.retry import is_connection_loss
from strandline.client.subscription import SUBSCRIPTION_COLUMNS, Subscription
from strandline.errors import (
    DisconnectedError,
    InvalidRequestError,
    StrandlineError,
    UnavailableError,
)
from strandline.protocol import admin
from strandline.protocol.tickets import ReadRequest

FOLLOWED_S = 60.0
"""How long a read without an end waits for brokers that are away: they may all be restarted."""


class ReadCalls(ABC):
    """The calls of a client that read."""

    _brokers: ClusterClient

    @property
    @abstractmethod
    def _known(self) -> ClusterClient:
        """The brokers, once it is known whether there are several."""

    @abstractmethod
    def _offsets(
        self, stream: str, at: Place, numbers: Collection[int] | None = None
    ) -> dict[int, int]:
        """Where a place or time is in some partitions; None: in all."""

    def read(
        self,
        stream: str,
        *,
        partition: int | None = None,
        start: Place = "earliest",
        stop: Place | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        replica: Replica = "leader",
        **options: Any,
    ) -> pa.RecordBatchReader | EndlessReader:
        """Read records as Arrow.

        The reader goes wherever Arrow goes: ``polars.from_arrow``, ``duckdb.from_arrow``,
        ``.read_pandas()``, or iterate it for record batches. Dropping it ends the read; closing it,
        too, if the read has no end (a plain ``pyarrow.RecordBatchReader`` takes no notice).

        Args:
            stream: its name.
            partition: None reads all, one after another (interleaved when following), with a
                ``partition`` column if there are several.
            start: ``"earliest"``, ``"latest"``, an offset (of one partition), a time (in UTC if it
                has no zone), or ``-n``: the last n records of each partition.
            stop: exclusive; the same. By default ``"latest"``, the end at the time of the call, or
                none when following.
            columns: names in the order wanted, of offset, timestamp, subject, key, value, headers
                and partition; None: all.
            follow: go on with records as they are stored.
            replica: ``"leader"``; ``"any"`` in-sync replica, to spread load; or ``"this"``, the
                one of the broker that was connected to and no other, to see what it has. What is
                read is the same, only perhaps a moment later.
            **options: filters on the broker: ``subject`` (a pattern), ``keys``,
                ``timestamp_from``, ``timestamp_to``; ``order`` (``"descending"``: each partition
                newest first), ``starts`` ({partition: offset}, in place of ``start``),
                ``records_max``, ``bytes_min`` with ``wait_ms_max`` (long poll), ``batch_bytes``,
                ``skip_damaged``.

        Raises:
            OffsetOutOfRangeError: an offset that does not exist; the message names those that do.
            UnknownStreamError, UnknownPartitionError: as they say.
            InvalidRequestError: other arguments that cannot be.
            UnavailableError: ``"this"`` broker has no in-sync replica.
        """
        return self.open_read(
            stream,
            partition=partition,
            start=start,
            stop=stop,
            columns=columns,
            follow=follow,
            replica=replica,
            **options,
        ).reader()

    def open_read(
        self, stream: str, *, replica: Replica = "leader", **options: Any
    ) -> BatchStream | ClusterReader:
        """Begin a read that another thread can cancel; arguments as ``read``.

        Raises:
            StrandlineError: as ``read``.
        """
        request = read_request(stream, **options)
        timeout_s = self._brokers.timeout_s
        can_defer_flush = request.follow and replica != "this"
        patience_s = max(timeout_s, FOLLOWED_S) if can_defer_flush else timeout_s
        return self._begin(request, replica=replica, timeout_s=timeout_s, patience_s=patience_s)

    def _begin(
        self,
        request: ReadRequest,
        *,
        replica: Replica,
        timeout_s: float,
        patience_s: float | None = None,
        is_of_all: bool = False,
    ) -> BatchStream | ClusterReader:
        """Begin a read, at the only broker or wherever its partitions are.

        Args:
            request: what to read.
            replica: where.
            timeout_s: how long it may take to begin.
            patience_s: how long a partition may be out of reach later; None: as long.
            is_of_all: whether it is of all partitions, though its ``starts`` names them.
        """
        with within(timeout_s):
            is_routed, address = self._known.is_cluster, self._brokers.home
            if is_routed and replica == "this":
                address = self._brokers.asked()
                is_routed = self._knows_streams(address, request.stream)
                request = msgspec.structs.replace(request, of_copy=not is_routed)
            if is_routed:
                return ClusterReader(
                    self._brokers,
                    request,
                    replica=replica,
                    timeout_s=patience_s or timeout_s,
                    is_of_all=is_of_all,
                )
            connection = self._brokers.connection(address)
            try:
                return begin_read(connection, request)
            except StrandlineError as error:
                if is_connection_loss(error):
                    connection.reset()
                raise

    def _knows_streams(self, address: str, stream: str) -> bool:
        """Whether a broker can tell of its cluster's streams; if not, it still has its copies."""
        body = admin.StreamInfoRequest(name=stream)
        try:
            self._brokers.connection(address).action(admin.STREAM_INFO, body, admin.StreamInfo)
        except DisconnectedError:
            raise
        except UnavailableError:
            return False
        except StrandlineError:
            return True  # the read tells what is wrong
        return True

    def subscribe(
        self,
        stream: str,
        *,
        partition: int | None = None,
        start: Place = "latest",
        starts: Mapping[int, int] | None = None,
        reconnect_timeout_s: float = FOLLOWED_S,
        replica: Replica = "leader",
        **options: Any,
    ) -> Subscription:
        """Iterate records as objects, as they are stored.

        Args:
            stream: its name.
            partition: None: all.
            start: as ``read``; the default gives records stored from now on.
            starts: offset by partition, in place of ``start``: where another subscription ended.
            reconnect_timeout_s: how long brokers may stay away before it is an error.
            replica: as ``read``.
            **options: filters as ``read``.

        Raises:
            StrandlineError: as ``read``.
        """
        for name in ("columns", "follow"):
            if name in options:
                raise InvalidRequestError(
                    f"a subscription gives whole records for ever; leave {name!r} out, or use read"
                )
        request = read_request(
            stream,
            starts=self._positions(stream, partition, start) if starts is None else starts,
            columns=SUBSCRIPTION_COLUMNS,
            follow=True,
            **options,
        )
        begin = partial(
            self._begin,
            replica=replica,
            timeout_s=reconnect_timeout_s,
            is_of_all=partition is None and starts is None,
        )
        return Subscription(begin, request, reconnect_timeout_s=reconnect_timeout_s)

    def _positions(self, stream: str, partition: int | None, start: Place) -> dict[int, int]:
        """Where a subscription begins, resolved once so that a reconnect changes nothing."""
        if partition is None:
            return self._offsets(stream, start)
        if isinstance(start, int) and start >= 0:
            return {partition: start}
        found = self._offsets(stream, start, (partition,))
        return {partition: found.get(partition, 0)}
