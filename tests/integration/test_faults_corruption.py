"""Corrupt files in a real data directory: found, named, not served; everything else is.

A broker process leaves a directory behind, killed or stopped; each test corrupts a copy as a bad
disk would, and opens it again.
"""

import json
import shutil

import pytest
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.errors import CorruptBatchError, StrandlineError
from strandline.record.batch import read_header
from strandline.testing import ProcessServer, Server

pytestmark = pytest.mark.slow
COUNT = 12
JOURNAL = {"file_bytes": 1 << 20}


def value(number):
    """Return the value of record ``number``."""
    return b"record %04d " % number + bytes([number % 251]) * 20_000


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Data directories of a killed and of a stopped broker."""
    root = tmp_path_factory.mktemp("corruption")
    environment = {"STRANDLINE_JOURNAL__FILE_BYTES": str(JOURNAL["file_bytes"])}
    with ProcessServer(root / "data", environment=environment) as server:
        with strandline.connect(server.flight) as client:
            client.create_stream("s", segment_bytes=64 << 10)
            client.create_stream("other", segment_bytes=64 << 10)
            client.append("other", b"untouched")
            client.append("s", value(0))
            client.append("s", value(1))
            client.delete_records("s", 1)
            for number in range(2, COUNT):
                assert client.append("s", value(number)) == number
        server.kill()
        shutil.copytree(root / "data", root / "killed")
        server.start()
        server.stop()
        shutil.copytree(root / "data", root / "stopped")
    return root


@pytest.fixture
def killed(directories, tmp_path):
    """A copy of the killed broker's directory."""
    return shutil.copytree(directories / "killed", tmp_path / "killed")


@pytest.fixture
def stopped(directories, tmp_path):
    """A copy of the stopped broker's directory."""
    return shutil.copytree(directories / "stopped", tmp_path / "stopped")


@pytest.fixture
def serve():
    """Open a directory again; gives a client of the broker."""
    opened = []

    def start(data_dir):
        server = Server(data_dir=data_dir, journal=JOURNAL)
        client = strandline.connect(server.start())
        opened.append((server, client))
        return client

    yield start
    for server, client in opened:
        client.close()
        server.stop()


def segments(data_dir):
    """The segment files of stream ``s``, oldest first."""
    return sorted((data_dir / "logs" / f"{1:08d}").glob("*.log"))


def places(file):
    """Position and length of each batch in a segment file, by base offset."""
    data, position, found = file.read_bytes(), 0, {}
    while position + 72 < len(data):
        header = read_header(data, position)
        found[header.base_offset] = (position, header.length)
        position += header.length
    return found


def flip(file, position, *, mask=0x10):
    """Change one bit."""
    data = bytearray(file.read_bytes())
    data[position] ^= mask
    file.write_bytes(data)


def inspect(data_dir):
    """Exit code and output of ``strandline inspect``."""
    done = CliRunner().invoke(app, ["inspect", str(data_dir), "-o", "json"])
    return done.exit_code, done.stdout


def readable(client):
    """Return the served offsets, after checking their contents."""
    rows = client.read("s", columns=["offset", "value"], skip_corrupt=True)
    found = {}
    for batch in rows:
        found.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    assert all(found[offset] == value(offset) for offset in found), "corruption is never served"
    return sorted(found)


def error_of_reading(client, offset):
    """Return the error of a read that does not skip corruption."""
    with pytest.raises(CorruptBatchError) as caught:
        list(client.read("s", start=offset))
    return str(caught.value)


ALL = list(range(1, COUNT))


@pytest.mark.parametrize("region", ["magic", "checksum", "length", "offset", "columns", "end"])
def test_a_flipped_bit_in_a_sealed_segment_costs_its_batch(stopped, serve, region):
    """Whatever byte of a batch it hits: the neighbours are served, the place is named."""
    file = segments(stopped)[1]
    offsets = places(file)
    corrupt = sorted(offsets)[1]
    position, length = offsets[corrupt]
    at = {"magic": 0, "checksum": 4, "length": 9, "offset": 17, "columns": 5000, "end": length - 9}
    flip(file, position + at[region])
    code, report = inspect(stopped)
    assert code == 1
    assert file.name in report
    assert str(position) in report
    client = serve(stopped)
    assert readable(client) == [n for n in ALL if n != corrupt]
    assert f"{file} at byte {position}" in error_of_reading(client, corrupt)
    assert client.append("s", value(COUNT)) == COUNT
    assert COUNT in readable(client)


@pytest.mark.parametrize("kept", [None, 0, 10_000], ids=["removed", "emptied", "cut"])
def test_offsets_of_a_lost_end_are_not_given_to_other_records(stopped, serve, kept, caplog):
    """Readers know those records by their offsets."""
    file = segments(stopped)[-1]
    lost = sorted(places(file))
    if kept is None:
        file.unlink()
    else:
        with file.open("r+b") as end:
            end.truncate(kept)
    client = serve(stopped)
    assert f"records {lost[0]} to {lost[-1]} are lost" in caplog.text
    assert readable(client) == ALL[: lost[0] - 1]
    assert client.append("s", value(COUNT)) == COUNT
    assert readable(client) == [*ALL[: lost[0] - 1], COUNT]


