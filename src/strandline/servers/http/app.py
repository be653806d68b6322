"""The routes of the HTTP server: those for programs, and the console's.

Rules: routes for programs take GET and HEAD only; anything else, and any path that does not exist,
gets a 4xx that says so. Work that grows with the number of partitions runs on a thread; the loop
only copies lists. With access control, every route for programs except the health checks needs
permission to read the cluster; the console checks each visitor itself.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from strandline.broker.access import Access
from strandline.servers.http.guard import guarded
from strandline.servers.http.view import (
    BrokerView,
    StreamSnapshot,
    group_samples,
    partition_samples,
    snapshot,
)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
"""Routes open to probes, which have no credentials; they return the broker's health only."""
Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(broker: BrokerView, console: ASGIApp) -> Starlette:
    """Return a broker's web application; ``console`` gets all paths that are not for programs."""
    api, access = ApiRoutes(broker), Access(broker.config, broker)
    routes = {
        "/metrics": api.metrics,
        "/health/live": api.live,
        "/health/ready": api.ready,
        "/api/streams": api.api_streams,
        "/api/streams/{name}": api.api_stream,
    }
    machine = [
        Route(
            path,
            _with_safe_headers(endpoint if path in OPEN_PATHS else guarded(endpoint, access)),
        )
        for path, endpoint in routes.items()
    ]
    app = Starlette(routes=machine, exception_handlers={HTTPException: _refuse})
    app.router.default = console
    return app


class ApiRoutes:
    """The routes of the API for programs, one method each."""

    def __init__(self, broker: BrokerView) -> None:
        self._broker = broker

    async def metrics(self, _request: Request) -> Response:
        """``/metrics``: Prometheus text."""
        streams, telemetry = list(self._broker.streams()), self._broker.telemetry
        self._broker.refresh_telemetry()
        positions, now_ns = self._broker.group_positions(), self._broker.clock.now_ns()
        telemetry.partition_samples = lambda: partition_samples(streams)
        telemetry.group_samples = lambda: group_samples(positions, streams, now_ns=now_ns)
        return Response(await asyncio.to_thread(telemetry.render), media_type=METRICS_TYPE)

    async def live(self, _request: Request) -> Response:
        """``/health/live``: 200 if the loop answers."""
        return PlainTextResponse("live\n")

    async def ready(self, _request: Request) -> Response:
        """``/health/ready``: 200 while records can be stored and read, else 503 with the reason."""
        reason = self._broker.why_not_ready
        return PlainTextResponse(f"{reason}\n", 503) if reason else PlainTextResponse("ready\n")

    async def api_streams(self, _request: Request) -> Response:
        """``/api/streams``: every stream with its settings and offsets, as JSON."""
        streams = list(self._broker.streams())
        return _json(await asyncio.to_thread(lambda: msgspec.json.encode(snapshot(streams))))

    async def api_stream(self, request: Request) -> Response:
        """``/api/streams/{name}``: one stream with its settings and offsets, as JSON."""
        return _json(msgspec.json.encode(await self._find(request)))

    async def _find(self, request: Request) -> StreamSnapshot:
        name = request.path_params["name"]
        for stream in self._broker.streams():
            if stream.config.name == name:
                return (await asyncio.to_thread(snapshot, [stream]))[0]
        raise HTTPException(404, f"no stream is named {name!r}")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _with_safe_headers(endpoint: Endpoint) -> Endpoint:
    async def answer(request: Request) -> Response:
        response = await endpoint(request)
        response.headers.update(SAFE_HEADERS)
        return response

    return answer


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTPException only"
    headers = {**SAFE_HEADERS, **(error.headers or {})}
    if request.url.path.startswith("/api/"):
        body = msgspec.json.encode({"error": error.detail})
        return Response(body, error.status_code, headers, media_type="application/json")
    return PlainTextResponse(f"{error.detail}\n", error.status_code, headers)
