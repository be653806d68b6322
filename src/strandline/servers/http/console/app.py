"""The console as a web application, which the listener loads for the first page."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strandline.broker.access import Access
from strandline.servers.http.console.clients import Reached
from strandline.servers.http.console.endpoints import ConsoleEndpoints
from strandline.servers.http.console.pages import ROUTES
from strandline.servers.http.console.static import PATHS, serve_static


class ConsoleApp:
    """The console of one broker.

    Args:
        broker: the broker.
        access: identifies the users.
        flight_port: returns the port of its Arrow Flight.
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
