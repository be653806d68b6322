"""A connection to one broker: its address, calls, and the translation of errors.

gRPC connects on first use and reconnects after a loss. This module sets how eagerly it does so,
limits the size of messages and translates every failure. Safe to use from several threads.
"""

import os
import re
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from strandline.api.admin import PartitionInfo, StreamInfo
from strandline.api.command import AdminCommand
from strandline.api.put import PutRequest
from strandline.api.status import from_flight
from strandline.api.tickets import Bound, ReadRequest, check_request
from strandline.api.wire import decode, encode
from strandline.client.deadline import limited
from strandline.client.tls import Credentials, resolve_token
from strandline.errors import (
    ClientClosedError,
    InvalidRequestError,
    RequestTimeoutError,
)
from strandline.malloc_tuning import keep_freed_memory

DEFAULT_PORT = 9293
MESSAGE_BYTES_MAX = 256 << 20
OPTIONS: list[tuple[str, int]] = [
    # Separate connections, so that clients in one process do not share the back-off of a broken
    # one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Detects a dead machine. Not more often, since servers close connections that ping every 300 s.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]
_ADDRESS = re.compile(
    r"(?:(?P<scheme>grpc|grpc\+tcp|grpc\+tls|strandline|tls)://)?"
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\[\]\s]*)(?::(?P<port>\d{1,5}))?/?"
)
_ALIGNED = (
    # gRPC leaves a message at any memory address. Arrow's own computations warn about each such
    # buffer. Versions without ``ensure_alignment`` copy the buffers anyway.
    pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
    if hasattr(pa.ipc, "Alignment")
    else pa.ipc.IpcReadOptions()
)
Q = TypeVar("Q")
A = TypeVar("A")
_has_used_grpc = threading.Event()
_lacks_threads = threading.Event()
"""Set in a process forked from one that has used gRPC: gRPC's threads do not exist in it, so calls
would hang beyond every timeout."""


def _was_forked() -> None:
    if _has_used_grpc.is_set():
        _lacks_threads.set()


os.register_at_fork(after_in_child=_was_forked)


def parse_address(address: str) -> tuple[str, str]:
    """Parse an address; return its display form and its Flight URI.

    Args:
        address: ``host:port``, ``host``, ``grpc://host:port``, or ``tls://host:port`` with TLS.

    Returns:
        ``host:port`` and the URI.

    Raises:
        InvalidRequestError: the address has another form.
    """
    found = _ADDRESS.fullmatch(str(address).strip())
    if found is None or not (found["host"] or found["port"]):
        raise InvalidRequestError(
            f"{address!r} is not an address; write 'host:port', for example "
            f"'127.0.0.1:{DEFAULT_PORT}'"
        )
    host = found["host"] or "127.0.0.1"
    port = int(found["port"] or DEFAULT_PORT)
    if not 0 < port < 1 << 16:
        raise InvalidRequestError(f"port {port} of {address!r} is not between 1 and 65535")
    scheme = "grpc+tls" if found["scheme"] in ("grpc+tls", "tls") else "grpc+tcp"
    return f"{host}:{port}", f"{scheme}://{host}:{port}"


class ResolvedRange(NamedTuple):
    """The range of a partition as a broker resolved it."""

    start: Bound
    stop: Bound | None
    """None: the read has no end."""
    partition: PartitionInfo


class ResolvedRead(NamedTuple):
    """A read, resolved by GetFlightInfo."""

    stream: StreamInfo
    ranges: dict[int, ResolvedRange]
    """The range of each partition."""

    @property
    def metadata_index(self) -> int:
        """Return the index of the newest metadata entry that the broker has applied."""
        return self.stream.metadata_index


class ActiveRead(Protocol):
    """A read in progress; see ``reading.BatchStream``."""

    def cancel(self) -> None:
        """End the read; any thread may call this."""
        ...


