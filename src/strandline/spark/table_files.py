"""The directory of a table: staged files, manifests published one after another, files in place.

    table/part-<commit>-<n>.parquet          committed data, hard links of staged files
    table/_strandline/commits/<number>.json  manifests; the truth
    table/_strandline/staging/<name>         written by tasks, committed or garbage

Rules: a manifest appears by linking a finished file to a name that must not exist, so of two
writers one wins and a reader never sees half of one; everything a manifest names is on the disk
before the manifest is; a data file gets its place only after the manifest that names it, so a plain
listing of the directory never shows what is not committed. Needs a POSIX file system with hard
links that all writers share. Must not know Spark, nor what may be committed.
"""

import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from strandline.errors import DataLossError, InvalidConfigError, InvalidRequestError
from strandline.spark.table_log import DataFile, Manifest, decode_manifest, encode_manifest

META_DIRECTORY = "_strandline"
_PLACED_GRACE_S = 600.0
"""A reader that found a file in staging has this long to open it before the name goes."""


class TableFiles:
    """The files of the table at ``path``; creates nothing until something is written.

    Args:
        path: directory, absolute or relative; a ``file:`` URI is understood.

    Raises:
        InvalidConfigError: a URI of another kind.
    """

    def __init__(self, path: str) -> None:
        self.root = local_path(path)
        self.commits = self.root / META_DIRECTORY / "commits"
        self.staging = self.root / META_DIRECTORY / "staging"

    def create(self) -> None:
        """Make the directories, durably.

        Raises:
            InvalidRequestError: the directory holds files that are not a table's.
        """
        if self.commits.is_dir() and self.staging.is_dir():
            return
        if self.root.is_dir() and not (self.root / META_DIRECTORY).is_dir():
            strangers = [e.name for e in os.scandir(self.root) if not e.name.startswith((".", "_"))]
            if strangers:
                raise InvalidRequestError(
                    f"{self.root} is not empty and not a table ({strangers[0]}); "
                    "choose another directory"
                )
        self.commits.mkdir(parents=True, exist_ok=True)
        self.staging.mkdir(parents=True, exist_ok=True)
        for directory in (self.root.parent, self.root, self.commits.parent):
            sync_directory(directory)

    def new_staged_path(self, prefix: str) -> Path:
        """A path in the staging directory that no attempt has used or will use."""
        return self.staging / f"{prefix}-{uuid.uuid4().hex}.parquet"

    def sequences(self) -> list[int]:
        """Numbers of the published manifests, ascending; empty if there is no table."""
        try:
            names = [entry.name for entry in os.scandir(self.commits)]
        except FileNotFoundError:
            return []
        return sorted(int(name[:-5]) for name in names if name[:-5].isdecimal())

    def load(self, sequence: int) -> Manifest:
        """One manifest.

        Raises:
            DataLossError: it is not there.
            InvalidRecordError: it is damaged.
        """
        path = self._manifest_path(sequence)
        try:
            return decode_manifest(path.read_bytes(), name=str(path))
        except FileNotFoundError as error:
            raise DataLossError(f"manifest {path} is missing") from error

    def load_last(self) -> Manifest | None:
        """The newest manifest, or None before the first commit."""
        sequences = self.sequences()
        return self.load(sequences[-1]) if sequences else None

    def load_all(self) -> list[Manifest]:
        """Every manifest, oldest first.

        Raises:
            DataLossError: one is missing.
        """
        sequences = self.sequences()
        if sequences and sequences != list(range(sequences[-1] + 1)):
            raise DataLossError(f"manifests are missing in {self.commits}")
        return [self.load(sequence) for sequence in sequences]

    def publish(self, manifest: Manifest) -> bool:
        """Make ``manifest`` the newest, durably; False if another writer took its number.

        Raises:
            DataLossError: a staged file that the manifest names is gone or of another size.
        """
        for file in manifest.files:
            self._refuse_missing(file)
        building = self.commits / f".{uuid.uuid4().hex}.tmp"
        write_durably(building, encode_manifest(manifest))
        try:
            os.link(building, self._manifest_path(manifest.sequence))
        except FileExistsError:
            return False
        finally:
            building.unlink()
        sync_directory(self.commits)
        return True

    def place(self, manifest: Manifest) -> None:
        """Give the data files of a published manifest their names in the table's directory.

        Idempotent, and harmless if several processes do it at once.

        Raises:
            DataLossError: a file is neither in its place nor staged.
        """
        placed_any = False
        for file in manifest.files:
            try:
                os.link(self.staging / file.staged, self.root / file.name)
                placed_any = True
            except FileExistsError:
                continue
            except FileNotFoundError as error:
                if not (self.root / file.name).exists():
                    raise _gone(self.root / file.name) from error
        if placed_any:
            sync_directory(self.root)

    def locate(self, file: DataFile) -> Path:
        """Where a committed file can be read now.

        Raises:
            DataLossError: it is neither in its place nor staged.
        """
        # Staging is asked second, and the place once more after it, since a file may move between.
        for path in (self.root / file.name, self.staging / file.staged, self.root / file.name):
            if path.exists():
                return path
        raise _gone(self.root / file.name)

    def discard(self, staged: Sequence[str]) -> None:
        """Remove staged files that no manifest names."""
        for name in staged:
            (self.staging / name).unlink(missing_ok=True)

    def collect_garbage(self, last: Manifest | None, *, age_s: float) -> int:
        """Remove what failed attempts left; returns how many files went.

        Args:
            last: the newest manifest, whose files may not be in place yet.
            age_s: seconds since the last write after which an uncommitted file is garbage; must
                exceed the longest job, whose first tasks finish long before it commits.
        """
        named = {file.staged for file in last.files} if last else set()
        removed = 0
        for entry in [*os.scandir(self.staging), *os.scandir(self.commits)]:
            if entry.name not in named and _is_garbage(entry, age_s):
                Path(entry.path).unlink(missing_ok=True)
                removed += 1
        return removed

    def _manifest_path(self, sequence: int) -> Path:
        return self.commits / f"{sequence:020d}.json"

    def _refuse_missing(self, file: DataFile) -> None:
        path = self.staging / file.staged
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise _gone(path) from error
        if size != file.size_bytes:
            raise DataLossError(f"{path} has {size} bytes instead of {file.size_bytes}")


def local_path(path: str) -> Path:
    """The directory that a path or ``file:`` URI names.

    Raises:
        InvalidConfigError: a URI of another kind.
    """
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if "://" in path:
        raise InvalidConfigError(
            f"a table lives on a POSIX file system that all writers share, not at {path!r}: object "
            "stores have no hard links, which the commit needs"
        )
    return Path(path).absolute()


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file and wait until its content is on the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until the content of a closed file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    sync_file(path)


def _is_garbage(entry: os.DirEntry[str], age_s: float) -> bool:
    if not entry.name.endswith((".parquet", ".tmp")):
        return False
    try:
        stat = entry.stat()
    except FileNotFoundError:
        return False
    # Two links: the file is in its place too, and only readers in flight use this name.
    limit = _PLACED_GRACE_S if stat.st_nlink > 1 else age_s
    return time.time() - stat.st_mtime > limit


def _gone(path: Path) -> DataLossError:
    return DataLossError(
        f"data file {path} is gone: it was deleted by hand, or was taken for garbage because the "
        "job ran longer than garbageAgeMs"
    )
