"""``strandline inspect``: list and verify the content of a data directory, read-only."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.output import (
    EXIT_ERROR,
    OutputFormat,
    OutputOption,
    examples,
    print_json,
    print_line,
    print_table,
    progress,
    reports_errors,
)
from strandline.cli.parsing import size_text
from strandline.errors import CorruptBatchError, InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from strandline.storage.inspect import FileReport

METADATA_NAME = "metadata.json"
CLUSTER_NAME = "broker.json"
"""The name of the metadata file of a broker in a cluster."""
EPILOG = examples(
    "strandline inspect strandline-data",
    "strandline inspect strandline-data --no-verify",
    "strandline inspect strandline-data/logs/00000001/00000000000000000000.log   # dump a file",
)


@reports_errors
def inspect(
    *,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A data directory, a log directory, or a file.", exists=True
        ),
    ],
    verify: Annotated[bool, typer.Option(help="Check the checksum of every batch.")] = True,
    output: OutputOption = OutputFormat.text,
) -> None:
    """List and verify the files of a data directory, or print one of them; changes nothing.

    Corruption, and missing data that the last checkpoint refers to, is reported with file and byte
    position; the exit code is then 1. A torn tail after a crash is not corruption: the next start
    discards it. If a broker is running, its newest bytes may look torn. In a single file, torn and
    corrupt bytes look the same.
    """
    if path.is_file():
        _dump(path, output)
        return
    if not _is_ours(path):
        raise InvalidRequestError(
            f"{path} is neither a data directory nor a log directory of a broker; give one of these"
        )
    names, known, unreadable = {}, None, None
    try:
        if (path / METADATA_NAME).exists():
            names = _log_names(path)
            known = {int(name) for name in names}
        else:
            _check_metadata_missing(path)
    except CorruptBatchError as error:
        unreadable = error
    try:
        reports = list(_verified(path, verify=verify, known=known))
    except FileNotFoundError as error:
        raise UnavailableError(
            f"{error.filename} was deleted by a running broker; inspect again"
        ) from error
    if output is OutputFormat.json:
        for report in reports:
            print_json(_as_json(report, path, names))
    else:
        _print_reports(reports, path, names)
    if unreadable is not None:
        raise unreadable  # at the end, so that all readable files are shown first
    if any(report.is_corrupt for report in reports):
        raise typer.Exit(EXIT_ERROR)


def _is_ours(path: Path) -> bool:
    known = any((path / name).exists() for name in (METADATA_NAME, "checkpoint.json", "journal"))
    return known or any(path.glob("*.log"))


def _check_metadata_missing(path: Path) -> None:
    """Check that a directory without a metadata file has no records, or belongs to a cluster.

    Raises:
        CorruptBatchError: the metadata file is missing.
    """
    from strandline.storage.checkpoint import load_checkpoint
    from strandline.storage.disk import Disk

    if (path / CLUSTER_NAME).exists():
        return
    checkpoint = load_checkpoint(path, disk=Disk())
    if (checkpoint is not None and checkpoint.logs) or any(path.glob("logs/*/*.log")):
        raise CorruptBatchError(
            "the metadata file is missing although there are records: restore it from a backup",
            file=str(path / METADATA_NAME),
        )


def _verified(path: Path, *, verify: bool, known: Collection[int] | None) -> "Iterator[FileReport]":
    """Yield the reports, and show a progress bar."""
    from strandline.storage.inspect import inspect_directory

    shown = 0
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    with progress("reading", size, unit="bytes") as advance:

        def on_progress(done: int, _total: int) -> None:
            nonlocal shown
            advance(done - shown)
            shown = done

        yield from inspect_directory(path, verify=verify, known=known, on_progress=on_progress)


def _log_names(path: Path) -> dict[str, str]:
    """Return each log directory's name with the partition it belongs to.

    Raises:
        CorruptBatchError: the metadata cannot be read.
    """
    from strandline.broker.metadata_store import load_metadata
    from strandline.storage.disk import Disk

    image = load_metadata(path, Disk())
    return {
        f"{partition.log_id:08d}": f"{name}/{number}"
        for name, stream in image.streams.items()
        for number, partition in enumerate(stream.partitions)
    }


def _print_reports(reports: "list[FileReport]", root: Path, names: Mapping[str, str]) -> None:
    rows = []
    for report in reports:
        facts = "  ".join(f"{key}={value}" for key, value in report.facts.items())
        partition = names.get(report.file.parent.name, "")
        file = str(report.file.relative_to(root))
        rows.append(
            (file, report.kind, partition, size_text(report.size_bytes), _state(report), facts)
        )
    print_table(("file", "kind", "partition", "#size", "state", "facts"), rows)
    findings = [finding for report in reports for finding in report.findings]
    if findings:
        print_line("")
    for finding in findings:
        place = finding.file.relative_to(root)
        word = "CORRUPT" if finding.severity == "corruption" else finding.severity
        print_line(f"{word}  {place} at byte {finding.position}: {finding.message}")
    corrupt = sum(report.is_corrupt for report in reports)
    print_line(f"\n{len(reports)} files, {corrupt or 'none'} corrupt")


def _state(report: "FileReport") -> str:
    if report.is_corrupt:
        return "CORRUPT"
    return "torn" if any(finding.severity == "torn" for finding in report.findings) else "ok"


def _as_json(report: "FileReport", root: Path, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "file": str(report.file.relative_to(root)),
        "kind": report.kind,
        "partition": names.get(report.file.parent.name),
        "size_bytes": report.size_bytes,
        "corrupt": report.is_corrupt,
        "facts": report.facts,
        "findings": [
            {
                "position": finding.position,
                "severity": finding.severity,
                "message": finding.message,
            }
            for finding in report.findings
        ],
    }


def _dump(file: Path, output: OutputFormat) -> None:
    """Print the content of one file, piece by piece."""
    from strandline.storage.dump import CORRUPT, dump_file

    is_corrupt = False
    for position, fields in dump_file(file):
        is_corrupt = is_corrupt or not fields.keys().isdisjoint(CORRUPT)
        if output is OutputFormat.json:
            print_json({"position": position, **fields})
        else:
            shown = "  ".join(f"{key}={value}" for key, value in fields.items())
            print_line(f"{position:>12}  {shown}")
    if is_corrupt:
        raise typer.Exit(EXIT_ERROR)
