"""The start and the end of a call: permission, handler, and the status of an error.

Rules: an exception in a handler ends the handler's call and nothing else.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from strandline.broker.access import Access, Caller
from strandline.errors import StrandlineError
from strandline.security.policy import ClientCredentials, Identity
from strandline.security.principal import ANONYMOUS
from strandline.security.tokens import bearer_token
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.grpc_messages import PREFIX_BYTES
from strandline.servers.grpc.methods import Direct, Method
from strandline.servers.grpc.status import GrpcStatus, RpcError, rpc_error
from strandline.servers.metering import Metering, Presence
from strandline.servers.tls import certificate_name

logger = logging.getLogger(__name__)

OPEN_PATHS: Final = b"/grpc.health.v1.Health/"
"""Paths for probes, which have no credentials. The rpcs return a service's health only."""
PUBLISHING: Final = frozenset({b"Publish", b"PublishAsync", b"PublishToSubject", b"Append"})
"""The rpcs of Liftbridge and Beam that publish records."""
DEADLINE_PASSED: Final = "the deadline has passed"


class CallServer:
    """The server of calls: it identifies and meters callers, and runs handlers.

    Args:
        methods: the methods, by path.
        access: identifies callers.
        metering: the meters of principals; None for no metering.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method | Direct],
        access: Access,
        metering: Metering | None = None,
    ) -> None:
        self.methods = methods
        self._access = access
        self._metering = metering
        self._anybody = Caller(access, Identity(ANONYMOUS))

    def message_bytes_max(self, path: bytes) -> int:
        """Return the limit of a received message of a method; 0 for an unknown method."""
        method = self.methods.get(path)
        return method.message_bytes_max if method is not None else 0

    def serve(
        self,
        call: Call,
        headers: Mapping[bytes, bytes],
        *,
        transport: asyncio.BaseTransport | None,
        presence: Presence,
    ) -> None:
        """Start serving a call, or end it with an error.

        Args:
            call: the new call.
            headers: the request's headers.
            transport: the connection's transport.
            presence: the connection's presence.
        """
        path = bytes(headers.get(b":path", b""))
        method = self.methods.get(path)
        if not bytes(headers.get(b"content-type", b"")).startswith(b"application/grpc"):
            call.finish(GrpcStatus.INVALID_ARGUMENT, "this listener speaks gRPC only")
            return
        if method is None:
            call.finish(GrpcStatus.UNIMPLEMENTED, f"unknown method {path.decode(errors='replace')}")
            return
        try:
            call.caller = self._caller(path, headers, transport)
            self._meter(call, path, presence)
        except StrandlineError as error:
            call.abort(rpc_error(error))
            return
        if b"content-length" in headers:  # h2 must see the data to compare its length
            call.is_measured = True
            if int(headers[b"content-length"]) > PREFIX_BYTES + method.message_bytes_max:
                call.finish(GrpcStatus.RESOURCE_EXHAUSTED, "announces more than a message may have")
                return
        loop = asyncio.get_running_loop()
        if call.timeout_s is not None:
            expired = RpcError(GrpcStatus.DEADLINE_EXCEEDED, DEADLINE_PASSED)
            call.timer = loop.call_later(call.timeout_s, call.abort, expired)
        if isinstance(method, Direct):
            _open(call, method)
        else:
            call.task = loop.create_task(_run(call, method))

    def _caller(
        self, path: bytes, headers: Mapping[bytes, bytes], transport: asyncio.BaseTransport | None
    ) -> Caller:
        """Return the principal who makes a call; health checks need no credentials.

        Raises:
            UnauthenticatedError: the caller has no valid credentials.
            NotAllowedError: no rule names the caller.
        """
        access = self._access
        if not access.is_on or self.is_open(path):
            return self._anybody
        header = headers.get(b"authorization")
        token = None if header is None else bearer_token(bytes(header).decode(errors="replace"))
        certificate = certificate_name(transport) if transport is not None else None
        caller = access.identify(ClientCredentials(token, certificate))
        caller.check_known()
        return caller

    def is_known(self, transport: asyncio.BaseTransport | None) -> bool:
        """Return whether a client's certificate identifies it."""
        try:
            self._caller(b"", {}, transport)
        except StrandlineError:
            return False
        return True

    @staticmethod
    def is_open(path: bytes) -> bool:
        """Return whether calls of a method need no credentials."""
        return path.startswith(OPEN_PATHS)

    def _meter(self, call: Call, path: bytes, presence: Presence) -> None:
        """Count a call of an identified caller, and its connection; attach the quota to the call.

        Raises:
            QuotaExceededError: there are too many connections or calls, or earlier publishes have
                used up the quota.
        """
        allowance = self._metering.of(call.caller) if self._metering is not None else None
        if allowance is None:
            return
        presence.note(allowance)
        allowance.check_request()
        if path.rpartition(b"/")[2] in PUBLISHING:
            allowance.check_publish(0)
            call.publishes = allowance
        else:
            call.reads = allowance


def _open(call: Call, method: Direct) -> None:
    """Create the sink that gets the messages of a call."""
    try:
        call.sink = method.open(call)
    except StrandlineError as error:
        call.abort(rpc_error(error))


async def _run(call: Call, method: Method) -> None:
    """Run the handler of a call to its end, and end the call with its status."""
    try:
        await method.handle(call)
        call.finish(GrpcStatus.OK)
    except asyncio.CancelledError:
        call.finish(GrpcStatus.CANCELLED, "the call was stopped")
    except RpcError as error:
        call.finish(error.status, error.text)
    except StrandlineError as error:
        ended = rpc_error(error)
        call.finish(ended.status, ended.text)
    except Exception:
        logger.exception("a gRPC call failed")
        call.fail()
