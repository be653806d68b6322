"""The console as a web application, which the listener loads at the first request for a page."""

from collections.abc import Callable
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strandline.broker.access import Access
from strandline.servers.http.console import (
    pages_access,
    pages_clients,
    pages_cluster,
    pages_groups,
    pages_load,
    pages_pipelines,
    pages_records,
    pages_streams,
    pages_trace,
)
from strandline.servers.http.console.clients import Reached
from strandline.servers.http.console.endpoints import ConsoleEndpoints
from strandline.servers.http.console.request import ConsoleRoute
from strandline.servers.http.console.static import PATHS, serve_static

ROUTES: Final[list[ConsoleRoute]] = [
    *pages_cluster.ROUTES,
    *pages_load.ROUTES,
    *pages_streams.ROUTES,
    *pages_records.ROUTES,
    *pages_groups.ROUTES,
    *pages_pipelines.ROUTES,
    *pages_clients.ROUTES,
    *pages_trace.ROUTES,
    *pages_access.ROUTES,
]
"""The console's pages and actions."""


class ConsoleApp:
    """The console of one broker.

    Args:
        broker: the broker that the console shows.
        access: identifies the users.
        flight_port: returns the port of the broker's Arrow Flight.
    """

    def __init__(self, broker: Reached, access: Access, flight_port: Callable[[], int]) -> None:
        self._door = ConsoleEndpoints(broker, access, flight_port)
        self.asgi = Starlette(
            routes=[*(Route(path, serve_static) for path in PATHS), *self._door.routes(ROUTES)],
            exception_handlers={HTTPException: self._refuse},
        )

    def close(self) -> None:
        """Close the console's clients; blocks."""
        self._door.close()

    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for HTTPException only"
        return await self._door.refusal(request, error)
