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
    """Journal, segment and checkpoint stand there with what they hold; exit code 0."""
    result = run(stopped)
    assert result.exit_code == 0, result.output
    assert "orders/0" in result.stdout
    assert f"records={RECORDS}" in result.stdout
    assert "none damaged" in result.stdout


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
    assert not segment["damaged"]


def test_a_flipped_bit_is_named_by_file_and_position(stopped, run):
    """Damage in the middle of a segment: its file, its byte, exit code 1; mended, all is well."""
    segment = segment_of(stopped)
    intact = segment.read_bytes()
    positions = [int(line.split()[0]) for line in run(segment).stdout.splitlines()]
    hit = positions[10]
    segment.write_bytes(intact[: hit + 60] + bytes([intact[hit + 60] ^ 1]) + intact[hit + 61 :])
    try:
        result = run(stopped)
        assert result.exit_code == 1
        assert f"DAMAGE  {segment.relative_to(stopped)} at byte {hit}:" in result.stdout
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


def test_damaged_metadata_does_not_hide_the_rest(stopped, run):
    """Without readable metadata the logs are still listed and verified, under their numbers."""
    metadata = stopped / "metadata.json"
    intact = metadata.read_bytes()
    metadata.write_bytes(b"{")
    try:
        result = run(stopped)
        assert result.exit_code == 1
        assert "metadata.json" in result.stderr
        assert f"records={RECORDS}" in result.stdout
    finally:
        metadata.write_bytes(intact)


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_what_is_not_ours_is_refused(run, tmp_path, content):
    """Another directory or file is an error with a code, not a listing of nothing."""
    assert run(tmp_path).exit_code == 1
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    result = run(file)
    assert result.exit_code == 1
    assert str(file) in result.stderr
    assert run(tmp_path / "absent").exit_code == 2
