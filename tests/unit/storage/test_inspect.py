"""Inspection: every file listed, corruption named by file and position, nothing changed."""

import shutil

import pytest

from strandline.errors import CorruptBatchError, InvalidRequestError
from strandline.record.batch import read_header
from strandline.storage.checkpoint import load_checkpoint
from strandline.storage.disk import Disk
from strandline.storage.dump import dump_file
from strandline.storage.inspect import inspect_directory
from strandline.storage.log_generation import write_generation
from strandline.storage.recovery import LogPlan, recover
from strandline.types import LogId


@pytest.fixture
def data_dir(tmp_path, make_batch):
    """Forty group commits in one log, with a checkpoint after thirty."""
    path = tmp_path / "data"
    plans = {LogId(1): LogPlan(path / "logs" / "00000001", 1000, 0)}
    storage = recover(path, plans, disk=Disk(), file_bytes=32 << 10)
    log = storage.logs[LogId(1)]
    for turn in range(40):
        batch = make_batch(turn, size=100)
        log.append(batch, read_header(batch))
        storage.journal.append([(LogId(1), batch)])
        storage.journal.sync()
        if turn == 29:
            pending = storage.checkpointer.begin(storage.logs)
            storage.checkpointer.write(pending)
            storage.checkpointer.finish(pending)
    log.checkpoint()
    log.delete_before(2)
    return path


def contents(path):
    """Every file of a directory with its bytes."""
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}


def findings(path, *, verify=True):
    """All findings in a directory."""
    return [f for report in inspect_directory(path, verify=verify) for f in report.findings]


def flip(path, position):
    """Flip a bit on disk."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_healthy_directory(data_dir):
    """Every file has a report with counts; nothing is found, and nothing changes."""
    before = contents(data_dir)
    told = []
    reports = list(
        inspect_directory(data_dir, verify=True, on_progress=lambda *at: told.append(at))
    )
    assert contents(data_dir) == before
    assert {report.file for report in reports} == set(before)
    assert [f for report in reports for f in report.findings] == []
    kinds = {report.kind for report in reports}
    assert kinds == {"checkpoint", "journal", "segment", "index", "timeindex", "log-start"}
    assert sum(r.facts["records"] for r in reports if r.kind == "segment") == 40
    journal = [r for r in reports if r.kind == "journal"]
    assert sum(r.facts["entries_after_checkpoint"] for r in journal) == 10
    assert told[-1][0] == told[-1][1] == sum(map(len, before.values()))


def test_without_verifying(data_dir):
    """A quick look lists the same files without reading the batches."""
    reports = list(inspect_directory(data_dir, verify=False))
    assert {report.file for report in reports} == set(contents(data_dir))
    assert not any("records" in report.facts for report in reports)


def test_corruption_is_named_by_file_and_position(data_dir):
    """A flipped bit in any kind of file is found where it is."""
    logs = data_dir / "logs" / "00000001"
    segments = sorted(logs.glob("*.log"))
    batch = read_header(segments[1].read_bytes()).length
    flip(segments[1], batch * 2 + 100)
    flip(min(logs.glob("*.index")), 60)
    flip(sorted(logs.glob("*.timeindex"))[1], 60)
    flip(logs / "log-start", 0)
    found = {(f.file, f.position, f.severity) for f in findings(data_dir)}
    assert found == {
        (segments[1], batch * 2, "corruption"),
        (min(logs.glob("*.index")), 0, "corruption"),
        (sorted(logs.glob("*.timeindex"))[1], 0, "corruption"),
        (logs / "log-start", 0, "corruption"),
    }


def test_corrupt_checkpoint(data_dir):
    """A checkpoint that cannot be read is corruption, and the rest is still looked at."""
    flip(data_dir / "checkpoint.json", 30)
    found = findings(data_dir)
    assert found[0].file == data_dir / "checkpoint.json"
    assert {f.severity for f in found} == {"corruption"}


def test_corrupt_journal(data_dir):
    """Corruption in an entry and in a batch of an entry are both found."""
    reports = list(inspect_directory(data_dir, verify=True))
    (report,) = [r for r in reports if r.facts.get("entries_after_checkpoint")]
    positions = [p for p, f in dump_file(report.file) if f["sequence"] > 30]
    flip(report.file, positions[3] + 100)
    flip(report.file, positions[6] + 20)
    found = [f for f in findings(data_dir) if f.file == report.file]
    assert sorted((f.position, f.severity) for f in found) == [
        (positions[3], "corruption"),
        (positions[6], "corruption"),
    ]


def test_torn_tails_are_not_corruption(data_dir):
    """An entry that was being written when the broker died is reported as torn."""
    logs = data_dir / "logs" / "00000001"
    last = max(logs.glob("*.log"))
    end = last.stat().st_size
    last.write_bytes(last.read_bytes() + b"STN1" + bytes(30))
    assert [(f.file, f.position, f.severity) for f in findings(data_dir)] == [(last, end, "torn")]


def test_torn_journal_entry(data_dir):
    """A truncated last entry is torn and not corrupt."""
    reports = list(inspect_directory(data_dir, verify=True))
    (report,) = [r for r in reports if r.facts.get("entries_after_checkpoint")]
    last = max(p for p, f in dump_file(report.file) if f["sequence"] == 40)
    data = bytearray(report.file.read_bytes())
    data[last + 60 :] = bytes(len(data) - last - 60)
    report.file.write_bytes(data)
    found = [f for f in findings(data_dir) if f.file == report.file]
    assert [(f.position, f.severity) for f in found] == [(last, "torn")]


def corruption(path, **options):
    """File, position and message of all corruption in a directory."""
    reports = inspect_directory(path, verify=True, **options)
    found = [f for report in reports for f in report.findings if f.severity == "corruption"]
    return [(f.file.name, f.position, f.message) for f in found]


def checkpointed(data_dir):
    """Return the segment that the checkpoint ends in, and the checkpoint's entry for it."""
    at = load_checkpoint(data_dir, disk=Disk()).logs[1]
    return data_dir / "logs" / "00000001" / f"{at.segment_base:020d}.log", at


