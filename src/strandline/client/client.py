"""The synchronous client of a broker or a cluster, safe to use from several threads.

It finds leaders by itself: the address of any broker is enough. Several addresses help while one of
the brokers cannot be reached.
"""

import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from strandline.api import admin
from strandline.api.groups import GROUPS_STREAM
from strandline.client.access import AccessControl
from strandline.client.arguments import check_options, wait
from strandline.client.close_on_exit import ClosesOnExit
from strandline.client.cluster_client import ClusterClient
from strandline.client.consumer.consumer import Consumer, Options
from strandline.client.consumer.groups import Groups
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.deadline import within
from strandline.client.producer.producer import Headers, Producer
from strandline.client.quotas import Quotas
from strandline.client.reader.read_calls import ReadCalls
from strandline.client.reader.results import Ack, AckFuture, BatchAck
from strandline.client.schemas import Schemas
from strandline.client.stream_calls import StreamAdminCalls
from strandline.client.tls import Credentials
from strandline.client.transactions.transaction_context import TransactionContext
from strandline.client.transactions.transactional import TransactionalClient
from strandline.config import Acks
from strandline.errors import RequestTimeoutError

TIMEOUT_S = 10.0
APPEND_TIMEOUT_S = 35.0
"""A little longer than a producer tries to deliver a record."""
R = TypeVar("R")


def connect(
    address: str,
    *,
    timeout_s: float = TIMEOUT_S,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    token: str | None = None,
) -> "Client":
    """Connect to a broker, and with it to its cluster.

    Args:
        address: ``host:port`` of Arrow Flight, or ``tls://host:port`` with TLS; several addresses,
            separated by commas, help while one of the brokers cannot be reached.
        timeout_s: timeout of calls other than reads and appends.
        ca: PEM file of the authority that signs the brokers' certificates; by default
            ``STRANDLINE_CA``, or the authorities that gRPC trusts.
        certificate: PEM file of the client's certificate, for brokers that require one; by default
            ``STRANDLINE_CERTIFICATE``.
        key: PEM file of the certificate's key; by default ``STRANDLINE_KEY``.
        token: identifies the client to brokers with access control; by default
            ``STRANDLINE_TOKEN``.

    Raises:
        DisconnectedError: no broker answers at the address, or its certificate is not trusted.
        InvalidRequestError: the address is malformed, or lacks TLS although a certificate is given.
        InvalidConfigError: a certificate or key cannot be used.
        UnauthenticatedError: the broker requires authentication, and the token or certificate is
            missing or wrong.
        NotAllowedError: the client has no permissions on the broker.
    """
    credentials = Credentials(token=token or "")
    if ca or certificate or key:
        credentials = Credentials.resolve(ca, certificate, key, token=token)
    client = Client(address, timeout_s=timeout_s, credentials=credentials)
    try:
        client.server_info()
    except BaseException:
        client.close()
        raise
    return client


