"""An S3 server (moto) on loopback; a test can make it lose, delay or reject requests.

It is a process of its own, since delta-rs waits for some answers while it holds the GIL.
"""

import http.client
import io
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from typing import Any

KEY, SECRET = "lake-key", "lake-secret"
BUCKET = "lake"
ENVIRONMENT = {"LAKE_KEY": KEY, "LAKE_SECRET": SECRET}
"""The secrets, as ``storage`` refers to them."""
_SILENCE_S = 5
_CONTROL = "/_faults"


class ObjectStore:
    """A server with one bucket."""

    def __enter__(self):
        self._process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE)
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self._call("PUT", f"/{BUCKET}")
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(30)
        self._process.stdout.close()

    def storage(self):
        """Return the settings of the store; they refer to the secrets in ``environment``."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": "env:LAKE_KEY",
            "secret_access_key": "env:LAKE_SECRET",
        }

    def environment(self):
        return ENVIRONMENT

    def fail(self, kind, request=".*", *, chance=1.0, count=1_000_000):
        """Make requests fail from now on.

        Args:
            kind: ``lose`` (it takes effect, but the connection is closed without an answer),
                ``never`` (the same, after five seconds of silence), ``late`` (answered after a
                second), ``twice`` (it takes effect twice, and the second answer counts) or
                ``refuse`` (503, without effect).
            request: a pattern for "METHOD /path".
            chance: the probability for each matching request; the same in each run.
            count: the highest number of faults.
        """
        rule = {"kind": kind, "request": request, "chance": chance, "count": count}
        self._call("POST", _CONTROL, json.dumps(rule))

    def heal(self):
        """Let no more requests fail; return the number of faults since the last call."""
        return json.loads(self._call("DELETE", _CONTROL))

    def _call(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"), timeout=60)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data
            return data
        finally:
            connection.close()


class _FaultyApplication:
    """The application of moto, with faults."""

    def __init__(self):
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._app = DomainDispatcherApplication(create_backend_app)
        self._conditional = threading.Lock()
        self._chance = random.Random(1)
        self._rules: list[dict[str, Any]] = []
        self._faults: list[str] = []

    def __call__(self, environ, start_response):
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        if environ["PATH_INFO"] == _CONTROL:
            return self._control(environ, start_response)
        kind = next(filter(None, (self._hit(rule, request) for rule in self._rules)), None)
        if kind is None:
            return self._apply(environ, start_response)
        self._faults.append(f"{kind} {request}")
        if kind == "refuse":
            start_response("503 Slow Down", [("Content-Length", "0")])
            return []
        if kind == "late":
            time.sleep(1)
            return self._apply(environ, start_response)
        if kind == "twice":
            length = int(environ.get("CONTENT_LENGTH") or 0)
            # pyarrow sends parts in chunks, without a length.
            is_chunked = environ.get("wsgi.input_terminated", False)
            body = (
                environ["wsgi.input"].read() if is_chunked else environ["wsgi.input"].read(length)
            )
            first = environ | {"wsgi.input": io.BytesIO(body)}
            list(self._apply(first, lambda *_: None))
            return self._apply(environ | {"wsgi.input": io.BytesIO(body)}, start_response)
        list(self._apply(environ, lambda *_: None))
        if kind == "never":
            time.sleep(_SILENCE_S)
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError

    def _hit(self, rule, request):
        if not rule["count"] or not re.fullmatch(rule["request"], request):
            return None
        if self._chance.random() >= rule["chance"]:
            return None
        rule["count"] -= 1
        return rule["kind"]

    def _apply(self, environ, start_response):
        # moto looks for the object before it puts it: of two requests at once, both would find
        # none.
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self._app(environ, start_response)
        with self._conditional:
            return list(self._app(environ, start_response))

    def _control(self, environ, start_response):
        found = json.dumps(self._faults).encode()
        if environ["REQUEST_METHOD"] == "POST":
            length = int(environ["CONTENT_LENGTH"])
            self._rules.append(json.loads(environ["wsgi.input"].read(length)))
        else:
            self._rules, self._faults = [], []
        start_response("200 OK", [("Content-Length", str(len(found)))])
        return [found]


def _serve():
    from werkzeug.serving import WSGIRequestHandler, make_server

    class SilentHandler(WSGIRequestHandler):
        """A handler that logs nothing: lost answers are intended."""

        protocol_version = "HTTP/1.1"

        def log(self, *_):
            pass

    server = make_server(
        "127.0.0.1", 0, _FaultyApplication(), threaded=True, request_handler=SilentHandler
    )
    print(server.server_port, flush=True)  # noqa: T201 - read by the parent process
    server.serve_forever()


if __name__ == "__main__":
    _serve()
