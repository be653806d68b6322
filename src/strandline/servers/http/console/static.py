"""The console's style sheet, script and icon, and the dashboard for Grafana, served from memory.

Rules: a file is read once, on a thread, when a browser first asks. Its address contains a checksum,
so that browsers may cache it and still get the file of a newer version.
"""

import asyncio
import functools
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from strandline.servers.http.console.headers import HEADERS

DIRECTORY: Final = Path(__file__).parent / "static"
TYPES: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "grafana.json": "application/json",
}
PATHS: Final = tuple(f"/static/{name}" for name in TYPES)
KEPT_S: Final = 86_400


class StaticFile(NamedTuple):
    """A file and the checksum of its content."""

    body: bytes
    checksum: str


@functools.cache
def static_file(name: str) -> StaticFile:
    """Return one of the files; blocks."""
    body = (DIRECTORY / name).read_bytes()
    return StaticFile(body, hashlib.sha256(body).hexdigest()[:12])


def address_of(name: str) -> str:
    """Return the address of a file; blocks."""
    return f"/static/{name}?v={static_file(name).checksum}"


async def serve_static(request: Request) -> Response:
    """Answer a request for one of the files."""
    name = request.url.path.rpartition("/")[2]
    found = await asyncio.to_thread(static_file, name)
    headers = {**HEADERS, "Cache-Control": f"public, max-age={KEPT_S}"}
    return Response(found.body, headers=headers, media_type=TYPES[name])