class Client(StreamAdminCalls, ReadCalls, TransactionalClient, ClosesOnExit):
    """A client of a broker or a cluster. Use it as a context manager, or ``close`` it.

    Args:
        address: as for ``connect``.
        timeout_s: as for ``connect``.
        credentials: a token, and files for TLS; by default from the environment.

    Raises:
        InvalidRequestError, InvalidConfigError: as for ``connect``.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = TIMEOUT_S,
        credentials: Credentials | None = None,
    ) -> None:
        self._brokers = ClusterClient(address, timeout_s=timeout_s, credentials=credentials)
        self._lock = threading.Lock()
        self._server: admin.ServerInfo | None = None
        self._appenders: dict[str, Producer] = {}
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        """The open producers; a producer that is garbage-collected closes itself."""
        self._transactional_producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        """The producers of transactions; the transaction reports their failures."""

    @property
    def address(self) -> str:
        """Return ``host:port`` of the broker that answered last."""
        return self._brokers.home

    # The broker

    def server_info(self) -> admin.ServerInfo:
        """Return the version and limits of the broker.

        Raises:
            DisconnectedError: the broker does not answer.
        """
        info = self._server = self._brokers.server_info()
        return info

    @property
    def brokers(self) -> ClusterClient:
        """Return the brokers, for running an admin command at one of them, or at all."""
        return self._known

    @property
    def _known(self) -> ClusterClient:
        """Return the brokers, after finding out whether this is a cluster."""
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
        timeout_s: float = APPEND_TIMEOUT_S,
    ) -> Ack:
        """Append one record and wait for its ack; return its offset.

        For many records use ``producer``, which batches them.

        Args:
            stream: the stream's name.
            value: the payload; this and the next five are as for ``Producer.append``.
            key: for compaction and partitioning.
            subject: the NATS subject; by default the stream's.
            headers: a mapping, or (name, value) pairs.
            partition: the partition to append to.
            message_id: deduplicates a repeated append to the same partition.
            timeout_s: how long to wait for the ack.

        Raises:
            RequestTimeoutError: no ack in time; the record may have been stored.
            StrandlineError: the record was not stored.
        """
        with within(wait(timeout_s, "timeout_s")) as deadline_s:
            future = self.appender(stream).append(
                value,
                key=key,
                subject=subject,
                headers=headers,
                partition=partition,
                message_id=message_id,
            )
        return _wait(future, deadline_s, timeout_s=timeout_s)

    def append_batch(
        self,
        stream: str,
        data: Any,
        *,
        partition: int | None = None,
        timeout_s: float = 60.0,
    ) -> BatchAck:
        """Append the rows of a table and wait for their acks.

        Args:
            stream: the stream's name.
            data: the table, as for ``Producer.append_batch``.
            partition: the partition to append to; by default each row is routed by itself.
            timeout_s: how long to wait for the acks.

        Raises:
            RequestTimeoutError: no ack in time; the rows may have been stored.
            StrandlineError: not all rows were stored; a note on the error says how many were.
        """
        with within(wait(timeout_s, "timeout_s")) as deadline_s:
            future = self.appender(stream).append_batch(data, partition=partition)
        return _wait(future, deadline_s, timeout_s=timeout_s)

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
        """Return a producer for a stream; the arguments are those of ``Producer``.

        Raises:
            UnknownStreamError: there is no such stream.
        """
        made = self._producer(
            stream,
            acks=acks,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            delivery_timeout_s=delivery_timeout_s,
            idempotent=idempotent,
        )
        return self._noted(self._producers, made)

    def _transactional_producer(self, stream: str, transaction: TransactionContext) -> Producer:
        return self._noted(
            self._transactional_producers, self._producer(stream, transaction=transaction)
        )

    def _producer(self, stream: str, **options: Any) -> Producer:
        described = self._described(stream)
        server = self._server or self.server_info()
        return Producer(self._known, described, server=server, **options)

    def _noted(self, where: "weakref.WeakSet[Producer]", made: Producer) -> Producer:
        with self._lock:
            where.add(made)
        return made

    def _forget_appender(self, stream: str) -> None:
        with self._lock:
            appender = self._appenders.pop(stream, None)
        if appender is not None:
            appender.close()

    def appender(self, stream: str) -> Producer:
        """Return the producer behind ``append``: no linger; calls during a send share a batch.

        Raises:
            UnknownStreamError: there is no such stream.
        """
        with self._lock:
            found = self._appenders.get(stream)
            if found is not None and not found.is_usable:
                found.abandon()
                del self._appenders[stream]
                found = None
        if found is not None:
            return found
        made = self.producer(stream, linger_ms=0)
        with self._lock:
            found = self._appenders.setdefault(stream, made)
        if found is not made:
            made.close()
        return found

    # Consumer groups

    def consumer(self, group: str, streams: str | Iterable[str], **options: Any) -> Consumer:
        """Join a consumer group, whose members share the partitions of its streams.

        Args:
            group: the group's name.
            streams: the stream to consume, or several.
            **options: the fields of ``consumer.Options``, such as ``commit_interval_s``.

        Raises:
            UnknownStreamError: there is no such stream.
            StrandlineError: the group's coordinator rejects the consumer, or cannot be reached.
        """
        check_options("consumer", options, Options._fields)
        names = [streams] if isinstance(streams, str) else streams
        return Consumer(
            self, self.group_coordinator, group, streams=names, options=Options(**options)
        )

    @property
    def access(self) -> AccessControl:
        """Return the access rules and tokens."""
        return AccessControl(self._known)

    @property
    def quotas(self) -> Quotas:
        """Return the quotas of principals."""
        return Quotas(self._known)

    @property
    def schemas(self) -> Schemas:
        """Return the schemas of streams: set, list and delete them."""
        return Schemas(self._known)

    @property
    def groups(self) -> Groups:
        """Return the consumer groups: list, describe, reset and delete them."""
        return Groups(self, self.group_coordinator)

    @property
    def group_coordinator(self) -> CoordinatorClient:
        """Return the coordinator of consumer groups; ``LogOffsetStore`` needs it."""
        return CoordinatorClient(self._known, GROUPS_STREAM)

    # Closing

    def close(self) -> None:
        """Close the connections and everything made from this client; has no effect when repeated.

        Producers are flushed first. Reads, subscriptions, consumers and open transactions raise
        ``ClientClosedError`` from then on; an open transaction is aborted at its timeout.

        Raises:
            StrandlineError: an append failed, and its future was not examined.
        """
        with self._lock:
            producers, self._appenders = list(self._producers), {}
            transaction = list(self._transactional_producers)
        with ExitStack() as closing:  # closes all, even if one of them raises
            closing.callback(self._brokers.close)
            for producer in transaction:
                closing.callback(producer.abandon)
            for producer in producers:
                closing.callback(producer.close)

    def abandon(self) -> None:
        """Close at once, without flushing; appends in flight may or may not be stored."""
        with self._lock:
            producers, self._appenders = [*self._producers, *self._transactional_producers], {}
        for producer in producers:
            producer.abandon()
        self._brokers.close()

    def _end_context(self, _: BaseException | None, /) -> None:
        self.close()

    def __repr__(self) -> str:
        """Return a text with the address."""
        return f"Client({self.address!r})"


def _wait(future: AckFuture[R], deadline_s: float, *, timeout_s: float) -> R:
    """Return a future's result; raise ``RequestTimeoutError`` if it takes too long."""
    try:
        return future.result(max(0.0, deadline_s - time.monotonic()))
    except TimeoutError as error:
        raise no_ack(timeout_s) from error


def no_ack(timeout_s: float) -> RequestTimeoutError:
    """Return the error of an append without an ack in time."""
    return RequestTimeoutError(
        f"no ack within {timeout_s:g} s; whether it was stored is unknown: give a message id, and "
        "append it again under the same one"
    )
