"""The client of a Confluent-compatible schema registry, for importing schemas.

Rules: a registry that cannot be reached is asked again until a deadline. The size of its answers is
limited. Redirects are not followed, since a request may carry credentials; these come from the
environment and do not appear in any message. This module must not know streams.
"""

import base64
import http.client
import json
import os
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import msgspec

from strandline.cli.proto_files import compiled_proto
from strandline.errors import InvalidConfigError, InvalidRequestError, UnavailableError
from strandline.values.schema import SchemaFormat

CREDENTIALS = "STRANDLINE_REGISTRY_AUTH"
"""The environment variable with ``user:password``."""
_FORMATS: dict[str, SchemaFormat] = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
_ANSWER_BYTES_MAX = 1 << 20
_VERSIONS_MAX = 1_000
_FILES_MAX = 100
_DEADLINE_S = 30.0
_TIMEOUT_S = 10.0
_PAUSE_S = 0.2
_PAUSE_S_MAX = 2.0


class SchemaReference(msgspec.Struct, frozen=True):
    """A reference to a schema that another one imports."""

    name: str
    subject: str
    version: int


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A version of a subject, as a registry returns it."""

    id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    version: int
    schema: str
    kind: str = msgspec.field(name="schemaType", default="AVRO")
    references: list[SchemaReference] = []

    @property
    def format(self) -> SchemaFormat:
        """The format of the values.

        Raises:
            InvalidConfigError: the registry has a schema of another format.
        """
        if self.kind not in _FORMATS:
            raise InvalidConfigError(
                f"the registry has a schema of the type {self.kind[:50]!r}; {', '.join(_FORMATS)} "
                "can be imported"
            )
        return _FORMATS[self.kind]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects, which could pass on the credentials."""

    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


def _without_credentials(url: str) -> str:
    """Return a URL without what stands before an ``@``, which may be a password."""
    return url.rpartition("@")[2]


