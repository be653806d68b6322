"""The base of all kinds of tables: tasks stage files, one atomic commit publishes them.

    table/_strandline/staging/<name>     written by tasks; committed under another name, or garbage

Rules: a staged file is durable under a random name that no reader lists. Committing names it in the
table's log, and a hard link puts it where readers look: after the commit for plain Parquet; before
the commit for Delta Lake and Iceberg, where only the log says which files are in the table. The
table's own log compares and sets the number of the next commit, so that of two writers one
succeeds. A directory has to be on a POSIX file system with hard links that all writers share;
``objects`` is for object stores. Must not know Spark, nor what may be committed.
"""

import contextlib
import errno
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from strandline.errors import (
    DataLossError,
    DiskFullError,
    InvalidConfigError,
    InvalidRequestError,
    StrandlineError,
    UnavailableError,
)
from strandline.spark.tables.log import DataFile, LiveFile, Proposal, TableState, decode_schema
from strandline.values.decode import RECORD_PREFIX

META_DIRECTORY = "_strandline"
COMMITS = f"{META_DIRECTORY}/commits"
"""The folder of a plain table's manifests."""
_REASON_LENGTH = 500
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = ("No space left on device", "database or disk is full")
"""Texts of errors about a full disk, also of libraries; the second is SQLite's."""
_PLACED_GRACE_S = 600.0
"""Time for a reader that found a file in staging to open it before that name is removed."""


class MissingTableError(InvalidConfigError):
    """An Iceberg table that the catalog does not have."""


class Loaded(NamedTuple):
    """The newest state of a table, and its place in the table's log."""

    state: TableState | None
    """The state; None before the first commit."""
    at: Any = None
    """The place in the log, of a type of the store; ``publish`` compares with it."""