class BrokerConnection:
    """Calls to one broker.

    Args:
        address: in a form that ``parse_address`` accepts.
        timeout_s: the timeout of calls other than reads and puts.
        credentials: a token, and files for TLS; by default from the environment.

    Raises:
        InvalidRequestError: the address is malformed, or lacks TLS although a certificate is given.
        InvalidConfigError: a file of the credentials cannot be used.
    """

    def __init__(
        self, address: str, *, timeout_s: float, credentials: Credentials | None = None
    ) -> None:
        self.address, self._uri = parse_address(address)
        self._timeout_s = timeout_s
        self._is_tls = self._uri.startswith("grpc+tls:")
        credentials = credentials or Credentials()
        if credentials.has_files and not self._is_tls:
            raise InvalidRequestError(f"certificates need TLS; connect to tls://{self.address}")
        if self._is_tls and not credentials.has_files:
            credentials = Credentials.resolve(token=credentials.token)
        elif not credentials.token:
            credentials = credentials._replace(token=resolve_token(None))
        self._credentials = credentials
        self._tls = credentials.options()
        self._lock = threading.Lock()
        self._flight: fl.FlightClient | None = None
        self._reads: weakref.WeakSet[ActiveRead] = weakref.WeakSet()
        self._is_closed = False

    def sibling(self, address: str, *, timeout_s: float | None = None) -> "BrokerConnection":
        """Return a connection to another broker of the cluster, with the same credentials."""
        timeout_s = timeout_s or self._timeout_s
        if self._is_tls:
            address = f"tls://{parse_address(address)[0]}"
        return BrokerConnection(address, timeout_s=timeout_s, credentials=self._credentials)

    def action(
        self,
        command: AdminCommand[Q, A],
        request: Q,
        *,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> list[A]:
        """Run an admin command.

        Args:
            command: one of ``api.commands.COMMANDS``.
            request: the command's request; None if it has none.
            wait_s: how long the request lets the broker wait before it answers.
            timeout_s: the timeout in addition to ``wait_s``; None: the connection's.

        Raises:
            StrandlineError: the broker's error, or the broker did not answer.
        """
        data = b"" if request is None else encode(request)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        headers = self._credentials.headers
        options = fl.FlightCallOptions(timeout=limited(limit_s + wait_s), headers=headers)
        with self.translated():
            results = list(self.flight().do_action(fl.Action(command.name, data), options))
        most = command.answer_bytes_max
        bodies = (each.body.to_pybytes() for each in results)
        return [decode(body, command.result, what="answer", bytes_max=most) for body in bodies]

    def read(self, request: ReadRequest) -> fl.FlightStreamReader:
        """Begin a read; return when its schema has arrived.

        Raises:
            StrandlineError: the broker's error, or the broker did not answer.
        """
        check_request(request)
        flight, ticket = self.flight(), fl.Ticket(encode(request))
        options = fl.FlightCallOptions(headers=self._credentials.headers, read_options=_ALIGNED)
        beginning: Future[fl.FlightStreamReader] = Future()

        def begin() -> None:
            try:
                stream = flight.do_get(ticket, options)
                stream.schema  # noqa: B018 - waits until the broker accepts the ticket
                beginning.set_result(stream)
            except Exception as error:  # noqa: BLE001 - raised where the read is waited for
                beginning.set_exception(error)

        # On a thread, since pyarrow blocks Ctrl-C and deadlines. A gRPC deadline would limit the
        # whole read, not only the wait for its schema.
        threading.Thread(target=begin, name="strandline-begin", daemon=True).start()
        limit_s = limited(self._timeout_s)
        with self.translated():
            try:
                return beginning.result(limit_s)
            except TimeoutError as error:
                beginning.add_done_callback(_cancel)
                raise RequestTimeoutError(
                    f"{self.address} did not answer a read within {limit_s:.3g} s; retry, or raise "
                    "timeout_s"
                ) from error

    def resolve(self, request: ReadRequest, *, timeout_s: float) -> ResolvedRead:
        """Resolve a read: return its range in each partition, and the broker's view of the stream.

        Raises:
            StrandlineError: the broker's error, or the broker did not answer.
        """
        headers = self._credentials.headers
        options = fl.FlightCallOptions(timeout=limited(timeout_s), headers=headers)
        descriptor = fl.FlightDescriptor.for_command(encode(request))
        with self.translated():
            info = self.flight().get_flight_info(descriptor, options)
        stream = decode(bytes(info.app_metadata), StreamInfo, what="answer")
        ranges = {}
        for endpoint in info.endpoints:
            part = decode(bytes(endpoint.app_metadata), PartitionInfo, what="answer")
            ticket = decode(endpoint.ticket.ticket, ReadRequest, what="answer")
            ranges[part.partition] = ResolvedRange(ticket.start, ticket.stop, part)
        return ResolvedRead(stream, ranges)

    def put(
        self, request: PutRequest, schema: pa.Schema
    ) -> tuple[fl.FlightStreamWriter, fl.FlightMetadataReader]:
        """Begin a put; return the writer of batches and the reader of acks."""
        descriptor = fl.FlightDescriptor.for_command(encode(request))
        options = fl.FlightCallOptions(headers=self._credentials.headers)
        with self.translated():
            writer, reader = self.flight().do_put(descriptor, schema, options)
        return writer, reader

    def flight(self) -> fl.FlightClient:
        """Return the Flight client behind this connection.

        Raises:
            ClientClosedError: the connection is closed.
            InvalidRequestError: the process was forked from a process that had used a client.
        """
        if _lacks_threads.is_set():
            raise InvalidRequestError(
                "gRPC does not work in a process forked from one that had used a client: start "
                "processes with multiprocessing's 'spawn', or connect after forking"
            )
        with self._lock:
            self.check_open()
            if self._flight is None:
                keep_freed_memory()
                self._flight = fl.FlightClient(self._uri, generic_options=OPTIONS, **self._tls)
                _has_used_grpc.set()
            return self._flight

    def check_open(self) -> None:
        """Raise an error if the connection is closed.

        Raises:
            ClientClosedError: the connection is closed.
        """
        if self._is_closed:
            raise ClientClosedError(f"this client of {self.address} is closed; connect again")

    def has_begun(self, read: ActiveRead) -> None:
        """Register a read, so that closing the connection cancels it.

        Raises:
            ClientClosedError: the connection was closed meanwhile.
        """
        with self._lock:
            self._reads.add(read)
            is_closed = self._is_closed
        if is_closed:
            read.cancel()
            self.check_open()

    def reset(self) -> None:
        """Reconnect at the next call; calls in progress are not affected."""
        with self._lock:
            self._flight = None

    def close(self) -> None:
        """Close the connection and cancel its reads; has no effect when repeated."""
        with self._lock:
            self._is_closed = True
            flight, self._flight = self._flight, None
            reads = list(self._reads)
        for read in reads:
            read.cancel()
        if flight is not None:
            flight.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate the exceptions of Flight into ``StrandlineError``."""
        try:
            yield
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            self.check_open()  # such errors may also come from closing the connection
            raise from_flight(error, address=self.address) from error


def _cancel(beginning: "Future[fl.FlightStreamReader]") -> None:
    """Cancel a read that began only after its caller had timed out."""
    if beginning.exception() is None:
        beginning.result().cancel()
