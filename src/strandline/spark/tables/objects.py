"""The files of a table in an S3-compatible object store.

Rules: an object appears whole or not at all, and is durable once its upload was acknowledged. So
files are written in their place under random names, and only the table's log says which files are
committed. A commit never removes a file of an attempt whose outcome is not known. Credentials come
from the environment, as for AWS's tools, or from ``storage``: a setting never contains a secret,
only the name of its variable or file. Must not know Spark, nor what may be committed.
"""

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store
from pyarrow.fs import S3FileSystem

from strandline.errors import DataLossError, InvalidConfigError, UnavailableError
from strandline.spark.tables.log import DataFile
from strandline.spark.tables.store import TableDirectory, gone, reason_of

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_SECRETS = ("access_key_id", "secret_access_key", "session_token")
_PLAIN = ("endpoint", "region")
_ENVIRONMENT = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
"""Environment variables for settings that are not given; the libraries look up credentials."""
_REGION = "us-east-1"
_ICEBERG = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}
"""pyiceberg's names of the settings."""
_RETRY: "RetryConfig" = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
_LISTED = 1000
_KEEP = ".keep"


def resolved(storage: Mapping[str, str]) -> dict[str, str]:
    """Return settings of a store, with references resolved and defaults from the environment.

    Args:
        storage: ``endpoint``, ``region``, and ``access_key_id``, ``secret_access_key`` and
            ``session_token`` as ``env:NAME`` or ``file:PATH``.

    Raises:
        InvalidConfigError: a setting is unknown, is a secret instead of a reference to one, or is a
            reference to a variable or file that does not exist.
    """
    unknown = sorted(set(storage) - {*_SECRETS, *_PLAIN})
    if unknown:
        raise InvalidConfigError(
            f"'storage' has the unknown setting '{unknown[0]}'; there are: "
            + ", ".join((*_PLAIN, *_SECRETS))
        )
    found = {name: _value(name, text) for name, text in storage.items()}
    for name, variables in _ENVIRONMENT.items():
        value = next((os.environ[each] for each in variables if os.environ.get(each)), None)
        if value is not None:
            found.setdefault(name, value)
    return {"region": _REGION} | found


def _value(name: str, text: str) -> str:
    kind, _, where = text.partition(":")
    if name in _PLAIN:
        return text
    if kind == "env" and where:
        if not os.environ.get(where):
            raise InvalidConfigError(f"'{name}' of 'storage': the variable {where} is not set")
        return os.environ[where]
    if kind == "file" and where:
        try:
            return Path(where).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise InvalidConfigError(f"'{name}' of 'storage': cannot read {where}") from error
    # Without the text: it may be the secret itself.
    raise InvalidConfigError(
        f"'{name}' of 'storage' must be env:NAME or file:PATH, where the value is kept; pipeline "
        "files and Spark's options are no place for secrets"
    )


def iceberg_properties(storage: Mapping[str, str]) -> dict[str, str]:
    """Return a store's settings as pyiceberg takes them."""
    return {_ICEBERG[name]: value for name, value in resolved(storage).items()}