@pytest.mark.parametrize("verify", [True, False])
def test_a_segment_cut_below_the_checkpoint_is_corruption(data_dir, verify):
    """Even if it ends between two batches, and without reading the rest."""
    segment, at = checkpointed(data_dir)
    first = read_header(segment.read_bytes()).length
    for later in segment.parent.glob("*.log"):
        if later > segment:
            later.unlink()
    segment.write_bytes(segment.read_bytes()[:first])
    found = [f for f in findings(data_dir, verify=verify) if f.severity == "corruption"]
    assert [(f.file, f.position) for f in found] == [(segment, first)]
    assert f"ends {at.position - first} bytes early" in found[0].message


def test_a_segment_cut_behind_the_checkpoint_is_not(data_dir):
    """The journal restores everything after the checkpoint, including whole segments."""
    segment, at = checkpointed(data_dir)
    for later in segment.parent.glob("*.log"):
        if later > segment:
            later.unlink()
    segment.write_bytes(segment.read_bytes()[: at.position])
    assert corruption(data_dir) == []


def test_missing_segments_are_corruption(data_dir):
    """The checkpoint's last segment, and one in the middle, reported by their records."""
    segment, at = checkpointed(data_dir)
    whole = segment.read_bytes()
    segment.unlink()
    told = f"records {at.segment_base} to {at.log_end_offset - 1} are missing, or some of them"
    assert corruption(data_dir) == [(segment.name, 0, told)]
    segment.write_bytes(whole)
    before, middle, after = sorted(segment.parent.glob("*.log"))[:3]
    middle.unlink()
    told = f"records {int(middle.stem)} to {int(after.stem) - 1} are missing"
    assert corruption(data_dir) == [(before.name, before.stat().st_size, told)]


def test_a_missing_log_is_corruption_unless_it_was_deleted(data_dir):
    """If that cannot be determined, a note is reported."""
    shutil.rmtree(data_dir / "logs" / "00000001")
    [(_, _, message)] = corruption(data_dir, known={1})
    assert message == "records 0 to 29 are missing, or some of them"
    assert corruption(data_dir, known=()) == []
    assert corruption(data_dir) == []
    [finding] = findings(data_dir)
    assert "unless this copy was deleted" in finding.message


def test_what_was_removed_on_purpose_is_not_missed(data_dir, make_batch):
    """Data truncated, restarted, compacted or recreated since the checkpoint is not missing."""
    plans = {LogId(n): LogPlan(data_dir / "logs" / f"{n:08d}", 1000, 0) for n in range(1, 6)}
    storage = recover(data_dir, plans, disk=Disk(), file_bytes=32 << 10)
    for number in range(2, 6):
        for turn in range(30):
            batch = make_batch(turn, size=100)
            storage.logs[number].append(batch, read_header(batch))
            storage.journal.append([(LogId(number), batch)])
    storage.journal.sync()
    for _ in range(2):
        pending = storage.checkpointer.begin(storage.logs)
        storage.checkpointer.write(pending)
        storage.checkpointer.finish(pending)
    storage.logs[1].truncate_to(12)
    storage.logs[2].truncate_to(28)
    storage.logs[3].delete_before(30)
    storage.logs[4].restart_at(100)
    storage.logs[5].delete()
    write_generation(plans[5].directory, storage.journal.sync(), disk=Disk())
    assert corruption(data_dir, known=set(plans)) == []
    for number, turn in ((1, 12), (2, 28), (3, 30), (4, 100)):
        batch = make_batch(turn, size=900)
        storage.logs[number].append(batch, read_header(batch))
        storage.journal.append([(LogId(number), batch)])
    storage.journal.sync()
    assert corruption(data_dir, known=set(plans)) == []


