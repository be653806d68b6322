"""The standard health check of gRPC.

A service is SERVING while the broker is ready; the empty name stands for the whole server.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from strandline.frontends.grpc._generated import health_pb2 as pb
from strandline.frontends.grpc.calls import Call, Method, server_stream, unary
from strandline.frontends.grpc.status import RpcError, Status

WATCH_INTERVAL_S: Final = 1.0
MESSAGE_BYTES_MAX: Final = 1024
"""Anybody may ask, who has shown nothing: a request has the name of a service, and no more."""


class HealthService:
    """Answers health checks.

    Args:
        services: the names that are known beside the empty one.
        is_ready: whether the broker serves.
    """

    def __init__(self, services: Collection[str], is_ready: Callable[[], bool]) -> None:
        self._services = {"", *services}
        self._is_ready = is_ready

    def methods(self) -> dict[bytes, Method]:
        """The rpcs by path."""
        methods = {
            b"/grpc.health.v1.Health/Check": unary(pb.HealthCheckRequest, self._check),
            b"/grpc.health.v1.Health/Watch": server_stream(pb.HealthCheckRequest, self._watch),
        }
        return {
            path: method._replace(message_bytes_max=MESSAGE_BYTES_MAX)
            for path, method in methods.items()
        }

    def _response(self, service: str) -> pb.HealthCheckResponse:
        if service not in self._services:
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
        is_ready = self._is_ready()
        serving, not_serving = (
            pb.HealthCheckResponse.SERVING,
            pb.HealthCheckResponse.NOT_SERVING,
        )
        return pb.HealthCheckResponse(status=serving if is_ready else not_serving)

    async def _check(self, request: pb.HealthCheckRequest, _: Call) -> pb.HealthCheckResponse:
        if request.service not in self._services:
            raise RpcError(Status.NOT_FOUND, f"unknown service {request.service!r}")
        return self._response(request.service)

    async def _watch(self, request: pb.HealthCheckRequest, call: Call) -> None:
        """Say how it is, and again whenever that has changed."""
        said: pb.HealthCheckResponse | None = None
        while True:
            now = self._response(request.service)
            if now != said:
                call.send(now)
                said = now
            await asyncio.sleep(WATCH_INTERVAL_S)