class ObjectDirectory(TableDirectory):
    """The objects under a URL.

    Args:
        url: ``s3://bucket/prefix``.
        storage: settings of the store, with references instead of secrets.
        data: the folder of data files under the URL; by default the URL itself.

    Raises:
        InvalidConfigError: the URL has another scheme, or the settings are not valid.
    """

    in_place = True
    retry_pauses_s = (0.2, 1.0, 3.0, 9.0)

    def __init__(self, url: str, *, storage: Mapping[str, str], data: str = "") -> None:
        parts = urlsplit(url)
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        if parts.scheme not in ("s3", "s3a") or not self._bucket or not self._prefix:
            raise InvalidConfigError(f"a table in an object store is s3://bucket/path, not {url!r}")
        self.scratch = Path(tempfile.gettempdir())
        self._storage = dict(storage)
        self._data = f"{data}/" if data else ""
        resolved(storage)  # raises now, not in a task

    def __str__(self) -> str:
        """Return the URL."""
        return f"s3://{self._bucket}/{self._prefix}"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the client, which belongs to one process and has the secrets."""
        return {name: value for name, value in vars(self).items() if name != "_store"}

    @cached_property
    def _store(self) -> S3Store:
        settings: Any = resolved(self._storage)
        plain = settings.get("endpoint", "").startswith("http://")
        return S3Store(
            self._bucket,
            prefix=self._prefix,
            config=settings,
            client_options={"allow_http": plain},
            retry_config=_RETRY,
        )

    def delta_options(self) -> dict[str, str]:
        """Return the settings as delta-rs takes them."""
        settings = resolved(self._storage)
        plain = settings.get("endpoint", "").startswith("http://")
        return {f"aws_{name}": value for name, value in settings.items()} | {
            "allow_http": str(plain).lower(),
            # Of several writers of one version one wins.
            "conditional_put": "etag",
        }

    def create(self, *folders: str) -> None:
        """Mark the folders as a table's, to recognize files of a load that failed later."""
        with self._answered():
            for folder in folders:
                obstore.put(self._store, f"{folder}/{_KEEP}", b"")

    def new_staged_path(self, prefix: str) -> Path:
        """Return a path in a temporary directory of this machine."""
        return self.scratch / f"part-{prefix}-{uuid.uuid4().hex}.parquet"

    def seal(self, path: Path) -> int:
        """Upload a file, and remove the local one."""
        size = path.stat().st_size
        with self._answered():
            obstore.put(self._store, self._data + path.name, path)
        path.unlink()
        return size

    def seal_names(self) -> None:
        """Do nothing: an upload that was acknowledged is durable."""

    def place(self, files: Sequence[DataFile]) -> None:
        """Do nothing: the files are in their place already."""

    def check_files_exist(self, files: Sequence[DataFile]) -> None:
        """Compare sizes."""
        for file in files:
            name = self._data + file.staged
            with self._answered():
                try:
                    size = obstore.head(self._store, name)["size"]
                except FileNotFoundError as error:
                    raise gone(f"{self}/{name}") from error
            if size != file.size_bytes:
                raise DataLossError(f"{self}/{name} has {size} bytes instead of {file.size_bytes}")

    def discard(self, staged: Sequence[str]) -> None:
        """Remove uploaded files."""
        with self._answered():
            obstore.delete(self._store, [self._data + name for name in staged])

    def collect_garbage(self, *, age_s: float) -> int:
        """Do nothing: only the table's log distinguishes garbage from data in a store."""
        del age_s
        return 0

    def locate(self, file: DataFile) -> str:
        """Return the file's URL."""
        return self.uri(file)

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects."""
        if names:
            with self._answered():
                obstore.delete(self._store, list(names))

    def uri(self, file: DataFile) -> str:
        """Return the file's URL."""
        return f"{self}/{self._data}{file.name}"

    def open_file(self, located: str) -> Any:
        """Open a file for random reads."""
        with self._answered():
            (path,), filesystem = self.arrow_paths([located])
            try:
                return filesystem.open_input_file(path)
            except FileNotFoundError as error:
                raise gone(located) from error

    def arrow_paths(self, located: Sequence[str]) -> tuple[list[str], Any]:
        """Return the URLs as paths of pyarrow's own S3 file system."""
        settings = resolved(self._storage)
        scheme, _, host = settings.get("endpoint", "").rpartition("://")
        filesystem = S3FileSystem(
            access_key=settings.get("access_key_id"),
            secret_key=settings.get("secret_access_key"),
            session_token=settings.get("session_token"),
            region=settings["region"],
            scheme=scheme or "https",
            endpoint_override=host or None,
        )
        return [each.removeprefix("s3://") for each in located], filesystem

    def names(self, folder: str) -> list[str]:
        """List a folder."""
        with self._answered():
            listed = obstore.list_with_delimiter(self._store, folder or None)
        paths = [each["path"] for each in listed["objects"]] + list(listed["common_prefixes"])
        return [path.rsplit("/", 1)[-1] for path in paths]

    def settle(self, folder: str) -> None:
        """Do nothing: a name that is listed is durable."""

    def read(self, name: str) -> bytes:
        """Read an object."""
        with self._answered():
            return bytes(obstore.get(self._store, name).bytes())

    def create_file(self, name: str, data: bytes) -> bool:
        """Put an object if there is none; after a lost answer it may be there already."""
        with self._answered():
            try:
                obstore.put(self._store, name, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        """Translate the errors of the store.

        Raises:
            UnavailableError: the store does not answer, or rejects the request.
        """
        try:
            yield
        except (BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise UnavailableError(f"the object store of {self}: {reason_of(error)}") from error
