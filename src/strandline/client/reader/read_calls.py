"""The reading calls of a client, as a part of ``Client``.

Offsets are resolved once, so that a reconnect does not change which records are read.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from strandline.api import admin
from strandline.api.tickets import ReadRequest
from strandline.client.arguments import check_options, options_of
from strandline.client.cluster_client import ClusterClient
from strandline.client.deadline import within
from strandline.client.reader.cluster_reader import ClusterReader
from strandline.client.reader.local import begin_read
from strandline.client.reader.reading import BatchStream, EndlessReader, OffsetSpec, read_request
from strandline.client.reader.replica_selector import Replica
from strandline.client.reader.subscription import SUBSCRIPTION_COLUMNS, Subscription
from strandline.errors import (
    DisconnectedError,
    InvalidRequestError,
    StrandlineError,
    UnavailableError,
)

if TYPE_CHECKING:
    import polars as pl

FOLLOWED_S = 60.0
"""The time that an endless read waits for unreachable brokers: all may be restarting."""

READ_OPTIONS = (*options_of(read_request), "replica")
_NOT_SUBSCRIBED = ("columns", "follow")
SUBSCRIBE_OPTIONS = (
    *(name for name in READ_OPTIONS if name not in _NOT_SUBSCRIBED),
    "reconnect_timeout_s",
)


class ReadCalls(ABC):
    """The reading calls of a client."""

    _brokers: ClusterClient

    @property
    @abstractmethod
    def _known(self) -> ClusterClient:
        """Return the brokers, after finding out whether this is a cluster."""

    @abstractmethod
    def stream_info(self, name: str, *, of_leaders: bool = True) -> admin.StreamInfo:
        """Return a stream's settings and offsets."""

    @abstractmethod
    def _offsets(
        self, stream: str, at: OffsetSpec, numbers: Collection[int] | None = None
    ) -> dict[int, int]:
        """Return the offset of ``at`` in these partitions; None: in all partitions."""

    def read(
        self,
        stream: str,
        *,
        partition: int | None = None,
        start: OffsetSpec = "earliest",
        stop: OffsetSpec | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        replica: Replica = "leader",
        **options: Any,
    ) -> pa.RecordBatchReader | EndlessReader:
        """Read records as Arrow.

        The reader can be passed to ``polars.from_arrow`` and ``duckdb.from_arrow``, read with
        ``.read_pandas()``, or iterated for record batches. Dropping it ends the read. Closing it
        ends a read without an end, too (a plain ``pyarrow.RecordBatchReader`` ignores ``close``).

        Args:
            stream: the stream's name.
            partition: the partition to read. None: all partitions, one after another (interleaved
                when
                following), with a column ``partition`` if there are several.
            start: ``"earliest"``, ``"latest"``, an offset (of one partition), a time (in UTC if it
                has no zone), or ``-n`` for the last n records of each partition.
            stop: the exclusive end, given like ``start``. By default the end at the time of the
                call, or
                no end when following.
            columns: names, in the order wanted, of offset, timestamp, subject, key, value, headers
                and
                partition; None: all columns.
            follow: continue with records as they are stored.
            replica: ``"leader"``; ``"any"`` for any in-sync replica, which spreads the load; or
                ``"this"`` for the replica of the connected broker only, to inspect it. The records
                are the same, perhaps a moment later.
            **options: filters on the broker: ``subject`` (a pattern), ``keys``,
                ``timestamp_from``, ``timestamp_to``; ``order`` (``"descending"``: the newest of
                each
                partition first), ``starts`` ({partition: offset}, instead of ``start``),
                ``records_max`` (0: no records, only the schema), ``bytes_min`` with
                ``wait_ms_max`` (long poll), ``batch_bytes``, ``skip_corrupt``.

        Raises:
            OffsetOutOfRangeError: the offset does not exist; the message has the existing range.
            UnknownStreamError, UnknownPartitionError: there is no such stream or partition.
            InvalidRequestError: another argument is invalid.
            UnavailableError: the broker for ``"this"`` has no in-sync replica.
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
        """Begin a read that any thread can cancel; the arguments are those of ``read``.

        Raises:
            StrandlineError: as for ``read``.
        """
        check_options("read", options, READ_OPTIONS)
        request = read_request(stream, **options)
        timeout_s = self._brokers.timeout_s
        can_wait = request.follow and replica != "this"
        retry_timeout_s = max(timeout_s, FOLLOWED_S) if can_wait else timeout_s
        return self._begin(
            request, replica=replica, timeout_s=timeout_s, retry_timeout_s=retry_timeout_s
        )

    def _begin(
        self,
        request: ReadRequest,
        *,
        replica: Replica,
        timeout_s: float,
        retry_timeout_s: float | None = None,
        is_of_all: bool = False,
    ) -> BatchStream | ClusterReader:
        """Begin a read, at a single broker or across the cluster.

        Args:
            request: what to read.
            replica: which replicas to read.
            timeout_s: how long the beginning may take.
            retry_timeout_s: how long a partition may be unreachable later; None: ``timeout_s``.
            is_of_all: whether the read is of all partitions, although its ``starts`` names them.
        """
        with within(timeout_s):
            is_routed, address = self._known.is_cluster, self._brokers.home
            if is_routed and replica == "this":
                address = self._brokers.named_broker()
                is_routed = self._knows_streams(address, request.stream)
                request = msgspec.structs.replace(request, of_copy=not is_routed)
            if is_routed:
                return ClusterReader(
                    self._brokers,
                    request,
                    replica=replica,
                    timeout_s=retry_timeout_s or timeout_s,
                    is_of_all=is_of_all,
                )
            connection = self._brokers.connection(address)
            try:
                return begin_read(connection, request)
            except StrandlineError as error:
                if error.is_connection_loss:
                    connection.reset()
                raise

    def _knows_streams(self, address: str, stream: str) -> bool:
        """Return whether a broker has the cluster's metadata; if not, only its disk is readable."""
        body = admin.StreamInfoRequest(name=stream)
        try:
            self._brokers.connection(address).action(admin.STREAM_INFO, body)
        except DisconnectedError:
            raise
        except UnavailableError:
            return False
        except StrandlineError:
            return True  # the read will raise the error
        return True

    def scan(self, stream: str, **options: Any) -> "pl.LazyFrame":
        """Return a stream as a Polars ``LazyFrame``, which reads when it is collected.

        The broker selects the columns of the query, and filters by the conditions of its predicates
        on subject, key, timestamp, partition and offset. Each collect reads what is committed then.
        ``subject`` is plain text, ``partition`` is always a column, and ``value`` has the stored
        bytes, whatever the schema of the stream. For decoded columns use ``strandline.table``: it
        reads a load's table and the records that are not loaded yet. Needs ``strandline[polars]``.

        Args:
            stream: the stream's name.
            **options: as for ``read``, without ``columns``, ``follow`` and ``records_max``.

        Raises:
            StrandlineError: as for ``read``.
        """
        from strandline.client.reader.polars_scan import lazy_frame

        return lazy_frame(partial(self.read, stream), partial(self.stream_info, stream), options)

    def subscribe(
        self,
        /,
        stream: str,
        *,
        partition: int | None = None,
        start: OffsetSpec = "latest",
        starts: Mapping[int, int] | None = None,
        reconnect_timeout_s: float = FOLLOWED_S,
        replica: Replica = "leader",
        **options: Any,
    ) -> Subscription:
        """Iterate records as Python objects, as they are stored.

        Args:
            stream: the stream's name.
            partition: the partition; None: all partitions.
            start: as for ``read``; by default only records stored from now on.
            starts: the first offset by partition, instead of ``start``, such as where another
                subscription ended.
            reconnect_timeout_s: how long brokers may be unreachable before that is an error.
            replica: as for ``read``.
            **options: filters as for ``read``.

        Raises:
            StrandlineError: as for ``read``.
        """
        check_subscribe_options(options)
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

    def _positions(self, stream: str, partition: int | None, start: OffsetSpec) -> dict[int, int]:
        """Resolve the first offsets of a subscription, once, so that no reconnect moves them."""
        if partition is None:
            return self._offsets(stream, start)
        if isinstance(start, int) and start >= 0:
            return {partition: start}
        found = self._offsets(stream, start, (partition,))
        return {partition: found.get(partition, 0)}


def check_subscribe_options(options: Mapping[str, Any]) -> None:
    """Reject options that ``subscribe`` does not have.

    Raises:
        InvalidRequestError: an option is one of ``read`` alone.
        TypeError: there is no such option.
    """
    for name in _NOT_SUBSCRIBED:
        if name in options:
            raise InvalidRequestError(f"a subscription takes no {name!r}; omit it, or use read")
    check_options("subscribe", options, SUBSCRIBE_OPTIONS)