class SchemaRegistry:
    """A connection to a schema registry.

    Args:
        url: the URL below which ``/subjects`` is.
        deadline_s: how long a request is repeated while there is no answer.

    Raises:
        InvalidConfigError: the URL is not an HTTP URL, or contains credentials.
    """

    def __init__(self, url: str, *, deadline_s: float = _DEADLINE_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfigError(
                f"--registry {_without_credentials(url)!r} is no URL of a registry; write "
                "http://host:port or https://host"
            )
        if parts.username is not None or parts.password is not None:
            raise InvalidConfigError(
                f"the registry's URL has credentials, which others could see: put them into the "
                f"environment variable {CREDENTIALS}, as user:password"
            )
        self._url, self._deadline_s = url.rstrip("/"), deadline_s
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if credentials := os.environ.get(CREDENTIALS):
            text = base64.b64encode(credentials.encode()).decode()
            self._headers["Authorization"] = f"Basic {text}"
        context = ssl.create_default_context()
        self._open = urllib.request.build_opener(
            _NoRedirect, urllib.request.HTTPSHandler(context=context)
        ).open

    def versions(self, subject: str) -> Iterator[RegisteredSchema]:
        """Yield the versions of a subject in ascending order.

        Raises:
            InvalidRequestError: the subject does not exist, or has no versions.
            InvalidConfigError: the registry rejects the request, or its answer is invalid.
            UnavailableError: there was no answer in time.
        """
        numbers = self._get(f"/subjects/{quote(subject, safe='')}/versions", list[int])
        if not numbers:
            raise InvalidRequestError(
                f"subject {subject!r} has no versions; name another one with --subject"
            )
        if len(numbers) > _VERSIONS_MAX:
            raise InvalidConfigError(
                f"subject {subject!r} has {len(numbers):,} versions, more than {_VERSIONS_MAX:,}; "
                "set the newest from its file with 'strandline stream schema set'"
            )
        for number in sorted(numbers):
            yield self._version(subject, number)

    def text(self, found: RegisteredSchema) -> str | bytes:
        """Return a schema in the form that ``client.schemas.set`` accepts.

        For Protocol Buffers these are descriptors.

        Raises:
            InvalidConfigError: the schema has references in a format that does not allow them here,
                or it does not compile.
        """
        if found.format != "protobuf":
            if found.references:
                raise InvalidConfigError(
                    f"the registry's schema {found.id} refers to {found.references[0].name!r}: "
                    "write one schema that has everything, and set that"
                )
            return found.schema
        with tempfile.TemporaryDirectory() as directory:
            name = f"{found.id}.proto"
            self._write(Path(directory), name, found)
            return compiled_proto(Path(directory) / name, [])

    def _write(self, root: Path, name: str, found: RegisteredSchema) -> None:
        """Write a ``.proto`` file and the files that it imports."""
        files, waiting = {name: found.schema}, [*found.references]
        while waiting:
            each = waiting.pop()
            if each.name in files:
                continue
            path = PurePosixPath(each.name)
            if path.is_absolute() or ".." in path.parts or "\0" in each.name:
                raise InvalidConfigError(
                    f"the registry names a file {each.name[:100]!r}, outside of the directory of "
                    "imports; correct that reference in the registry"
                )
            if len(files) >= _FILES_MAX:
                raise InvalidConfigError(
                    f"the schema imports more than {_FILES_MAX} files, such as "
                    f"{each.name[:100]!r}; set it from them with 'strandline stream schema set'"
                )
            imported = self._version(each.subject, each.version)
            files[each.name] = imported.schema
            waiting += imported.references
        try:
            for file, text in files.items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(text, "utf-8")
        except (OSError, ValueError) as error:
            raise InvalidConfigError(f"cannot write the registry's files: {error}") from error

    def _version(self, subject: str, number: int) -> RegisteredSchema:
        path = f"/subjects/{quote(subject, safe='')}/versions/{number}"
        found: RegisteredSchema = self._get(path, RegisteredSchema)
        return found

    def _get(self, path: str, kind: type[Any]) -> Any:
        """Return the answer to a request; raise the errors of ``versions``."""
        deadline, pause = time.monotonic() + self._deadline_s, _PAUSE_S
        while True:
            try:
                return self._answer(path, kind)
            except _NO_ANSWER as error:
                reason = getattr(error, "reason", None) or error
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise InvalidConfigError(
                        f"the certificate of {self._url} is not trusted: {reason.verify_message}; "
                        "name the file of its authority in the environment variable SSL_CERT_FILE"
                    ) from error
                if time.monotonic() + pause > deadline:
                    is_answer = isinstance(error, urllib.error.HTTPError)
                    what = f"answers {error}" if is_answer else f"does not answer: {reason}"
                    raise UnavailableError(
                        f"the registry {self._url} {what}; try again later"
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)

    def _answer(self, path: str, kind: type[Any]) -> Any:
        request = urllib.request.Request(f"{self._url}{path}", headers=self._headers)  # noqa: S310 - checked to be HTTP
        try:
            with self._open(request, timeout=_TIMEOUT_S) as answer:
                data = answer.read(_ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code >= 500 or error.code in (408, 429):
                raise
            raise self._refused(path, error.code) from error
        if len(data) > _ANSWER_BYTES_MAX:
            raise InvalidConfigError(
                f"the registry answers {path} with more than {_ANSWER_BYTES_MAX} bytes; is "
                f"{self._url} the URL of a registry?"
            )
        try:
            return msgspec.convert(json.loads(data), kind)
        except (ValueError, RecursionError) as error:
            raise InvalidConfigError(
                f"{self._url} does not answer {path} as a schema registry does: {error}; give the "
                "URL below which its /subjects are"
            ) from error

    def _refused(self, path: str, code: int) -> Exception:
        if code == 404:
            return InvalidRequestError(
                f"the registry {self._url} has no {path}; name another subject with --subject"
            )
        if code in (401, 403):
            return InvalidConfigError(
                f"the registry {self._url} refuses access to {path} ({code}): put user:password "
                f"into the environment variable {CREDENTIALS}"
            )
        return InvalidConfigError(
            f"the registry {self._url} answers {path} with the status {code}; is that its own URL?"
        )


_NO_ANSWER = (urllib.error.URLError, OSError, http.client.HTTPException)
