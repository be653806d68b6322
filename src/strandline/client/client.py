"""The synchronous client: one object per broker, safe to use from several threads."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa

from strandline.client.connection import Connection
from strandline.client.producer import Headers, Producer
from strandline.client.reading import BatchStream, Place, bound_of, read_request
from strandline.client.results import Ack, AckFuture, BatchAck
from strandline.client.subscription import SUBSCRIPTION_COLUMNS, Subscription
from strandline.client.tls import Credentials
from strandline.config import Acks, StreamConfig, decode_config
from strandline.errors import RequestTimeoutError
from strandline.protocol import admin
from strandline.protocol.tickets import WAIT_MS_MAX

TIMEOUT_S = 10.0
R = TypeVar("R")


def connect(
    address: str,
    *,
    timeout_s: float = TIMEOUT_S,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
) -> "Client":
    """Connect to a broker.

    Args:
        address: ``host:port`` of Arrow Flight, or ``tls://host:port`` with TLS.
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


class Client:
    """A client of one broker. Use it as a context, or ``close`` it.

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
        self._connection = Connection(address, timeout_s=timeout_s, credentials=credentials)
        self._lock = threading.Lock()
        self._server: admin.ServerInfo | None = None
        self._appenders: dict[str, Producer] = {}

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return self._connection.address

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
        [info] = self._connection.action(admin.CREATE_STREAM, checked, admin.StreamInfo)
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
        self._connection.action(admin.DELETE_STREAM, admin.StreamName(name=name), admin.StreamInfo)

    def stream_info(self, name: str) -> admin.StreamInfo:
        """A stream's configuration and the extent of its partitions.

        Raises:
            UnknownStreamError: there is none.
        """
        [info] = self._connection.action(
            admin.STREAM_INFO, admin.StreamName(name=name), admin.StreamInfo
        )
        return info

    def list_streams(self) -> list[admin.StreamInfo]:
        """All streams, by name."""
        return self._connection.action(admin.LIST_STREAMS, None, admin.StreamInfo)

    def truncate_before(self, stream: str, offset: int, *, partition: int = 0) -> admin.StreamInfo:
        """Delete a partition's records below ``offset``, for ever.

        Whole segments are deleted, so some records below may stay.

        Raises:
            OffsetOutOfRangeError: beyond the high watermark.
            UnknownStreamError, UnknownPartitionError: no such partition.
        """
        body = admin.TruncateBefore(name=stream, partition=partition, offset=offset)
        [info] = self._connection.action(admin.TRUNCATE_BEFORE, body, admin.StreamInfo)
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
        body = admin.OffsetsRequest(name=stream, at=bound_of(at))
        [answer] = self._connection.action(admin.OFFSETS, body, admin.Offsets)
        return answer.offsets

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
        wait_ms = min(WAIT_MS_MAX, max(0, int(timeout_s * 1000)))
        body = admin.WaitRequest(name=stream, beyond=dict(beyond), wait_ms_max=wait_ms)
        [answer] = self._connection.action(admin.WAIT_BEYOND, body, admin.Offsets, wait_s=timeout_s)
        return answer.offsets

    def server_info(self) -> admin.ServerInfo:
        """Version and limits of the broker.

        Raises:
            DisconnectedError: it does not answer.
        """
        [info] = self._connection.action(admin.SERVER_INFO, None, admin.ServerInfo)
        self._server = info
        return info

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
        deduplicate: bool = False,
    ) -> Producer:
        """A producer for a stream; arguments as ``Producer``.

        Raises:
            UnknownStreamError: there is none.
        """
        return Producer(
            self._connection,
            self.stream_info(stream),
            server=self._server or self.server_info(),
            acks=acks,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            delivery_timeout_s=delivery_timeout_s,
            deduplicate=deduplicate,
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
            **options,
        ).reader()

    def open_read(self, stream: str, **options: Any) -> BatchStream:
        """Begin a read that another thread can cancel; arguments as ``read``.

        Raises:
            StrandlineError: as ``read``.
        """
        return BatchStream(self._connection, read_request(stream, **options))

    def subscribe(
        self,
        stream: str,
        *,
        partition: int | None = None,
        start: Place = "latest",
        starts: Mapping[int, int] | None = None,
        reconnect_timeout_s: float = 60.0,
        **options: Any,
    ) -> Subscription:
        """Iterate records as objects, as they are stored.

        Args:
            stream: its name.
            partition: None: all.
            start: as ``read``; the default gives records stored from now on.
            starts: offset by partition, in place of ``start``: where another subscription ended.
            reconnect_timeout_s: how long the broker may stay away before it is an error.
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
        return Subscription(self._connection, request, reconnect_timeout_s=reconnect_timeout_s)

    # Life

    def close(self) -> None:
        """End the connection and its producers; harmless when repeated.

        Raises:
            StrandlineError: an append nobody waited for failed.
        """
        with self._lock:
            appenders, self._appenders = list(self._appenders.values()), {}
        try:
            for appender in appenders:
                appender.close()
        finally:
            self._connection.close()

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
