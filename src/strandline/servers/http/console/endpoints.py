"""The entry to the console: checks requests, and runs its pages on worker threads.

Rules: before a page runs, the request's host, its session and the CSRF token of a form are checked.
A page needs a session, or a token in the headers; an action needs a session and the CSRF token of
its form. Without access control everybody may use the console, but a loopback listener accepts only
``localhost``, a name under it or an IP address as the host, against DNS rebinding. At most
``REQUESTS_MAX`` requests are in progress, of which ``THREADS`` run at a time; further ones get 503.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from strandline.broker.access import Access
from strandline.errors import (
    NotAllowedError,
    StrandlineError,
    UnauthenticatedError,
    UnavailableError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.security.policy import ClientCredentials
from strandline.servers.http.console.clients import ClientPool, Reached
from strandline.servers.http.console.cluster_queries import RateTracker
from strandline.servers.http.console.headers import HEADERS
from strandline.servers.http.console.request import (
    Answer,
    ConsoleRequest,
    ConsoleRoute,
    Download,
    Fields,
    JsonAnswer,
    Page,
    Redirect,
)
from strandline.servers.http.console.sessions import SessionStore, new_session_id
from strandline.servers.http.guard import CHALLENGE, token_of

logger = logging.getLogger(__name__)

THREADS: Final = 4
REQUESTS_MAX: Final = 32
"""Requests in progress: those that run, and those that wait for a thread."""
FIELDS_MAX: Final = 100
LOGIN: Final = "/login"
CSRF_FIELD: Final = "csrf_token"
FORM_TYPE: Final = "application/x-www-form-urlencoded"
STATUS: Final[tuple[tuple[type[StrandlineError], int], ...]] = (
    (UnauthenticatedError, 401),
    (NotAllowedError, 403),
    (UnknownStreamError, 404),
    (UnknownGroupError, 404),
    (UnknownPartitionError, 404),
    (UnavailableError, 503),
    (StrandlineError, 400),
)


class ConsoleUser(NamedTuple):
    """A user of the console: a cookie and, if access is checked, a token and its principal."""

    cookie: str
    token: str = ""
    principal: str = ""
    is_new: bool = False
    """Whether the answer must still set the cookie."""


class NoSession(Exception):  # noqa: N818 - not an error: the user has to log in
    """The request has no valid session."""


class ConsoleEndpoints:
    """The endpoints of a broker's console.

    Args:
        broker: the broker that the console shows.
        access: identifies the users.
        flight_port: returns the port of the broker's Arrow Flight.
    """

    def __init__(self, broker: Reached, access: Access, flight_port: Callable[[], int]) -> None:
        self._broker = broker
        self._access = access
        self._clients = ClientPool(broker, flight_port)
        self._sessions = SessionStore(broker.clock)
        self._rates = RateTracker()
        self._threads: ThreadPoolExecutor | None = None
        self._in_progress = 0

    def routes(self, declared: list[ConsoleRoute]) -> list[Route]:
        """Return the web framework's routes for the console's."""
        own = [
            Route(LOGIN, self._with_headers(self._show_login), methods=["GET"]),
            Route(LOGIN, self._with_headers(self._log_in), methods=["POST"]),
            Route("/logout", self._with_headers(self._log_out), methods=["POST"]),
        ]
        return own + [
            Route(each.path, self._with_headers(self._endpoint(each)), methods=[each.method])
            for each in declared
        ]

    def close(self) -> None:
        """Close the console's clients; pages in progress fail."""
        self._clients.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # Requests

    def _endpoint(self, route: ConsoleRoute) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                user = self._user(request, may_show_header=route.method == "GET")
            except NoSession:
                return self._to_login(request)
            form = Fields({})
            if route.method == "POST":
                form = await self._form(request, user)
            response = await self._on_thread(lambda: self._answer(route, request, user, form=form))
            return self._with_cookie(request, response, user)

        return answer

    def _user(self, request: Request, *, may_show_header: bool) -> ConsoleUser:
        """Return the user whom the session or the token in the headers identifies.

        Raises:
            NoSession: there is no session.
            HTTPException: the token in the headers is not valid.
        """
        cookie = request.cookies.get(_cookie_name(request), "")
        if not self._access.is_on:
            if self._broker.config.tls.authority:
                # The operator admits clients by certificate only, and this listener asks for none.
                raise HTTPException(
                    403,
                    "clients need certificates here (tls.authority), which the console does not "
                    "ask for: set auth.enabled, so that its users can log in",
                )
            return ConsoleUser(cookie) if cookie else ConsoleUser(new_session_id(), is_new=True)
        if may_show_header and (token := token_of(request)) is not None:
            return ConsoleUser(cookie, token, self._principal(token))
        session = self._sessions.find(cookie) if cookie else None
        if session is None:
            raise NoSession
        return ConsoleUser(cookie, session.token, session.principal)

    def _principal(self, token: str) -> str:
        """Return the principal of a token.

        Raises:
            HTTPException: the token is not valid, or no rule names its principal.
        """
        try:
            caller = self._access.identify(ClientCredentials(token))
            caller.check_known()
        except UnauthenticatedError as error:
            raise HTTPException(401, error.message, CHALLENGE) from None
        except StrandlineError as error:
            raise HTTPException(status_of(error), error.message) from None
        return str(caller.principal)

    async def _form(self, request: Request, user: ConsoleUser) -> Fields:
        """Return the posted form.

        Raises:
            HTTPException: the form was not rendered by this server for this user.
        """
        fields = Fields(await _posted(request))
        if not self._sessions.is_csrf_token(user.cookie, fields[CSRF_FIELD]):
            raise HTTPException(
                403, "this form is out of date: go back, reload the page, and send it again"
            )
        return fields

    def _answer(
        self, route: ConsoleRoute, request: Request, user: ConsoleUser, *, form: Fields
    ) -> Response:
        """Call the handler of a route and render its answer; runs on a thread of the console."""
        query = Fields(dict(request.query_params))
        try:
            asked = ConsoleRequest(
                client=self._clients.of(user.token),
                path=request.path_params,
                query=query,
                form=form,
                clock=self._broker.clock,
                rates=self._rates,
                principal=user.principal,
            )
            try:
                return self._response(route.handler(asked), request, user)
            except StrandlineError as error:
                if route.form is None or isinstance(error, UnauthenticatedError):
                    raise
                page = route.form(asked)
                assert isinstance(page, Page), "a form is on a page"
                values = {**page.values, "problem": error.message}
                shown = Page(page.template, values, status_of(error))
                return self._response(shown, request, user)
        except UnauthenticatedError:
            self._sessions.close(user.cookie)
            return self._to_login(request)
        except StrandlineError as error:
            status = status_of(error)
            if "application/json" in request.headers.get("accept", ""):
                return _json({"error": error.message}, status)
            values = {"status": status, "message": error.message}
            return self._response(Page("error.html", values, status), request, user)

    def _response(self, answer: Answer, request: Request, user: ConsoleUser) -> Response:
        match answer:
            case Redirect(to):
                return RedirectResponse(to, 303)
            case Download(body, name, media_type):
                disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
                headers = {"Content-Disposition": disposition}
                return Response(body, media_type=media_type, headers=headers)
            case JsonAnswer(value):
                return _json(value)
        values = {**self._shared(request, user), **answer.values}
        return HTMLResponse(self._render(answer.template, values), answer.status)

    def _shared(self, request: Request, user: ConsoleUser) -> dict[str, Any]:
        """Return the values that every page needs."""
        cluster = self._broker.config.cluster
        return {
            "path": request.url.path,
            "query": dict(request.query_params),
            "csrf_token": self._sessions.csrf_token(user.cookie),
            "principal": user.principal,
            "is_checked": self._access.is_on,
            "broker_id": cluster.broker_id,
            "cluster_name": cluster.name if cluster.is_on else "",
        }

    def _render(self, template: str, values: Mapping[str, Any]) -> str:
        from strandline.servers.http.console.templates import render  # jinja2, for the first page

        return render(template, values)

    async def _on_thread(self, function: Callable[[], Response]) -> Response:
        if self._in_progress >= REQUESTS_MAX:
            message = f"the console is busy ({REQUESTS_MAX} requests in progress); try again"
            raise HTTPException(503, message)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        self._in_progress += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        finally:
            self._in_progress -= 1

    # Sessions

    async def _show_login(self, request: Request) -> Response:
        cookie = request.cookies.get(_cookie_name(request), "")
        user = ConsoleUser(cookie) if cookie else ConsoleUser(new_session_id(), is_new=True)
        return await self._login_page(request, user)

    async def _login_page(
        self, request: Request, user: ConsoleUser, *, problem: str = "", status: int = 200
    ) -> Response:
        values = {"problem": problem, "next": _local_path(request.query_params.get("next", "/"))}
        page = Page("login.html", values, status)
        response = await self._on_thread(lambda: self._response(page, request, user))
        return self._with_cookie(request, response, user)

    async def _log_in(self, request: Request) -> Response:
        """Begin a session for a valid token."""
        before = ConsoleUser(request.cookies.get(_cookie_name(request), ""))
        form = await self._form(request, before)
        try:
            principal = self._principal(form["token"])
        except HTTPException as error:
            status = error.status_code
            return await self._login_page(request, before, problem=error.detail, status=status)
        # A new id: an attacker may have planted the present cookie.
        session = self._sessions.open(form["token"], principal)
        response = RedirectResponse(_local_path(form["next"]), 303)
        return self._with_cookie(request, response, ConsoleUser(session, is_new=True))

    async def _log_out(self, request: Request) -> Response:
        user = ConsoleUser(request.cookies.get(_cookie_name(request), ""))
        await self._form(request, user)
        self._sessions.close(user.cookie)
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(_cookie_name(request))
        return response

    def _to_login(self, request: Request) -> Response:
        if "application/json" in request.headers.get("accept", ""):
            return _json({"error": "log in again"}, 401)
        asked = request.url.path
        if request.url.query:
            asked += f"?{request.url.query}"
        to = asked if request.method in ("GET", "HEAD") else "/"
        return RedirectResponse(f"{LOGIN}?next={quote(to)}", 303)

    def _with_cookie(self, request: Request, response: Response, user: ConsoleUser) -> Response:
        if user.is_new:
            response.set_cookie(
                _cookie_name(request),
                user.cookie,
                httponly=True,
                samesite="strict",
                secure=self._broker.config.tls.is_on,
            )
        return response

    # Checks and headers common to all answers

    def _with_headers(
        self, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                self._check_host(request)
                response = await endpoint(request)
            except HTTPException as error:
                response = await self.refusal(request, error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return answer

    async def refusal(self, request: Request, error: HTTPException) -> Response:
        """Return the error page for a request that did not reach a page."""
        values = {"status": error.status_code, "message": error.detail, "is_bare": True}
        page = Page("error.html", values, error.status_code)
        shown = await asyncio.to_thread(self._response, page, request, ConsoleUser(""))
        shown.headers.update({**HEADERS, **(error.headers or {})})
        return shown

    def _check_host(self, request: Request) -> None:
        """Reject foreign host names on a loopback listener.

        Raises:
            HTTPException: the host may belong to another site.
        """
        if self._access.is_on or not _is_loopback(self._broker.config.host):
            return
        host = request.url.hostname or ""
        if not (_is_address(host) or host == "localhost" or host.endswith(".localhost")):
            raise HTTPException(
                403,
                f"host {host!r} is not allowed; open the console as localhost or by IP address",
            )


def status_of(error: StrandlineError) -> int:
    """Return the HTTP status of an error."""
    return next(status for kind, status in STATUS if isinstance(error, kind))


async def _posted(request: Request) -> dict[str, str]:
    """Return the fields of a posted form; the listener has limited its size.

    Raises:
        HTTPException: the request has no form.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != FORM_TYPE:
        raise HTTPException(415, f"send a form, as {FORM_TYPE}")
    try:
        text = (await request.body()).decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError as error:
        raise HTTPException(400, f"not a form: {error}") from None


def _cookie_name(request: Request) -> str:
    """Return the cookie's name. It has the port, since brokers on one host share its cookies."""
    _, port = request.scope["server"]
    return f"strandline_{port}"


def _local_path(path: str) -> str:
    """Return a path of this site unchanged; ``/`` for anything else."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/"


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
