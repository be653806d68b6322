"""The synchronous client of a broker or of a cluster, safe to use from several threads.

It finds leaders by itself: any broker's address will do, several are better while one is away.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import pyarrow as pa

from strandline.client.brokers import Brokers, group
from strandline.client.consumer import Consumer, Options
from strandline.client.enlisted import Enlisted
from strandline.client.groups import Groups
from strandline.client.office import Office
from strandline.client.producer import Headers, Producer
from strandline.client.reading import BatchStream, Place, bound_of, read_request
from strandline.client.results import Ack, AckFuture, BatchAck
from strandline.client.retry import is_connection_loss, is_worth_a_retry
from strandline.client.routed_read import Replica, RoutedRead
from strandline.client.subscription import SUBSCRIPTION_COLUMNS, Subscription
from strandline.client.tls import Credentials
from strandline.client.transactional import TransactionalClient
from strandline.config import Acks, StreamConfig, decode_config
from strandline.errors import RequestTimeoutError, StrandlineError
from strandline.protocol import admin
from strandline.protocol.groups import GROUPS_STREAM
from strandline.protocol.tickets import WAIT_MS_MAX, ReadRequest

TIMEOUT_S = 10.0
RETRY_S = 0.1
WAIT_SLICE_S = 0.25
"""How long one of several leaders is waited for before the others are asked."""
R = TypeVar("R")


def connect(
    address: str,
    *,
    timeout_s: float = TIMEOUT_S,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
) -> "Client":
    """Connect to a broker, and with it to its cluster.

    Args:
        address: ``host:port`` of Arrow Flight, or ``tls://host:port`` with TLS; several, separated
            by commas, for when one of them is away.
        timeout_s: how long calls other than reads and appends may take.
        ca: PEM file of who signs the brokers' certificates; else that of ``STRANDLINE_CA``, or the
            authorities that gRPC trusts.
        certificate: PEM file of the client's own, for brokers that ask for one; else that of
            ``STRANDLINE_CERTIFICATE``.
        key: PEM file of its key; else that of ``STRANDLINE_KEY``.

    Raises:
        DisconnectedError: no broker answers there, or not with a certificate that is trusted.
        InvalidRequestError: not an address, or not one for TLS though a certificate is given.
        InvalidConfigError: a certificate or key cannot be used.
    """
    credentials = None
    if ca or certificate or key:
        credentials = Credentials.given(ca, certificate, key)
    client = Client(address, timeout_s=timeout_s, credentials=credentials)
    try:
        client.server_info()
    except BaseException:
        client.close()
        raise
    return client


class Client(TransactionalClient):
    """A client of a broker or a cluster. Use it as a context, or ``close`` it.

    Args:
        address: as ``connect``.
        timeout_s: as ``connect``.
        credentials: for TLS; by default those of the environment.

    Raises:
        InvalidRequestError, InvalidConfigError: as ``connect``.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = TIMEOUT_S,
        credentials: Credentials | None = None,
    ) -> None:
        self._brokers = Brokers(address, timeout_s=timeout_s, credentials=credentials)
        self._lock = threading.Lock()
        self._server: admin.ServerInfo | None = None
        self._appenders: dict[str, Producer] = {}

    @property
    def address(self) -> str:
        """``host:port`` of the broker that answered last."""
        return self._brokers.home

    # Streams

    def create_stream(
        self, name: str, *, subject: str | None = None, partitions: int = 1, **config: Any
    ) -> admin.StreamInfo:
        """Create a stream.

        Args:
            name: of the stream.
            subject: NATS subject to record, perhaps with wildcards; the name by default.
            partitions: how many.
            **config: other fields of ``config.StreamConfig``, such as ``retention_age_ms``.

        Raises:
            StreamExistsError: the name is taken.
            InvalidConfigError: an unknown or wrong setting; the message suggests the nearest.
        """
        values = {"name": name, "subject": subject or name, "partitions": partitions, **config}
        checked = decode_config(values, StreamConfig)
        [info] = self._known.change(admin.CREATE_STREAM, checked, admin.StreamInfo)
        return info

    def delete_stream(self, name: str) -> None:
        """Delete a stream and all its records.

        Raises:
            UnknownStreamError: there is none.
        """
        with self._lock:
            appender = self._appenders.pop(name, None)
        if appender is not None:
            appender.close()
        self._known.change(admin.DELETE_STREAM, admin.StreamName(name=name), admin.StreamInfo)

    def stream_info(self, name: str) -> admin.StreamInfo:
        """A stream's configuration and the extent of its partitions, as their leaders know it.

        Raises:
            UnknownStreamError: there is none.
            NotLeaderError: a partition has no leader for too long.
        """
        info = self._described(name)
        if not self._brokers.is_cluster:
            return info
        parts = {each.partition: each for each in info.partitions}
        body = admin.StreamName(name=name)
        for numbers, answer in self._brokers.ask_leaders(
            name, admin.STREAM_INFO, admin.StreamInfo, body=lambda _: body
        ):
            parts |= {number: answer.partitions[number] for number in numbers}
        return msgspec.structs.replace(info, partitions=tuple(parts[n] for n in sorted(parts)))

    def _described(self, name: str) -> admin.StreamInfo:
        """A stream as any broker knows it."""
        [info] = self._known.ask(admin.STREAM_INFO, admin.StreamName(name=name), admin.StreamInfo)
        return info

    def list_streams(self) -> list[admin.StreamInfo]:
        """All streams, by name; in a cluster with offsets as the broker asked knows them."""
        return self._known.ask(admin.LIST_STREAMS, None, admin.StreamInfo)

    def truncate_before(self, stream: str, offset: int, *, partition: int = 0) -> admin.StreamInfo:
        """Delete a partition's records below ``offset``, for ever.

        Whole segments are deleted, so some records below may stay.

        Raises:
            OffsetOutOfRangeError: beyond the high watermark.
            UnknownStreamError, UnknownPartitionError: no such partition.
        """
        body = admin.TruncateBefore(name=stream, partition=partition, offset=offset)
        [info] = self._known.change(admin.TRUNCATE_BEFORE, body, admin.StreamInfo)
        return info

    def offsets(self, stream: str, at: Place = "latest") -> dict[int, int]:
        """Where a place or time is in each partition.

        Args:
            stream: its name.
            at: ``"earliest"``, ``"latest"``, an offset to check, or a time: then the first record
                stored at or after it.

        Raises:
            UnknownStreamError, OffsetOutOfRangeError: as they say.
        """
        bound = bound_of(at)
        found: dict[int, int] = {}
        for _, answer in self._known.ask_leaders(
            stream,
            admin.OFFSETS,
            admin.Offsets,
            body=lambda of: admin.OffsetsRequest(name=stream, at=bound, partitions=of),
        ):
            found |= answer.offsets
        return dict(sorted(found.items()))

    def wait_for(
        self, stream: str, beyond: Mapping[int, int], *, timeout_s: float = 1.0
    ) -> dict[int, int]:
        """Wait until a partition's high watermark is above the offset given for it.

        Args:
            stream: its name.
            beyond: offset by partition.
            timeout_s: the longest wait, at most 60 s.

        Returns:
            the high watermarks of those partitions, changed or not.

        Raises:
            UnknownStreamError, UnknownPartitionError: as they say.
        """
        deadline_s = time.monotonic() + min(WAIT_MS_MAX / 1e3, max(0.0, timeout_s))
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                found = self._wait_once(stream, beyond, wait_s=left_s)
            except StrandlineError as error:
                is_passing = is_worth_a_retry(error) and self._brokers.is_cluster
                if not is_passing or time.monotonic() >= deadline_s:
                    raise
                time.sleep(min(RETRY_S, left_s))
                continue
            is_over = time.monotonic() >= deadline_s
            if is_over or any(found[number] > after for number, after in beyond.items()):
                return found

    def _wait_once(
        self, stream: str, beyond: Mapping[int, int], *, wait_s: float
    ) -> dict[int, int]:
        """The high watermarks, waited for at a single leader, or at several for a moment."""
        leaders = self._leaders_of(stream, beyond)
        if len(leaders) > 1:
            wait_s = min(wait_s, WAIT_SLICE_S)
        found: dict[int, int] = {}
        for leader, numbers in leaders.items():
            part = {number: beyond[number] for number in numbers}
            found |= self._wait_at(leader, stream, part, wait_s=wait_s)
        return found

    def _leaders_of(self, stream: str, partitions: Mapping[int, int]) -> dict[str, tuple[int, ...]]:
        """Who leads some partitions; "" those that have no leader now."""
        if not self._known.is_cluster or not partitions:
            return {self._brokers.home: tuple(partitions)}
        leaders = self._brokers.leaders(self._brokers.routes(stream))
        return group({number: leaders.get(number, "") for number in partitions})

    def _wait_at(
        self, leader: str, stream: str, beyond: Mapping[int, int], *, wait_s: float
    ) -> dict[int, int]:
        """The high watermarks of a leader's partitions, waited for; any broker's without one."""
        body = admin.WaitRequest(name=stream, beyond=dict(beyond), wait_ms_max=int(wait_s * 1e3))
        ask = self._brokers.connection(leader).action if leader else self._brokers.ask
        [answer] = ask(admin.WAIT_BEYOND, body, admin.Offsets, wait_s=wait_s)
        return answer.offsets

    def server_info(self) -> admin.ServerInfo:
        """Version and limits of the broker.

        Raises:
            DisconnectedError: it does not answer.
        """
        info = self._server = self._brokers.server_info()
        return info

    @property
    def _known(self) -> Brokers:
        """The brokers, once it is known whether there are several."""
        if self._server is None:
            self.server_info()
        return self._brokers

    # Appending

    def append(
        self,
        stream: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        subject: str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        message_id: str | None = None,
        timeout_s: float = 35.0,
    ) -> Ack:
        """Append one record and wait until it is safe; returns its offset.

        For many records use ``producer``: it batches them.

        Args:
            stream: its name.
            value: the payload, as in ``Producer.append``; so are the next five.
            key: for compaction and partitioning.
            subject: by default the stream's.
            headers: a mapping, or (name, value) pairs.
            partition: where to append.
            message_id: makes a repeat a duplicate.
            timeout_s: how long to wait for the ack.

        Raises:
            RequestTimeoutError: no ack in time; whether the record was stored is unknown.
            StrandlineError: it was not stored.
        """
        future = self.appender(stream).append(
            value,
            key=key,
            subject=subject,
            headers=headers,
            partition=partition,
            message_id=message_id,
        )
        return _wait(future, timeout_s)

    def append_batch(
        self,
        stream: str,
        data: Any,
        *,
        partition: int | None = None,
        timeout_s: float = 60.0,
    ) -> BatchAck:
        """Append the rows of a table and wait until all are safe.

        Args:
            stream: its name.
            data: as in ``Producer.append_batch``.
            partition: where to append; by default each row goes its way.
            timeout_s: how long to wait for the acks.

        Raises:
            RequestTimeoutError: no ack in time; whether the rows were stored is unknown.
            StrandlineError: not all rows were stored; a note says how many were.
        """
        future = self.appender(stream).append_batch(data, partition=partition)
        return _wait(future, timeout_s)

    def producer(
        self,
        stream: str,
        *,
        acks: Acks | None = None,
        linger_ms: float = 2.0,
        batch_bytes: int = 1 << 20,
        buffer_bytes: int = 64 << 20,
        delivery_timeout_s: float = 30.0,
        idempotent: bool = True,
    ) -> Producer:
        """A producer for a stream; arguments as ``Producer``.

        Raises:
            UnknownStreamError: there is none.
        """
        return Producer(
            self._known,
            self._described(stream),
            server=self._server or self.server_info(),
            acks=acks,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            delivery_timeout_s=delivery_timeout_s,
            idempotent=idempotent,
        )

    def _enlisted_producer(self, stream: str, enlisted: Enlisted) -> Producer:
        return Producer(
            self._known,
            self._described(stream),
            server=self._server or self.server_info(),
            enlisted=enlisted,
        )

    def appender(self, stream: str) -> Producer:
        """The producer behind ``append``: sends at once, and what comes meanwhile together.

        Raises:
            UnknownStreamError: there is no such stream.
        """
        with self._lock:
            found = self._appenders.get(stream)
        if found is not None:
            return found
        made = self.producer(stream, linger_ms=0)
        with self._lock:
            found = self._appenders.setdefault(stream, made)
        if found is not made:
            made.close()
        return found

    # Reading

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
    ) -> pa.RecordBatchReader:
        """Read records as Arrow.

        The reader goes wherever Arrow goes: ``polars.from_arrow``, ``duckdb.from_arrow``,
        ``.read_pandas()``, or iterate it for record batches. Dropping or closing it ends the read.

        Args:
            stream: its name.
            partition: None reads all, one after another (interleaved when following), with a
                ``partition`` column if there are several.
            start: ``"earliest"``, ``"latest"``, an offset (of one partition), or a time.
            stop: exclusive; the same. By default ``"latest"``, the end at the time of the call, or
                none when following.
            columns: names in the order wanted, of offset, timestamp, subject, key, value, headers
                and partition; None: all.
            follow: go on with records as they are stored.
            replica: ``"leader"``, or ``"any"`` in-sync replica, to spread load; what is read is
                the same, only perhaps a moment later.
            **options: filters on the broker: ``subject`` (a pattern), ``keys``,
                ``timestamp_from``, ``timestamp_to``; ``starts`` ({partition: offset}, in place of
                ``start``), ``records_max``, ``bytes_min`` with ``wait_ms_max`` (long poll),
                ``batch_bytes``, ``skip_damaged``.

        Raises:
            OffsetOutOfRangeError: an offset that does not exist; the message names those that do.
            UnknownStreamError, UnknownPartitionError: as they say.
            InvalidRequestError: other arguments that cannot be.
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
    ) -> BatchStream | RoutedRead:
        """Begin a read that another thread can cancel; arguments as ``read``.

        Raises:
            StrandlineError: as ``read``.
        """
        request = read_request(stream, **options)
        return self._begin(request, replica=replica, timeout_s=self._brokers.timeout_s)

    def _begin(
        self, request: ReadRequest, *, replica: Replica, timeout_s: float
    ) -> BatchStream | RoutedRead:
        """Begin a read, at the only broker or wherever its partitions are."""
        if self._known.is_cluster:
            return RoutedRead(self._brokers, request, replica=replica, timeout_s=timeout_s)
        connection = self._brokers.connection(self._brokers.home)
        try:
            return BatchStream(connection, request)
        except StrandlineError as error:
            if is_connection_loss(error):
                connection.reset()
            raise

    def subscribe(
        self,
        stream: str,
        *,
        partition: int | None = None,
        start: Place = "latest",
        starts: Mapping[int, int] | None = None,
        reconnect_timeout_s: float = 60.0,
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
        request = read_request(
            stream,
            starts=self._positions(stream, partition, start) if starts is None else starts,
            columns=SUBSCRIPTION_COLUMNS,
            follow=True,
            **options,
        )
        begin = partial(self._begin, replica=replica, timeout_s=reconnect_timeout_s)
        return Subscription(begin, request, reconnect_timeout_s=reconnect_timeout_s)

    # Consumer groups

    def consumer(self, group: str, streams: str | Iterable[str], **options: Any) -> Consumer:
        """Join a consumer group: its members share the partitions of streams among them.

        Args:
            group: its name.
            streams: what to consume, one or several.
            **options: fields of ``consumer.Options``, such as ``commit_interval_s``.

        Raises:
            UnknownStreamError: there is no such stream.
            StrandlineError: the group's coordinator refuses, or cannot be reached.
        """
        names = [streams] if isinstance(streams, str) else streams
        return Consumer(self, self.group_office, group, streams=names, options=Options(**options))

    @property
    def groups(self) -> Groups:
        """Consumer groups: list, describe, reset and delete them."""
        return Groups(self, self.group_office)

    @property
    def group_office(self) -> Office:
        """The coordinator of consumer groups; what ``LogPositions`` takes."""
        return Office(self._known, GROUPS_STREAM)

    # Life

    def close(self) -> None:
        """End the connections and their producers; harmless when repeated.

        Raises:
            StrandlineError: an append nobody waited for failed.
        """
        with self._lock:
            appenders, self._appenders = list(self._appenders.values()), {}
        try:
            for appender in appenders:
                appender.close()
        finally:
            self._brokers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """Show where it is connected."""
        return f"Client({self.address!r})"

    def _positions(self, stream: str, partition: int | None, start: Place) -> dict[int, int]:
        """Where a subscription begins, resolved once so that a reconnect changes nothing."""
        if partition is None:
            return self.offsets(stream, start)
        if isinstance(start, int):
            return {partition: start}
        found = self.offsets(stream, start)
        return {partition: found.get(partition, 0)}


def _wait(future: AckFuture[R], timeout_s: float) -> R:
    """The result of a future, its timeout as an error of ours."""
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        raise RequestTimeoutError(
            f"no ack within {timeout_s:g} s; whether it was stored is unknown"
        ) from error