class TableDirectory(ABC):
    """The place of a table's files: tasks stage them, a commit of the table's log names them."""

    retry_pauses_s: tuple[float, ...] = ()
    """Pauses before a commit with an unknown outcome is decided again."""
    in_place: bool
    scratch: Path
    """The directory in which tasks write files."""
    """Whether a staged file is where readers look, so that no commit moves it."""

    @abstractmethod
    def create(self, *folders: str) -> None:
        """Create the directories of tasks and commits, durably; a repeated call has no effect."""

    @abstractmethod
    def new_staged_path(self, prefix: str) -> Path:
        """Return a unique path at which a task writes a file."""

    @abstractmethod
    def seal(self, path: Path) -> int:
        """Make a written file durable under its name; return its size."""

    @abstractmethod
    def seal_names(self) -> None:
        """Make the names of sealed files durable."""

    @abstractmethod
    def place(self, files: Sequence[DataFile]) -> None:
        """Put staged files where readers look, durably; a repeated call has no effect.

        Raises:
            DataLossError: a file is neither in its place nor staged.
        """

    @abstractmethod
    def check_files_exist(self, files: Sequence[DataFile]) -> None:
        """Check that staged files exist as written.

        Raises:
            DataLossError: a file is missing or has another size.
        """

    @abstractmethod
    def discard(self, staged: Sequence[str]) -> None:
        """Remove staged files that no commit names."""

    @abstractmethod
    def collect_garbage(self, *, age_s: float) -> int:
        """Remove files that failed attempts left; return their number.

        Args:
            age_s: seconds since the last write after which an uncommitted file is garbage; must
                exceed the longest job, whose first tasks finish long before it commits.
        """

    @abstractmethod
    def locate(self, file: DataFile) -> str:
        """Return the path or URL of a committed file.

        Raises:
            DataLossError: the file is missing.
        """

    @abstractmethod
    def remove(self, names: Sequence[str]) -> None:
        """Remove files of the table by name, committed or not."""

    @abstractmethod
    def uri(self, file: DataFile) -> str:
        """Return the URI of a file's place."""

    @abstractmethod
    def open_file(self, located: str) -> Any:
        """Return an object that ``pyarrow.parquet`` can open, for a result of ``locate``."""

    def delta_options(self) -> dict[str, str] | None:
        """Return settings of the store for delta-rs."""
        return None

    @abstractmethod
    def arrow_paths(self, located: Sequence[str]) -> tuple[list[str], Any]:
        """Return paths of files, and pyarrow's file system for them; None: the local one."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names in a folder of the table, empty if there is none.

        Raises:
            InvalidConfigError: it is not a directory, or not readable.
        """

    @abstractmethod
    def settle(self, folder: str) -> None:
        """Make the names in a folder durable; their writer may have been killed before it did."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return a small file.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def create_file(self, name: str, data: bytes) -> bool:
        """Write a small file durably and return True; return False if the file exists."""


class LocalDirectory(TableDirectory):
    """A directory on a POSIX file system with hard links that all writers share.

    Args:
        root: the root of the table.
        data: the directory of committed files; the table's by default.
    """

    in_place = False

    def __init__(self, root: Path, data: Path | None = None) -> None:
        self.root = root
        self.data = data or root
        self.staging = self.scratch = root / META_DIRECTORY / "staging"

    def __str__(self) -> str:
        """Return the path."""
        return str(self.root)

    def create(self, *folders: str) -> None:
        """Create the directories."""
        own = (self.root, self.data, self.staging.parent, self.staging)
        for directory in (*own, *(self.root / folder for folder in folders)):
            make_directory(directory)

    def new_staged_path(self, prefix: str) -> Path:
        """Return a path in the staging directory."""
        return self.staging / f"part-{prefix}-{uuid.uuid4().hex}.parquet"

    def seal(self, path: Path) -> int:
        """Sync a file's content."""
        with usable(path):
            sync_file(path)
            return path.stat().st_size

    def seal_names(self) -> None:
        """Sync the staging directory."""
        sync_directory(self.staging)

    def place(self, files: Sequence[DataFile]) -> None:
        """Link staged files into the directory of committed ones."""
        linked_any = False
        for file in files:
            path = self.data / file.name
            try:
                with usable(path):
                    os.link(self.staging / file.staged, path)
                linked_any = True
            except FileExistsError:
                continue
            except FileNotFoundError as error:
                if not path.exists():
                    raise gone(path) from error
        if linked_any:
            sync_directory(self.data)

    def check_files_exist(self, files: Sequence[DataFile]) -> None:
        """Compare sizes."""
        for file in files:
            path = self.staging / file.staged
            try:
                with usable(path):
                    size = path.stat().st_size
            except FileNotFoundError as error:
                raise gone(path) from error
            if size != file.size_bytes:
                raise DataLossError(f"{path} has {size} bytes instead of {file.size_bytes}")

    def discard(self, staged: Sequence[str]) -> None:
        """Remove the staged names of files; a placed file keeps its other name."""
        with usable(self.staging):
            for name in staged:
                (self.staging / name).unlink(missing_ok=True)

    def collect_garbage(self, *, age_s: float) -> int:
        """Remove old staged files, half-written manifests too."""
        folders = (each for each in (self.staging, self.root / COMMITS) if each.is_dir())
        with usable(self.root):
            return sum(remove_garbage(folder, age_s) for folder in folders)

    def locate(self, file: DataFile) -> str:
        """Return the current path of a file, which may still be staged."""
        # Look in staging after the final place, and then again, since a file may move meanwhile.
        for path in (self.data / file.name, self.staging / file.staged, self.data / file.name):
            if path.is_file():
                return str(path)
        raise gone(self.data / file.name)

    def remove(self, names: Sequence[str]) -> None:
        """Remove files."""
        with usable(self.root):
            for name in names:
                (self.root / name).unlink(missing_ok=True)

    def uri(self, file: DataFile) -> str:
        """Return a ``file:`` URI."""
        return f"file://{self.data / file.name}"

    def open_file(self, located: str) -> Any:
        """Return the path itself."""
        path = local_path(located)
        if not path.exists():
            raise gone(path)
        return path

    def arrow_paths(self, located: Sequence[str]) -> tuple[list[str], Any]:
        """Return the paths themselves."""
        return list(located), None

    def names(self, folder: str) -> list[str]:
        """List a folder."""
        try:
            return [path.name for path in (self.root / folder).iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unusable(self.root, error) from error

    def settle(self, folder: str) -> None:
        """Sync a folder."""
        sync_directory(self.root / folder)

    def read(self, name: str) -> bytes:
        """Read a file."""
        with usable(self.root / name):
            return (self.root / name).read_bytes()

    def create_file(self, name: str, data: bytes) -> bool:
        """Link a finished file to its name, so that nobody reads half a file."""
        path = self.root / name
        building = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            write_durably(building, data)
            with usable(path):
                os.link(building, path)
        except FileExistsError:
            return False
        finally:
            building.unlink(missing_ok=True)
        sync_directory(path.parent)
        return True


class TableStore(ABC):
    """The log of a table, and the files that it names.

    Args:
        directory: where staged files and data files are.
    """

    def __init__(self, directory: TableDirectory) -> None:
        self.directory = directory

    @abstractmethod
    def load(self) -> Loaded:
        """Return the committed state.

        Raises:
            InvalidRecordError: the table's log is corrupt, or was not written by a load.
            UnavailableError: the table's log cannot be read now.
        """

    @abstractmethod
    def publish(self, after: Loaded, state: TableState, proposal: Proposal) -> bool:
        """Commit the proposal's files and ``state`` in one step, durably.

        Args:
            after: the state that the decision was based on.
            state: the state after the commit.
            proposal: the proposal that is committed.

        Returns:
            False if another writer committed since ``after`` was loaded; then nothing happened. The
            other commit may be an earlier attempt of this one, whose answer was lost.

        Raises:
            DataLossError: a staged file is missing or has another size.
            UnavailableError: the table's log gave an error; whether it was written is unknown.
        """

    @abstractmethod
    def scan(self, loaded: Loaded) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table as it was loaded, without later commits.

        The types of columns may differ from the state's, with the same values.

        Args:
            loaded: the table, which has a state.
        """

    @abstractmethod
    def live_files(self, loaded: Loaded, *, every: bool = False) -> list[LiveFile]:
        """Return the data files of a table as it was loaded that a merge may replace.

        Args:
            loaded: the table.
            every: whether the files have to contain all rows of the table.

        Raises:
            InvalidRequestError: ``every``, and some rows are in other files.
        """

    @abstractmethod
    def open_live(self, loaded: Loaded, file: LiveFile) -> Any:
        """Return an object that ``pyarrow.parquet`` can open.

        Raises:
            DataLossError: the file is missing.
        """

    def names(self, loaded: Loaded) -> Mapping[str, str]:
        """Return the present names of columns, by their names in older data files."""
        del loaded
        return {}

    @abstractmethod
    def committed_at_ms(self, loaded: Loaded) -> int | None:
        """Return the Unix time of the newest commit of any writer; None: there is no commit."""

    @abstractmethod
    def expire(self, *, age_s: float) -> int:
        """Remove files that only snapshots older than ``age_s`` need; return their number."""

    def forget(self, removed: Iterable[str]) -> None:
        """Remove the staged names of removed data files, which would keep their bytes."""
        if not self.directory.in_place:
            self.directory.discard([path.rpartition("/")[2] for path in removed])

    def check_kind(self, schema: pa.Schema | None) -> None:
        """Check that rows may be written here; creates nothing.

        Args:
            schema: the schema of the rows; None: not known yet.

        Raises:
            InvalidRequestError: there is something else than a table of this kind.
        """
        del schema  # the catalog knows its tables

    def create(self) -> None:
        """Create the directories that tasks write into, durably; a repeated call has no effect."""
        self.directory.create()

    def collect_garbage(self, *, age_s: float) -> int:
        """Remove files that failed attempts left; return their number."""
        return self.directory.collect_garbage(age_s=age_s)


def check_has_records(
    name: str, state: TableState, has_record: Callable[[Mapping[str, int | str]], bool]
) -> None:
    """Check that a table whose log was cleaned up has the records up to its offsets.

    The table may have been restored to older records before the clean-up; the offsets stay.

    Args:
        name: the name of the table.
        state: the offsets of the table, and the columns of its rows.
        has_record: returns whether the table has a row with these values.

    Raises:
        InvalidRequestError: the last record of a partition is missing.
    """
    names = decode_schema(state.arrow_schema).names
    prefix = "" if {"partition", "offset"}.issubset(names) else RECORD_PREFIX
    for partition, stop in state.offsets.items():
        stream, _, number = str(partition).rpartition("/")
        place: dict[str, int | str] = {"stream": stream} if stream else {}
        place |= {"partition": int(number), "offset": stop - 1}
        if not has_record({f"{prefix}{name}": value for name, value in place.items()}):
            raise InvalidRequestError(
                f"table {name} was loaded up to offset {stop} of partition {partition}, but has no "
                f"record {stop - 1} of partition {partition}, and its log no longer reaches back "
                "to that load: if it was restored since, records are missing; load into another "
                "table, with a new checkpoint"
            )


def check_every(name: str, found: int, files: int) -> None:
    """Check that all files of a table can be replaced.

    Raises:
        InvalidRequestError: some files cannot be replaced.
    """
    if found < files:
        raise InvalidRequestError(
            f"{files - found} files of table {name} have rows that were deleted in place, or are "
            "of another kind, so that its rows cannot be changed by a primary key; rewrite the "
            "table (in Delta: REORG TABLE ... APPLY (PURGE)), or load into another one, with a new "
            "checkpoint"
        )


def local_path(path: str) -> Path:
    """Return the directory of a path or ``file:`` URI.

    Raises:
        InvalidConfigError: a URI of another kind.
    """
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if "://" in path:
        raise InvalidConfigError(
            f"{path!r} must be a path on a POSIX file system that all writers share, such as "
            "/data/orders; only tables may be in an object store, as s3://bucket/orders"
        )
    return Path(path).absolute()


def make_directory(path: Path) -> None:
    """Create a directory and its parents, durably.

    An existing one is synced, too: its creator may have been killed before the sync.

    Raises:
        InvalidConfigError: the path is not a directory, or permission to create it is missing.
        UnavailableError: the file system gave another error.
    """
    if not path.parent.is_dir():
        make_directory(path.parent)
    try:
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> StrandlineError:
    """Return the error for a path that is not a usable directory."""
    mistakes = (FileExistsError, FileNotFoundError, NotADirectoryError)
    kind = InvalidConfigError if isinstance(error, mistakes) else failure_kind(error)
    return kind(f"{path} cannot be used as a directory: {error.strerror}")


@contextlib.contextmanager
def usable(path: Path | str) -> Iterator[None]:
    """Translate the errors of the file system at a path.

    Raises:
        FileExistsError: passed on unchanged, for the caller to handle.
        FileNotFoundError: passed on unchanged, for the caller to handle.
        DiskFullError: no space is left.
        InvalidConfigError: permission is missing.
        UnavailableError: any other failure.
    """
    try:
        yield
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        # The path is added: errors of Arrow lack it, and Python's do after a failed write or sync.
        reason = os.strerror(error.errno) if error.errno else reason_of(error)
        raise failure_kind(error)(f"cannot use {path}: {reason}") from error


def failure_kind(error: Exception) -> type[StrandlineError]:
    """Return the error class for an error of a file system or a library's error about one."""
    if getattr(error, "errno", None) in _FULL or any(text in str(error) for text in _FULL_TEXTS):
        return DiskFullError
    return InvalidConfigError if isinstance(error, PermissionError) else UnavailableError


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file and sync it; errors are those of ``usable``."""
    with usable(path), path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves either the old or the new content.

    Errors are those of ``usable``.
    """
    # A random name: two processes that write at once would mix their contents in one file.
    building = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write_durably(building, data)
        with usable(path):
            building.rename(path)
    finally:
        with usable(path):
            building.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Sync the content of a closed file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Sync the names in a directory; errors are those of ``usable``."""
    with usable(path):
        sync_file(path)


def remove_garbage(directory: Path, age_s: float) -> int:
    """Remove old uncommitted files of a directory; return their number."""
    with os.scandir(directory) as entries:
        garbage = [entry.path for entry in entries if _is_garbage(entry, age_s)]
    for path in garbage:
        Path(path).unlink(missing_ok=True)
    return len(garbage)


def reason_of(error: Exception) -> str:
    """Return a library's message in one line, without the colours and frames that delta-rs adds."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return " ".join(re.sub(r"\s*↳", ":", plain).split())[:_REASON_LENGTH]


def gone(path: Path | str) -> DataLossError:
    """Return the error for a missing data file."""
    return DataLossError(
        f"data file {path} is gone: it was deleted by hand, or was taken for garbage because the "
        "job ran longer than garbageAgeMs"
    )


def _is_garbage(entry: os.DirEntry[str], age_s: float) -> bool:
    if not entry.name.endswith((".parquet", ".tmp")):
        return False
    try:
        stat = entry.stat()
    except FileNotFoundError:
        return False
    # With two links the file is also in its place, and only present readers use the staged name.
    limit = _PLACED_GRACE_S if stat.st_nlink > 1 else age_s
    return time.time() - stat.st_mtime > limit
