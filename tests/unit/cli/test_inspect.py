"""Looking through a data directory from the command line."""

import json

import pytest
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.storage import reserve
from strandline.testing import Server

RECORDS = 50


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The data directory of a broker that was stopped cleanly."""
    directory = tmp_path_factory.mktemp("data")
    with Server(data_dir=directory) as url, strandline.connect(url) as client:
        client.create_stream("orders")
        for number in range(RECORDS):
            client.append("orders", b"value %d" % number)
    return directory


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def segment_of(directory):
    [segment] = directory.glob("logs/*/*.log")
    return segment


def test_an_intact_directory_is_listed(stopped, run):
    """Journal, segment and checkpoint are listed with their contents; exit code 0."""
    result = run(stopped)
    assert result.exit_code == 0, result.output
    assert "orders/0" in result.stdout
    assert f"records={RECORDS}" in result.stdout
    assert "none corrupt" in result.stdout


def test_looking_changes_nothing(stopped, run):
    """Not even a file that is missing is made."""
    (stopped / reserve.FILE_NAME).unlink()
    before = {path: path.stat().st_mtime_ns for path in stopped.rglob("*")}
    assert run(stopped).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in stopped.rglob("*")} == before


def test_the_listing_for_programs(stopped, run):
    """One JSON object per file, with kind, partition and findings."""
    reports = [json.loads(line) for line in run(stopped, "--output", "json").stdout.splitlines()]
    assert {"journal", "segment", "checkpoint"} <= {report["kind"] for report in reports}
    [segment] = [report for report in reports if report["kind"] == "segment"]
    assert segment["partition"] == "orders/0"
    assert segment["facts"]["records"] == RECORDS
    assert not segment["corrupt"]


def test_a_flipped_bit_is_named_by_file_and_position(stopped, run):
    """Corruption inside a segment is reported with file and byte, exit code 1; repaired, with 0."""
    segment = segment_of(stopped)
    intact = segment.read_bytes()
    positions = [int(line.split()[0]) for line in run(segment).stdout.splitlines()]
    hit = positions[10]
    segment.write_bytes(intact[: hit + 60] + bytes([intact[hit + 60] ^ 1]) + intact[hit + 61 :])
    try:
        result = run(stopped)
        assert result.exit_code == 1
        assert f"CORRUPT  {segment.relative_to(stopped)} at byte {hit}:" in result.stdout
        assert run(stopped, "--no-verify").exit_code == 0
    finally:
        segment.write_bytes(intact)
    assert run(stopped).exit_code == 0


def test_a_file_is_dumped_piece_by_piece(stopped, run):
    """A segment's batches with their headers, a journal's entries with their sequences."""
    batches = [
        json.loads(line)
        for line in run(segment_of(stopped), "--output", "json").stdout.splitlines()
    ]
    assert sum(batch["record_count"] for batch in batches) == RECORDS
    assert [batch["base_offset"] for batch in batches] == sorted(
        batch["base_offset"] for batch in batches
    )
    for journal in stopped.glob("journal/*.journal"):
        assert run(journal).exit_code == 0


@pytest.mark.parametrize("content", [b"{", None], ids=["corrupt", "missing"])
def test_without_metadata_the_rest_is_told(stopped, run, content):
    """The logs are still listed and verified, under their numbers; exit code 1."""
    metadata = stopped / "metadata.json"
    intact = metadata.read_bytes()
    if content is None:
        metadata.unlink()
    else:
        metadata.write_bytes(content)
    try:
        result = run(stopped)
        assert result.exit_code == 1
        assert "metadata.json" in result.stderr
        assert f"records={RECORDS}" in result.stdout
    finally:
        metadata.write_bytes(intact)


def test_a_missing_log_is_named(stopped, run):
    """A missing directory of a stream is corruption, also in the JSON listing."""
    logs = segment_of(stopped).parent
    aside = stopped / "aside"
    logs.rename(aside)
    try:
        result = run(stopped)
        assert result.exit_code == 1
        assert f"records 0 to {RECORDS - 1} are missing" in result.stdout
        [corrupt] = [
            report
            for report in map(json.loads, run(stopped, "--output", "json").stdout.splitlines())
            if report["corrupt"]
        ]
        assert corrupt["partition"] == "orders/0"
    finally:
        aside.rename(logs)
    assert run(stopped).exit_code == 0


def test_a_corrupt_file_by_itself_is_told(stopped, run, tmp_path):
    """The dump of a file with a flipped bit in its last batch continues, and exits with 1."""
    copy = tmp_path / segment_of(stopped).name
    intact = segment_of(stopped).read_bytes()
    copy.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    result = run(copy)
    assert result.exit_code == 1
    assert "corrupt_until" in result.stdout


def test_a_compacted_and_a_deleted_stream_are_not_missed(run, tmp_path):
    """Nor records removed by retention, or a stream without a record."""
    often = {"cleaner_interval_ms": 50, "journal": {"checkpoint_interval_ms": 50}}
    with Server(data_dir=tmp_path, **often) as url, strandline.connect(url) as client:
        client.create_stream("keys", compact=True, segment_bytes=64 << 10)
        client.create_stream("short", retention_records=5, segment_bytes=64 << 10)
        client.create_stream("gone")
        client.create_stream("empty")
        for number in range(200):
            client.append("keys", bytes(2000), key=b"%d" % (number % 3))
            client.append("short", bytes(2000))
        client.append("gone", b"v")
        client.delete_stream("gone")
        client.delete_records("keys", 60)
        while sum(log.stat().st_size for log in tmp_path.glob("logs/00000001/*.log")) > 200_000:
            client.list_streams()  # until it is compacted
    result = run(tmp_path)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_what_is_not_ours_is_rejected(run, tmp_path, content):
    """Another directory or file is an error with a code, not a listing of nothing."""
    assert run(tmp_path).exit_code == 1
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    result = run(file)
    assert result.exit_code == 1
    assert str(file) in result.stderr
    assert run(tmp_path / "absent").exit_code == 2