def test_what_was_stored_after_a_truncation_is_missed(data_dir, make_batch):
    """A checkpoint that knows of the truncation says more than its marker."""
    plan = LogPlan(data_dir / "logs" / "00000001", 1000, 0)
    storage = recover(data_dir, {LogId(1): plan}, disk=Disk(), file_bytes=32 << 10)
    log = storage.logs[1]
    log.truncate_to(28)
    kept = log.segments[-1].size
    batch = make_batch(28, size=100)
    log.append(batch, read_header(batch))
    storage.journal.append([(LogId(1), batch)])
    storage.journal.sync()
    for _ in range(2):
        pending = storage.checkpointer.begin(storage.logs)
        storage.checkpointer.write(pending)
        storage.checkpointer.finish(pending)
    segment = log.segments[-1].path
    with segment.open("r+b") as file:
        file.truncate(kept)
    [(name, position, message)] = corruption(data_dir)
    assert (name, position) == (segment.name, kept)
    assert f"ends {len(batch)} bytes early" in message


def test_strange_files_are_noted(data_dir):
    """Files that do not belong are noted; half-made and stale ones too."""
    logs = data_dir / "logs" / "00000001"
    (logs / "readme").write_text("?")
    (data_dir / "journal" / "000099.journal").write_bytes(b"")
    index = min(logs.glob("*.index"))
    (logs / "00000000000000000099.log").write_bytes(b"")
    (logs / "00000000000000000099.index").write_bytes(index.read_bytes())
    assert {(f.file.name, f.severity) for f in findings(data_dir)} == {
        ("readme", "note"),
        ("000099.journal", "note"),
        ("00000000000000000099.index", "note"),
    }


def test_what_the_nats_server_keeps_is_no_log(data_dir):
    """Its directory is the broker's own, and its log in words is nothing to verify."""
    (data_dir / "nats").mkdir()
    (data_dir / "nats" / "nats-server.log").write_text("[1] 2026/11/25 [INF] Server is ready\n")
    (data_dir / "nats" / "nats-server.conf").write_text("port: -1\n")
    assert findings(data_dir) == []
    assert not [r for r in inspect_directory(data_dir, verify=True) if r.file.parent.name == "nats"]


def test_index_that_points_nowhere(data_dir):
    """An index whose checksum is right but whose entries are wrong is noted."""
    logs = data_dir / "logs" / "00000001"
    first, second = sorted(logs.glob("*.log"))[:2]
    second.with_suffix(".index").write_bytes(first.with_suffix(".index").read_bytes())
    (finding,) = findings(data_dir)
    assert (finding.file, finding.severity) == (second.with_suffix(".index"), "note")


def test_dumps(data_dir):
    """Journal, segment and index files are dumped piece by piece, with positions."""
    logs = data_dir / "logs" / "00000001"
    segment = sorted(logs.glob("*.log"))[1]
    pieces = list(dump_file(segment))
    assert pieces[0][0] == 0
    assert pieces[0][1]["base_offset"] == int(segment.stem)
    flip(segment, 100)
    assert len(pieces) > 2
    assert list(dump_file(segment)) == [(0, {"corrupt_until": pieces[1][0]}), *pieces[1:]]
    assert list(dump_file(segment.with_suffix(".index"))) == [
        (48, {"offset": int(segment.stem), "log_position": 0})
    ]
    assert next(dump_file(segment.with_suffix(".timeindex")))[1]["log_position"] == 0
    journal = min((data_dir / "journal").glob("*"))
    assert {"sequence", "parts"} < set(next(dump_file(journal))[1])


def test_dump_rejects_other_files(data_dir):
    """Other files are rejected by name, and called corrupt only if they are."""
    (data_dir / "x.log").write_bytes(b"")
    (data_dir / "x.index").write_bytes(b"")
    for name in ("checkpoint.json", "x.log"):
        with pytest.raises(InvalidRequestError, match=f"{name} is neither"):
            list(dump_file(data_dir / name))
    with pytest.raises(CorruptBatchError, match=r"x\.index"):
        list(dump_file(data_dir / "x.index"))
