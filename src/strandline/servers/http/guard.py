"""Access control of the HTTP routes: the caller must be allowed to read the cluster.

Rules: programs send a token as a bearer token, browsers as the password of Basic authentication.
Certificates are not used, because this listener asks for none.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from strandline.broker.access import Access
from strandline.errors import NotAllowedError, UnauthenticatedError, UnavailableError
from strandline.security.acl import CLUSTER
from strandline.security.policy import ClientCredentials
from strandline.security.tokens import bearer_token

CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="strandline", charset="UTF-8"'}
Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint, access: Access) -> Endpoint:
    """Return an endpoint that only callers with permission to read the cluster may use."""

    async def answer(request: Request) -> Response:
        try:
            access.identify(ClientCredentials(token_of(request))).check(CLUSTER, "read")
        except UnauthenticatedError as error:
            raise HTTPException(401, error.message, CHALLENGE) from None
        except NotAllowedError as error:
            raise HTTPException(403, error.message) from None
        except UnavailableError as error:
            raise HTTPException(503, error.message) from None
        return await endpoint(request)

    return answer


def token_of(request: Request) -> str | None:
    """Return the token of a request; None without the header, empty (invalid) for an odd one."""
    headers = request.headers.getlist("authorization")
    if not headers:
        return None
    if len(headers) > 1:
        return ""
    scheme, _, text = headers[0].strip().partition(" ")
    return _password(text.strip()) if scheme.lower() == "basic" else bearer_token(headers[0])


def _password(text: str) -> str:
    """Return the password of Basic authentication; the user name is ignored."""
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
