"""``strandline backup`` and ``strandline restore``."""

import os
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    examples,
    note,
    print_done,
    print_json,
    progress,
    reports_errors,
)
from strandline.cli.parsing import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strandline.backup.manifest import BackupManifest
    from strandline.backup.take import BackupProgress, BackupResult, Report

TIMEOUT_S: Final = 30.0
"""How long a call is retried while a partition has no leader."""
REPORT_S: Final = 1.0

BACKUP_EPILOG = examples(
    "strandline backup /mnt/backup                     # the first time everything",
    "strandline backup /mnt/backup                     # later only what is new",
    "strandline backup /mnt/backup --verify            # and replace damaged files of the last one",
    "strandline backup /mnt/backup -s 10.0.0.1:9293,10.0.0.2:9293 -o json",
)
RESTORE_EPILOG = examples(
    "strandline restore /mnt/backup --verify           # only check every file",
    "strandline restore /mnt/backup --data-dir strandline-data",
    "strandline restore /mnt/backup --config broker-1.yaml    # at each broker of a new cluster",
)
BackupArgument = Annotated[Path, typer.Argument(metavar="BACKUP", help="The backup's directory.")]


@reports_errors
def backup(
    *,
    directory: BackupArgument,
    server: ServerOption = SERVER_DEFAULT,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Also read files copied before; copy damaged ones again."),
    ] = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Copy streams, records, groups and settings of running brokers into a directory.

    The backup has everything that was acknowledged before the command began. If the directory has a
    backup already, only what is new is copied. An interrupted backup leaves the previous one
    unchanged, and the next run continues it. For files that are already in the directory only the
    size is checked, unless --verify is given. Needs the permission to administer the cluster.
    """
    import strandline
    from strandline.backup.directory import BackupDirectory
    from strandline.backup.take import take_backup

    place = BackupDirectory(directory)
    with (
        strandline.connect(server, timeout_s=TIMEOUT_S) as client,
        place.locked(),
        _reported(output) as report,
    ):
        done = take_backup(client.brokers, place, report, verify=verify)
    for each in done.uncommitted:
        note(f"warning: not in the backup, since too few replicas are in sync to commit it: {each}")
    for each in done.damaged:
        note(
            f"note: missing or damaged; what the brokers still have of it was copied again: {each}"
        )
    for name in done.left_out:
        note(f"note: not in the backup, since it was deleted while the command ran: stream {name}")
    print_done(_backup_text(done, directory), _backup_document(done, directory), output=output)


@contextmanager
def _reported(output: OutputFormat) -> "Iterator[Report]":
    """Show the progress of a backup: a bar, or one document a second."""
    shown, next_s = 0, time.monotonic() + REPORT_S

    def to_json(now: "BackupProgress") -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + REPORT_S
            print_json({"event": "progress", **now._asdict()})

    if output is OutputFormat.json:
        yield to_json
        return
    with progress("backing up", None, unit="bytes") as advance:

        def to_bar(now: "BackupProgress") -> None:
            nonlocal shown
            advance(now.copied_bytes - shown)
            shown = now.copied_bytes

        yield to_bar


def _backup_text(done: "BackupResult", directory: Path) -> str:
    manifest = done.manifest
    return (
        f"backup {manifest.number} in {directory}: {len(manifest.image.streams)} streams, "
        f"{len(manifest.partitions)} partitions, {size_text(manifest.size)}; "
        f"{size_text(done.copied_bytes)} in {done.copied_files} files are new; it has everything "
        f"acknowledged before {_time(manifest.started_ns)}"
    )


def _backup_document(done: "BackupResult", directory: Path) -> dict[str, Any]:
    return {
        "event": "done",
        **_manifest_fields(done.manifest, directory),
        "copied_bytes": done.copied_bytes,
        "copied_files": done.copied_files,
        "uncommitted": done.uncommitted,
        "left_out": done.left_out,
        "damaged": done.damaged,
    }


def _manifest_fields(manifest: "BackupManifest", directory: Path) -> dict[str, Any]:
    return {
        "backup": str(directory),
        "number": manifest.number,
        "cluster": manifest.cluster,
        "started_ns": manifest.started_ns,
        "finished_ns": manifest.finished_ns,
        "streams": len(manifest.image.streams),
        "partitions": len(manifest.partitions),
        "files": len(manifest.files),
        "size_bytes": manifest.size,
    }


@reports_errors
def restore(
    *,
    directory: BackupArgument,
    data_dir: Annotated[
        str | None,
        typer.Option(help="The new broker's data directory, which must be empty."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="STRANDLINE_CONFIG",
            help="YAML file of the new broker's settings: its data directory and cluster.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            help="Replicas of each stream in the new cluster.",
            show_default="as in the backup",
            min=1,
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only verify the backup; nothing is restored.")
    ] = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Create the data directory of a new broker from a backup.

    For a cluster, run the command for every broker, with the broker's settings file and the same
    backup, before you start the first one. All files are verified first; if the backup is damaged
    or incomplete, nothing is written.
    """
    from strandline.backup.directory import BackupDirectory
    from strandline.backup.restore import load_backup, restore_backup
    from strandline.errors import InvalidRequestError
    from strandline.process.settings import load_settings

    place = BackupDirectory(directory)
    manifest = load_backup(place)
    if verify:
        with progress("verifying", manifest.size, unit="bytes") as advance:
            place.verify(manifest, advance)
        fields = _manifest_fields(manifest, directory)
        text = f"{directory} is intact: backup {manifest.number}, {size_text(manifest.size)}"
        print_done(text, {"event": "verified", **fields}, output=output)
        return
    if data_dir is None and config is None:
        raise InvalidRequestError(
            "the new broker's directory is missing; name it with --data-dir, or in the file of "
            "--config"
        )
    settings = load_settings(config, os.environ, {"data_dir": data_dir})
    with progress("restoring", 2 * manifest.size, unit="bytes") as advance:
        done = restore_backup(place, settings, replicas=replicas, advance=advance)
    for name in done.changed:
        before = manifest.image.streams[name].config.replicas
        note(f"note: {name} had {before} replicas in the backup and has another number now")
    text = (
        f"restored backup {manifest.number} into {done.data_dir}: {done.partitions} partitions, "
        f"{size_text(done.size)}, as of {_time(manifest.started_ns)}; start the broker"
    )
    document = {
        "event": "done",
        **_manifest_fields(manifest, directory),
        "data_dir": str(done.data_dir),
        "restored_partitions": done.partitions,
        "restored_bytes": done.size,
        "changed_replicas": done.changed,
    }
    print_done(text, document, output=output)


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
