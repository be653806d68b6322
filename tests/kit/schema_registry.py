"""A schema registry on loopback, with the part of Confluent's API that is used."""

import base64
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Registry:
    """A registry; a test can make it reject requests, lose answers, or return other bytes."""

    def __init__(self):
        self.subjects = {}
        """The versions of each subject."""
        self.credentials = None
        self.faults = []
        """The faults of the next requests: a status, bytes for the body, or None for no answer."""
        self.asked = []
        """The path and the Authorization header of each request."""
        self._id = 0

    def add(self, subject, schema, kind="AVRO", references=()):
        """Register a version; return its id."""
        self._id += 1
        versions = self.subjects.setdefault(subject, [])
        found = {"subject": subject, "version": len(versions) + 1, "id": self._id}
        found["schema"] = schema if isinstance(schema, str) else json.dumps(schema)
        if kind != "AVRO":
            found["schemaType"] = kind
        if references:
            found["references"] = [
                dict(zip(("name", "subject", "version"), each, strict=True)) for each in references
            ]
        versions.append(found)
        return self._id

    def answer(self, path):
        """Return the status and the document for a path."""
        words = path.strip("/").split("/")
        versions = self.subjects.get(words[1]) if words[0] == "subjects" else None
        if versions is None or words[2] != "versions":
            return 404, {"error_code": 40401, "message": "Subject not found"}
        if len(words) == 3:
            return 200, [each["version"] for each in versions]
        return 200, versions[int(words[3]) - 1]


@contextlib.contextmanager
def schema_registry():
    """Run a registry with its address in ``url``; yield it."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            authorization = self.headers.get("Authorization")
            registry.asked.append((self.path, authorization))
            status, document = registry.answer(self.path)
            body = json.dumps(document).encode()
            fault = registry.faults.pop(0) if registry.faults else 200
            if fault is None:
                return  # the connection is closed without an answer
            if isinstance(fault, bytes):
                body = fault
            elif fault != 200:
                status = fault
            wanted = registry.credentials
            if wanted and authorization != f"Basic {base64.b64encode(wanted.encode()).decode()}":
                status = 401
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{registry.url}/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the reader has closed the connection
                self.wfile.write(body)

        def log_message(self, *_):
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join(30)
