"""The standard gRPC health check.

A service is SERVING while the broker is ready; the empty name stands for the whole server.

Rules: any client may call it without credentials. Watchers cost almost nothing while the health
    does
not change: one check per second serves all of them.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from strandline.servers.grpc._generated import health_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.methods import Method, server_stream, unary
from strandline.servers.grpc.status import GrpcStatus, RpcError

WATCH_INTERVAL_S: Final = 1.0
MESSAGE_BYTES_MAX: Final = 1024
"""Enough for the name of a service, the only field of a request."""


class HealthService:
    """Answers health checks.

    Args:
        services: the names of the services; the empty name is always known.
        is_ready: returns whether the broker is ready.
    """

    def __init__(self, services: Collection[str], is_ready: Callable[[], bool]) -> None:
        self._services = {"", *services}
        self._is_ready = is_ready
        self._known = False
        """Whether the broker was ready at the last check."""
        self._changed = asyncio.Event()
        """Set when the health changes, and then replaced."""
        self._watching = 0
        self._timer: asyncio.TimerHandle | None = None

    def methods(self) -> dict[bytes, Method]:
        """Return the rpcs by path."""
        methods = {
            b"/grpc.health.v1.Health/Check": unary(pb.HealthCheckRequest, self._check),
            b"/grpc.health.v1.Health/Watch": server_stream(pb.HealthCheckRequest, self._watch),
        }
        return {
            path: method._replace(message_bytes_max=MESSAGE_BYTES_MAX)
            for path, method in methods.items()
        }

    def _response(self, service: str, *, is_ready: bool) -> pb.HealthCheckResponse:
        if service not in self._services:
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
        serving, not_serving = (
            pb.HealthCheckResponse.SERVING,
            pb.HealthCheckResponse.NOT_SERVING,
        )
        return pb.HealthCheckResponse(status=serving if is_ready else not_serving)

    async def _check(self, request: pb.HealthCheckRequest, _: Call) -> pb.HealthCheckResponse:
        if request.service not in self._services:
            raise RpcError(GrpcStatus.NOT_FOUND, f"unknown service {request.service!r}")
        return self._response(request.service, is_ready=self._is_ready())

    async def _watch(self, request: pb.HealthCheckRequest, call: Call) -> None:
        """Send the status, and send it again whenever it changes."""
        said: pb.HealthCheckResponse | None = None
        self._watching += 1
        try:
            self._look()
            if self._timer is None:
                self._look_later()
            while True:
                now = self._response(request.service, is_ready=self._known)
                if now != said:
                    call.send(now)
                    said = now
                await self._changed.wait()
        finally:
            self._watching -= 1

    def _look(self) -> None:
        """Check the status, and wake the watchers if it has changed."""
        is_ready = self._is_ready()
        if is_ready != self._known:
            self._known = is_ready
            self._changed.set()
            self._changed = asyncio.Event()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(WATCH_INTERVAL_S, self._look_again)

    def _look_again(self) -> None:
        """Schedule the next check while there are watchers."""
        self._timer = None
        if self._watching:
            self._look()
            self._look_later()