def test_lost_and_corrupt_indexes_are_recreated(stopped, serve):
    """Indexes are only a help: without them it takes longer, and nothing else changes."""
    for number, index in enumerate(sorted(segments(stopped)[0].parent.glob("*index"))):
        if number % 3 == 0:
            index.unlink()
        elif number % 3 == 1:
            flip(index, index.stat().st_size // 2)
        else:
            index.write_bytes(index.read_bytes()[:9])
    assert readable(serve(stopped)) == ALL


@pytest.mark.parametrize("number", range(1, COUNT - 1))
def test_a_corrupt_journal_entry_is_not_served(killed, serve, number, caplog):
    """The record is served from its segment, or else reported as lost."""
    journal, position = journal_entry(killed, number)
    flip(journal, position + 3000)
    code, report = inspect(killed)
    assert code == 1
    assert journal.name in report
    client = serve(killed)
    served = readable(client)
    if served != ALL:
        assert served == [n for n in ALL if n != number]
        assert f"corruption in {journal} at byte" in caplog.text
        assert "reading can continue" in error_of_reading(client, number)


def journal_entry(data_dir, number):
    """The journal file that holds a record, and where its value begins."""
    for file in sorted((data_dir / "journal").iterdir()):
        position = file.read_bytes().find(b"record %04d " % number)
        if position >= 0:
            return file, position
    raise AssertionError("the record is in no journal file")


@pytest.mark.parametrize("kept", [-100, -40, 0, 1, 8, 100, 10_000, 20_000])
def test_a_torn_last_entry_is_cut_and_everything_before_it_stays(killed, serve, kept):
    """A torn, unsynced last entry is dropped, and nothing else."""
    journal, position = journal_entry(killed, COUNT - 1)
    with journal.open("r+b") as file:
        file.seek(position + kept)
        file.write(bytes(30_000))
    last = segments(killed)[-1]
    found = places(last)
    if COUNT - 1 in found:  # it reached the segment too: a power loss takes it from there as well
        with last.open("r+b") as file:
            file.truncate(found[COUNT - 1][0] + max(kept, 0))
    client = serve(killed)
    assert readable(client) == ALL[:-1]
    assert client.append("s", value(COUNT - 1)) == COUNT - 1, "its offset was never used"
    assert [batch.num_rows for batch in client.read("other")] == [1]


@pytest.mark.parametrize("name", ["checkpoint.json", "log-start"])
def test_a_corrupt_small_file_is_done_without(stopped, serve, name):
    """The checkpoint and the log start can be found out again from the logs."""
    [file] = stopped.rglob(name)
    file.write_bytes(bytes(file.stat().st_size))
    assert readable(serve(stopped))[-len(ALL) :] == ALL


def test_corrupt_metadata_refuses_to_start_and_touches_nothing(stopped, serve):
    """Which streams exist is not guessed: the error names the file, and the records stay."""
    metadata, log = stopped / "metadata.json", stopped / "metadata.log"
    intact, commands = metadata.read_bytes(), log.read_bytes()
    before = {file: file.read_bytes() for file in segments(stopped)}
    log.write_bytes(commands.replace(b'"s"', b'"t"', 1))
    with pytest.raises(StrandlineError, match=r"metadata\.log"):
        serve(stopped)
    log.write_bytes(commands)
    for corrupt in (b"", intact[:100], None):
        if corrupt is None:
            metadata.unlink()
        else:
            metadata.write_bytes(corrupt)
        with pytest.raises(StrandlineError, match=r"metadata\.json"):
            serve(stopped)
    assert {file: file.read_bytes() for file in segments(stopped)} == before
    metadata.write_bytes(intact)
    assert readable(serve(stopped)) == ALL


def test_an_intact_directory_is_reported_intact(stopped, killed):
    """``inspect`` finds nothing wrong after a clean stop, nor after a kill."""
    for data_dir in (stopped, killed):
        code, report = inspect(data_dir)
        assert code == 0, report
        assert all(json.loads(line) for line in report.splitlines())


def test_files_of_others_are_left_alone(stopped, serve):
    """A stray file in the data directory is neither read nor removed."""
    strays = [
        stopped / "notes.txt",
        stopped / "journal" / "notes.txt",
        segments(stopped)[0].parent / "notes.txt",
        stopped / "logs" / "notes.txt",
    ]
    for stray in strays:
        stray.write_text("mine")
    assert readable(serve(stopped)) == ALL
    assert all(stray.read_text() == "mine" for stray in strays)
