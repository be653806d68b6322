"""A table of plain Parquet files: manifests published one after another, files in their place.

    table/part-<commit>-<n>.parquet          committed data, hard links of staged files
    table/_strandline/commits/<number>.json  manifests; the truth

Rules: a manifest appears by linking a finished file to a name that must not exist, so of two
writers one wins and a reader never sees half of one; everything a manifest names is on the disk
before the manifest is; a data file gets its place only after the manifest that names it, so a plain
listing of the directory never shows what is not committed. Must not know Spark, nor what may be
committed.
"""

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import DataLossError, InvalidRequestError
from strandline.spark.table_log import (
    DataFile,
    Manifest,
    Proposal,
    TableState,
    decode_manifest,
    encode_manifest,
    manifest_of,
)
from strandline.spark.table_store import (
    META_DIRECTORY,
    Loaded,
    TableStore,
    gone,
    local_path,
    make_directory,
    remove_garbage,
    sync_directory,
    unusable,
    write_durably,
)

DELTA_LOG = "_delta_log"
"""The subdirectory that marks a Delta table."""


class TableFiles(TableStore):
    """The files of the table at ``path``; creates nothing before the first write.

    Args:
        path: directory, absolute or relative, or a ``file:`` URI.

    Raises:
        InvalidConfigError: a URI of another kind.
    """

    def __init__(self, path: str) -> None:
        super().__init__(local_path(path))
        self.commits = self.root / META_DIRECTORY / "commits"

    def refuse_other_kind(self, schema: pa.Schema | None = None) -> None:
        """Check that the directory is a table of plain files, or may become one."""
        del schema  # the manifests have the table's
        if (self.root / DELTA_LOG).is_dir():
            raise InvalidRequestError(
                f"{self.root} is a Delta table; set tableFormat=delta, or choose another directory"
            )
        if self.root.is_dir() and not self.commits.is_dir():
            names = (path.name for path in self.root.iterdir())
            strangers = [name for name in names if not name.startswith((".", "_"))]
            if strangers:
                raise InvalidRequestError(
                    f"{self.root} is not empty and not a table ({strangers[0]}); "
                    "choose another directory"
                )

    def create(self) -> None:
        """Create the directories, durably.

        Raises:
            InvalidRequestError: the directory holds other files.
        """
        self.refuse_other_kind()
        super().create()
        make_directory(self.commits)

    def sequences(self) -> list[int]:
        """Return the numbers of the published manifests, ascending; empty if there is no table.

        Raises:
            InvalidConfigError: the path is not a directory, or not readable.
        """
        try:
            names = [path.name for path in self.commits.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unusable(self.root, error) from error
        return sorted(int(name[:-5]) for name in names if name[:-5].isdecimal())

    def load(self) -> Loaded:
        """Return the newest manifest, its files in their place."""
        last = self.load_last()
        if last is not None:
            # Its writer may have been killed before the sync, or before it placed the files.
            sync_directory(self.commits)
            self.link_staged(last.files, self.root)
        return Loaded(last)

    def load_manifest(self, sequence: int) -> Manifest:
        """Return one manifest.

        Raises:
            DataLossError: it does not exist.
            InvalidRecordError: it is corrupt.
        """
        path = self._manifest_path(sequence)
        try:
            return decode_manifest(path.read_bytes(), name=str(path))
        except FileNotFoundError as error:
            raise DataLossError(f"manifest {path} is missing") from error

    def load_last(self) -> Manifest | None:
        """Return the newest manifest, or None before the first commit."""
        sequences = self.sequences()
        return self.load_manifest(sequences[-1]) if sequences else None

    def load_all(self) -> list[Manifest]:
        """Return every manifest, oldest first.

        Raises:
            DataLossError: one is missing.
        """
        sequences = self.sequences()
        if sequences and sequences != list(range(sequences[-1] + 1)):
            raise DataLossError(f"manifests are missing in {self.commits}")
        return [self.load_manifest(sequence) for sequence in sequences]

    def publish(self, after: Loaded, state: TableState, proposal: Proposal) -> bool:
        """Link the manifest of ``state`` to its number, which must be free."""
        del after  # the state's number says what it follows
        self.refuse_missing(proposal.files)
        manifest = manifest_of(state, proposal, now_ms=time.time_ns() // 1_000_000)
        building = self.commits / f".{uuid.uuid4().hex}.tmp"
        write_durably(building, encode_manifest(manifest))
        try:
            os.link(building, self._manifest_path(manifest.sequence))
        except FileExistsError:
            return False
        finally:
            building.unlink()
        sync_directory(self.commits)
        self.link_staged(manifest.files, self.root)
        return True

    def scan(self, loaded: Loaded) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the manifests up to the loaded one name."""
        assert loaded.state is not None
        for sequence in range(loaded.state.sequence + 1):
            for file in self.load_manifest(sequence).files:
                with pq.ParquetFile(self.locate(file)) as parquet:
                    yield from parquet.iter_batches()

    def locate(self, file: DataFile) -> Path:
        """Return the current path of a committed file.

        Raises:
            DataLossError: it is neither in its place nor staged.
        """
        # Check staging second, and the place once more, since a file may move meanwhile.
        for path in (self.root / file.name, self.staging / file.staged, self.root / file.name):
            if path.exists():
                return path
        raise gone(self.root / file.name)

    def collect_garbage(self, *, age_s: float) -> int:
        """Remove files that failed attempts left, half-written manifests too."""
        return super().collect_garbage(age_s=age_s) + remove_garbage(self.commits, age_s)

    def _manifest_path(self, sequence: int) -> Path:
        return self.commits / f"{sequence:020d}.json"
