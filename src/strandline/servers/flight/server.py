"""The Arrow Flight listener, the native protocol of readers, bulk writers and administrators.

gRPC's own threads run the calls and may block; changes of the broker run on its loop. This module
only dispatches: ``reader``, ``writer``, ``admin`` and ``info`` do the work.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from strandline.api.commands import COMMANDS
from strandline.api.monitoring import ConnectionInfo
from strandline.api.put import PutRequest
from strandline.api.required_permissions import known_stream
from strandline.api.tickets import ReadRequest, decode_ticket
from strandline.api.wire import decode
from strandline.broker.access import Access, Caller
from strandline.broker.broker import Broker
from strandline.broker.stream import Stream
from strandline.config import BrokerConfig, bracketed
from strandline.errors import InvalidConfigError
from strandline.security.acl import Resource
from strandline.servers.flight.caller import caller_of, middleware
from strandline.servers.flight.commands import CommandDispatcher
from strandline.servers.flight.connections import FlightConnections
from strandline.servers.flight.guard import typed_errors
from strandline.servers.flight.info import Here, flight_info, request_of
from strandline.servers.flight.lifecycle import ServerLifecycle
from strandline.servers.flight.plan import ends_needed, plan_read
from strandline.servers.flight.reader import ReadSession
from strandline.servers.flight.sockets import cut_connections
from strandline.servers.flight.writer import PutSession
from strandline.servers.metering import Metering
from strandline.servers.tls import ServerTls, load_tls

logger = logging.getLogger(__name__)

GRACE_S = 2.0
"""How long calls may take to end by themselves when the broker stops."""
CUT_INTERVAL_S = 0.05


class CallMiddleware(NamedTuple):
    """The checks that every call must pass."""

    access: Access
    metering: Metering


class FlightFrontEnd:
    """The Flight listener of a broker.

    Args:
        broker: the broker that is served.
        config: the host, port and certificate.
        metering: the meters of principals, if shared with other servers.
    """

    def __init__(
        self, broker: Broker, config: BrokerConfig, metering: Metering | None = None
    ) -> None:
        self._broker = broker
        self._checks = CallMiddleware(Access(config, broker), metering or Metering(broker))
        self._tls = config.tls
        self._host = config.host
        self.port = config.flight_port
        self._server: FlightServer | None = None
        self._connections = FlightConnections(broker.clock, self._checks.metering.connections)

    async def start(self) -> None:
        """Start listening.

        Raises:
            InvalidConfigError: the port is not available, or a certificate cannot be used.
        """
        # At the first call pyarrow looks for pandas, which takes file descriptors. Call it now,
        # because connections may have used up the descriptors later.
        await asyncio.to_thread(pa.array, [])
        lifecycle = ServerLifecycle(self._broker)
        tls = load_tls(self._tls)
        address = (self._host, self.port)
        checks = self._checks
        self._server = _listen(self._broker, lifecycle, address, tls=tls, checks=checks)
        self._server.connections = self._connections
        self.port = self._server.port
        self._connections.start(self.port)
        how = "with TLS " if tls is not None else ""
        logger.info("Arrow Flight listens %son %s:%d", how, self._host, self.port)

    async def stop(self) -> None:
        """End every call, within a few seconds whatever clients do, and close the listener."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(self._connections.stop)
            await asyncio.to_thread(server.stop)


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """A Flight server that dispatches calls.

    Args:
        broker: the broker that is served.
        lifecycle: the state shared by the calls.
        address: the host and port to listen on.
        tls: the certificate; None for clear text.
        checks: the checks that every call must pass.
    """

    def __init__(
        self,
        broker: Broker,
        lifecycle: ServerLifecycle,
        address: tuple[str, int],
        *,
        tls: ServerTls | None,
        checks: CallMiddleware,
    ) -> None:
        access, (host, port) = checks.access, address
        self._scheme = "grpc+tcp" if tls is None else "grpc+tls"
        asks_clients = tls is not None and bool(tls.authority)
        guards = middleware(access, has_certificates=asks_clients)
        if tls is None:
            super().__init__(fl.Location.for_grpc_tcp(bracketed(host), port), middleware=guards)
        else:
            super().__init__(
                fl.Location.for_grpc_tls(bracketed(host), port),
                tls_certificates=[(tls.certificate, tls.key)],
                verify_client=asks_clients,
                root_certificates=tls.authority or None,
                middleware=guards,
            )
        self._broker = broker
        self._checks = checks
        self._lifecycle = lifecycle
        self._host = host
        self._commands = CommandDispatcher(broker, lifecycle, self._clients)
        self.connections: FlightConnections | None = None
        """The connections of the listener; None before it listens."""

    def stop(self) -> None:
        """End the calls and the listener; blocks for a few seconds at most."""
        self._lifecycle.stopping.set()
        self._lifecycle.notify()
        deadline = self._lifecycle.now_ms() + GRACE_S * 1e3
        pause = threading.Event()
        while self._lifecycle.busy > 0 and self._lifecycle.now_ms() < deadline:
            pause.wait(CUT_INTERVAL_S / 5)
        self._lifecycle.gave_up.set()
        port = self.port
        closing = threading.Thread(target=self.shutdown, name="flight-shutdown", daemon=True)
        closing.start()
        closing.join(CUT_INTERVAL_S)
        deadline = self._lifecycle.now_ms() + GRACE_S * 1e3
        while closing.is_alive() and self._lifecycle.now_ms() < deadline:
            cut_connections(port)
            closing.join(CUT_INTERVAL_S)
        if closing.is_alive():
            logger.warning("Arrow Flight still has calls that do not end")

    @typed_errors
    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        """Stream the records that a ticket names."""
        self._lifecycle.check()
        caller = self._caller(context)
        request = decode_ticket(ticket.ticket)
        resource = Resource("stream", request.stream)
        caller.check(resource, "read")
        plan = plan_read(request, self._stream(request, context))
        session = ReadSession(
            plan,
            self._lifecycle,
            telemetry=self._broker.telemetry,
            is_cancelled=context.is_cancelled,
            check_allowed=lambda: caller.check(resource, "read"),
            allowance=self._checks.metering.of(caller),
            connection=lambda: self._call(context),
        )
        return session.stream()

    @typed_errors
    def do_put(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        """Append batches and acknowledge each when it is durable."""
        self._lifecycle.check()
        caller = self._caller(context)
        request = _put_request(descriptor)
        resource = Resource("stream", request.stream)
        caller.check(resource, "publish")
        session = PutSession(
            self._broker,
            request,
            self._lifecycle,
            send_ack=writer.write,
            is_cancelled=context.is_cancelled,
            check_allowed=lambda: caller.check(resource, "publish"),
            check_producer=caller.check_producer,
            allowance=self._checks.metering.of(caller),
        )
        with self._call(context):
            session.run(reader.read_chunk)

    @typed_errors
    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[bytes]:
        """Run an admin action."""
        body = action.body.to_pybytes() if action.body is not None else b""
        caller = self._caller(context)
        with self._call(context):
            return self._commands.run(
                action.type, body, caller=caller, is_cancelled=context.is_cancelled
            )

    @typed_errors
    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        """List every admin action."""
        self._caller(context).check_known()
        return [(name, command.description) for name, command in COMMANDS.items()]

    @typed_errors
    def get_flight_info(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.FlightInfo:
        """Describe a read, one endpoint per partition."""
        request = self._readable(context, descriptor)
        return self._info(request, self._stream(request, context), descriptor)

    @typed_errors
    def get_schema(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.SchemaResult:
        """Return the schema of a read."""
        request = self._readable(context, descriptor)
        return fl.SchemaResult(plan_read(request, self._broker.stream(request.stream)).schema)

    @typed_errors
    def list_flights(
        self, context: fl.ServerCallContext, criteria: bytes
    ) -> Iterator[fl.FlightInfo]:
        """List every stream whose name begins with the criteria."""
        caller = self._caller(context)
        caller.check_known()
        self._broker.check_metadata()
        found = [
            self._info(ReadRequest(stream=s.name), s, fl.FlightDescriptor.for_path(s.name))
            for s in self._broker.streams()
            if s.name.encode().startswith(criteria) and caller.has(known_stream(s.name))
        ]
        return iter(found)

    def _caller(self, context: fl.ServerCallContext) -> Caller:
        """Identify the caller; every method calls this first.

        Raises:
            UnauthenticatedError: the caller has no valid credentials.
            QuotaExceededError: the caller has made too many requests.
        """
        caller = caller_of(context, self._checks.access)
        allowance = self._checks.metering.of(caller)
        if allowance is not None:
            allowance.check_request()
        if self.connections is not None:
            self.connections.note_call(context, caller.principal.name)
        return caller

    def _clients(self) -> list[ConnectionInfo]:
        """Return the clients of all listeners of the broker."""
        return [] if self.connections is None else self.connections.clients()

    def _call(self, context: fl.ServerCallContext) -> AbstractContextManager[None]:
        """Return a context that marks the connection of a long call as in use."""
        return nullcontext() if self.connections is None else self.connections.call(context)

    def _readable(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> ReadRequest:
        """Return the read that a descriptor describes, if the caller may make it.

        Raises:
            UnauthenticatedError, NotAllowedError: the caller may not read the stream.
        """
        caller = self._caller(context)
        request = request_of(descriptor)
        caller.check(Resource("stream", request.stream), "read")
        return request

    def _stream(self, request: ReadRequest, context: fl.ServerCallContext) -> Stream:
        """Return the stream of a read, after waiting for the ends that the read depends on.

        Raises:
            StrandlineError: the stream does not exist, or an end did not become known in time.
        """
        if request.of_copy:
            return self._broker.copy_of(request.stream)
        stream = self._broker.stream(request.stream)
        self._lifecycle.wait_until_caught_up(ends_needed(request, stream), context.is_cancelled)
        return stream

    def _info(
        self, request: ReadRequest, stream: Stream, descriptor: fl.FlightDescriptor
    ) -> fl.FlightInfo:
        here = Here(self._broker, self._location(), self._scheme)
        return flight_info(request, stream, descriptor=descriptor, here=here)

    def _location(self) -> str:
        """Return this broker's address for clients, or "this connection" if it listens on all."""
        if self._host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            return "arrow-flight-reuse-connection://?"
        return f"{self._scheme}://{bracketed(self._host)}:{self.port}"


def _put_request(descriptor: fl.FlightDescriptor) -> PutRequest:
    """Return the target of a put from a command's JSON or, as for reads, from a path."""
    if descriptor.descriptor_type == fl.DescriptorType.CMD:
        return decode(descriptor.command, PutRequest, what="put command")
    request = request_of(descriptor)
    return PutRequest(stream=request.stream, partition=request.partition)


def _listen(
    broker: Broker,
    lifecycle: ServerLifecycle,
    address: tuple[str, int],
    *,
    tls: ServerTls | None,
    checks: CallMiddleware,
) -> FlightServer:
    """Return a listening server.

    Raises:
        InvalidConfigError: the address cannot be bound; gRPC itself would only log the reason.
    """
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise InvalidConfigError(
            f"cannot listen on {host}:{port} for Arrow Flight ({error.strerror}); "
            "choose another flight_port, or 0 for a free one"
        ) from error
    return FlightServer(broker, lifecycle, address, tls=tls, checks=checks)
