"""Start and end of a call: permission, handler, and the status of errors.

Rules: an exception of a handler ends its call, and nothing else.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from strandline.errors import StrandlineError
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.grpc_messages import PREFIX_BYTES
from strandline.servers.grpc.methods import Direct, Method
from strandline.servers.grpc.status import GrpcStatus, RpcError, rpc_error
from strandline.servers.metering import Presence

if TYPE_CHECKING:
    from strandline.servers.grpc.listener import GrpcListener

logger = logging.getLogger(__name__)

DEADLINE_PASSED: Final = "the deadline has passed"


def serve(
    call: Call,
    headers: Mapping[bytes, bytes],
    *,
    listener: "GrpcListener",
    transport: asyncio.BaseTransport | None,
    presence: Presence,
) -> None:
    """Start serving a call, or end it with an error.

    Args:
        call: the new call.
        headers: the request's headers.
        listener: has the methods and identifies callers.
        transport: the connection's transport.
        presence: the connection's presence.
    """
    path = bytes(headers.get(b":path", b""))
    method = listener.methods.get(path)
    if not bytes(headers.get(b"content-type", b"")).startswith(b"application/grpc"):
        call.finish(GrpcStatus.INVALID_ARGUMENT, "this listener speaks gRPC only")
        return
    if method is None:
        call.finish(GrpcStatus.UNIMPLEMENTED, f"unknown method {path.decode(errors='replace')}")
        return
    try:
        call.caller = listener.caller(path, headers, transport)
        listener.meter(call, path, presence)
    except StrandlineError as error:
        call.abort(rpc_error(error))
        return
    if b"content-length" in headers:  # h2 compares it with the data, so h2 must see them
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


def _open(call: Call, method: Direct) -> None:
    """Pass a call's messages directly to its sink."""
    try:
        call.sink = method.open(call)
    except StrandlineError as error:
        call.abort(rpc_error(error))


async def _run(call: Call, method: Method) -> None:
    """Run a call's handler to its end."""
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
