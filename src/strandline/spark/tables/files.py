"""A table of plain Parquet files: manifests published one after another, files in their place.

    table/part-<commit>-<n>.parquet          committed data, hard links of staged files
    table/_strandline/commits/<number>.json  manifests, which say what is committed

Rules: a manifest appears at once under a name that must not exist, so of two writers one succeeds,
and a reader never sees half a manifest. Everything a manifest names is durable before the manifest
is. A data file gets its place only after the manifest that names it, so a plain listing of a
directory never shows uncommitted files. (A listing of an object store may: files are written in
their place.)
Must not know Spark, nor what may be committed.
"""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import DataLossError, InvalidRequestError
from strandline.spark.tables.columns import conformed
from strandline.spark.tables.log import (
    DataFile,
    LiveFile,
    Manifest,
    Proposal,
    TableState,
    decode_manifest,
    decode_schema,
    encode_manifest,
    live_files,
    manifest_of,
    numbered,
    staged_name,
)
from strandline.spark.tables.store import (
    COMMITS,
    META_DIRECTORY,
    Loaded,
    LocalDirectory,
    TableDirectory,
    TableStore,
    local_path,
    usable,
)

DELTA_LOG = "_delta_log"
"""The subdirectory that marks a Delta table."""


class TableFiles(TableStore):
    """The files of a table; creates nothing before the first write.

    Args:
        directory: the directory of the table, or its path: absolute, relative or a ``file:`` URI.

    Raises:
        InvalidConfigError: the path is a URI of another kind.
    """

    def __init__(self, directory: TableDirectory | str) -> None:
        if isinstance(directory, str):
            directory = LocalDirectory(local_path(directory))
        super().__init__(directory)

    def check_kind(self, schema: pa.Schema | None = None) -> None:
        """Check that the directory is a table of plain files, or may become one."""
        del schema  # the manifests have the table's
        names = self.directory.names("")
        if DELTA_LOG in names:
            raise InvalidRequestError(
                f"{self.directory} is a Delta table; set tableFormat=delta, or choose another "
                "directory"
            )
        strangers = [name for name in names if not name.startswith((".", "_"))]
        if strangers and COMMITS not in self._folders():
            raise InvalidRequestError(
                f"{self.directory} is not empty and not a table ({strangers[0]}); "
                "choose another directory"
            )

    def _folders(self) -> list[str]:
        return [f"{META_DIRECTORY}/{name}" for name in self.directory.names(META_DIRECTORY)]

    def create(self) -> None:
        """Create the directories, durably.

        Raises:
            InvalidRequestError: the directory holds other files.
        """
        self.check_kind()
        self.directory.create(COMMITS)

    def sequences(self) -> list[int]:
        """Return the numbers of the published manifests, ascending; empty if there is no table.

        Raises:
            InvalidConfigError: the path is not a directory, or not readable.
        """
        names = self.directory.names(COMMITS)
        return sorted(int(name[:-5]) for name in names if name[:-5].isdecimal())

    def load(self) -> Loaded:
        """Return the newest manifest, after placing its files."""
        last = self.load_last()
        if last is not None:
            # The manifest's writer may have been killed before it synced or placed the files.
            self.directory.settle(COMMITS)
            self.directory.place(last.files)
        return Loaded(last)

    def load_manifest(self, sequence: int) -> Manifest:
        """Return one manifest.

        Raises:
            DataLossError: it does not exist.
            InvalidRecordError: it is corrupt.
        """
        name = _manifest_name(sequence)
        where = f"{self.directory}/{name}"
        try:
            return decode_manifest(self.directory.read(name), name=where)
        except FileNotFoundError as error:
            raise DataLossError(f"manifest {where} is missing") from error

    def load_last(self) -> Manifest | None:
        """Return the newest manifest, or None before the first commit."""
        sequences = self.sequences()
        return self.load_manifest(sequences[-1]) if sequences else None

    def load_all(self) -> list[Manifest]:
        """Return the manifests that name the table's files, oldest first.

        Raises:
            DataLossError: one is missing.
        """
        last = self.load_last()
        return [] if last is None else self._manifests_of(last)

    def publish(self, after: Loaded, state: TableState, proposal: Proposal) -> bool:
        """Write the manifest of ``state`` under its number, which must be free."""
        self.directory.check_files_exist(proposal.files)
        named = [
            staged_name(file) if self.directory.in_place else numbered(file, state.sequence, i)
            for i, file in enumerate(proposal.files)
        ]
        files, base = named, 0 if after.state is None else _manifest(after).base
        if proposal.replaces:
            replaced, listed = set(proposal.replaces), self._manifests_of(_manifest(after))
            kept = [file for file in live_files(listed) if file.name not in replaced]
            files, base = [*kept, *named], state.sequence
        manifest = manifest_of(
            state, proposal, files=files, base=base, now_ms=time.time_ns() // 1_000_000
        )
        name = _manifest_name(manifest.sequence)
        if not self.directory.create_file(name, encode_manifest(manifest)):
            return False
        self.directory.place(named)
        return True

    def scan(self, loaded: Loaded) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the manifests up to the loaded one name."""
        schema = decode_schema(_manifest(loaded).arrow_schema)
        for file in self.live_files(loaded):
            with usable(file.path), pq.ParquetFile(self.open_live(loaded, file)) as parquet:
                yield from (conformed(batch, schema) for batch in parquet.iter_batches())

    def live_files(self, loaded: Loaded, *, every: bool = False) -> list[LiveFile]:
        """Return all files that the manifests up to the loaded one name."""
        del every
        return [
            LiveFile(path=file.name, rows=file.rows, size_bytes=file.size_bytes)
            for file in live_files(self._manifests_of(_manifest(loaded)))
        ]

    def open_live(self, loaded: Loaded, file: LiveFile) -> Any:
        """Open a file; if its commit is the loaded one, the file may still be staged."""
        newest = {each.name: each for each in _manifest(loaded).files}
        named = newest.get(file.path) or DataFile(
            name=file.path, staged="", rows=file.rows, size_bytes=file.size_bytes
        )
        return self.directory.open_file(self.directory.locate(named))

    def committed_at_ms(self, loaded: Loaded) -> int | None:
        """Return the time of the commit from the manifest."""
        return None if loaded.state is None else _manifest(loaded).committed_at_ms

    def expire(self, *, age_s: float) -> int:
        """Remove files that were replaced at least ``age_s`` seconds ago, and their manifests."""
        limit_ms = time.time_ns() // 1_000_000 - int(age_s * 1000)
        removed, passed = 0, list[int]()
        for sequence in self.sequences():
            manifest = self.load_manifest(sequence)
            if manifest.committed_at_ms > limit_ms:
                break
            if passed and manifest.replaced:
                # Files first: after a crash the manifests still say which files to remove.
                self.directory.remove(manifest.replaced)
                self.directory.remove([_manifest_name(each) for each in passed])
                removed, passed = removed + len(manifest.replaced), []
            passed.append(sequence)
        return removed

    def _manifests_of(self, last: Manifest) -> list[Manifest]:
        """Return a manifest and those before it that name the files of its table."""
        before = range(last.base, last.sequence)
        return [*(self.load_manifest(sequence) for sequence in before), last]


def _manifest(loaded: Loaded) -> Manifest:
    """Return the manifest that was loaded."""
    assert isinstance(loaded.state, Manifest), loaded
    return loaded.state


def _manifest_name(sequence: int) -> str:
    return f"{COMMITS}/{sequence:020d}.json"
