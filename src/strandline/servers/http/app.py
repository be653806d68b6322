"""The routes of the HTTP server.

Rules: GET and HEAD only; anything else, and any path that does not exist, gets a 4xx that says so.
Work that grows with the number of partitions runs on a thread; the loop only copies lists. With
access control, every route except the health checks needs permission to read the cluster.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from strandline.broker.access import Access
from strandline.servers.http.guard import guarded
from strandline.servers.http.page import Overview, error_page, overview_page, stream_page
from strandline.servers.http.rates import RateMeter
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
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
"""Open to probes, which have no credentials. They return the health of the broker only."""
Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(broker: BrokerView, meter: RateMeter) -> Starlette:
    """Return the web application of one broker."""
    pages, access = Pages(broker, meter), Access(broker.config, broker)
    routes = {
        "/": pages.overview,
        "/streams/{name}": pages.stream,
        "/metrics": pages.metrics,
        "/health/live": pages.live,
        "/health/ready": pages.ready,
        "/api/streams": pages.api_streams,
        "/api/streams/{name}": pages.api_stream,
    }
    return Starlette(
        routes=[
            Route(
                path,
                _with_safe_headers(endpoint if path in OPEN_PATHS else guarded(endpoint, access)),
            )
            for path, endpoint in routes.items()
        ],
        exception_handlers={HTTPException: _refuse},
    )


class Pages:
    """One method per route."""

    def __init__(self, broker: BrokerView, meter: RateMeter) -> None:
        self._broker = broker
        self._meter = meter
        self._started_ms = broker.clock.monotonic_ms()

    async def overview(self, _request: Request) -> Response:
        """``/``: health, rates, streams."""
        broker, streams = self._broker, list(self._broker.streams())
        broker.refresh_telemetry()
        reason = broker.why_not_ready

        def render() -> str:
            return overview_page(
                Overview(
                    streams=snapshot(streams),
                    rates=self._meter.rates(),
                    history=self._meter.records_per_second(),
                    telemetry=broker.telemetry,
                    data_dir=broker.config.data_dir,
                    why_not_ready=reason,
                    up_s=(broker.clock.monotonic_ms() - self._started_ms) / 1000,
                )
            )

        return HTMLResponse(await asyncio.to_thread(render))

    async def stream(self, request: Request) -> Response:
        """``/streams/{name}``: one stream's partitions and settings."""
        state = await self._find(request)
        return HTMLResponse(await asyncio.to_thread(stream_page, state))

    async def metrics(self, _request: Request) -> Response:
        """``/metrics``: Prometheus text."""
        streams, telemetry = list(self._broker.streams()), self._broker.telemetry
        self._broker.refresh_telemetry()
        positions, now_ns = self._broker.group_positions(), self._broker.clock.now_ns()
        telemetry.partition_samples = lambda: partition_samples(streams)
        telemetry.group_samples = lambda: group_samples(positions, streams, now_ns=now_ns)
        return Response(await asyncio.to_thread(telemetry.render), media_type=METRICS_TYPE)

    async def live(self, _request: Request) -> Response:
        """``/health/live``: 200 as long as the loop answers."""
        return PlainTextResponse("live\n")

    async def ready(self, _request: Request) -> Response:
        """``/health/ready``: 200 while records can be stored and read, else 503 and why."""
        reason = self._broker.why_not_ready
        return PlainTextResponse(f"{reason}\n", 503) if reason else PlainTextResponse("ready\n")

    async def api_streams(self, _request: Request) -> Response:
        """``/api/streams``: every stream with its settings and offsets, as JSON."""
        streams = list(self._broker.streams())
        return _json(await asyncio.to_thread(lambda: msgspec.json.encode(snapshot(streams))))

    async def api_stream(self, request: Request) -> Response:
        """``/api/streams/{name}``: one of them."""
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
    return HTMLResponse(error_page(error.status_code, error.detail), error.status_code, headers)
