"""The table through power cuts: committed rows are there, whatever was not synced.

The disk of the model keeps promises only: a file's content and a directory's names are on it as
they were when they were last synced. Of each directory the cut leaves those or the newest names, so
that what was done later may have come first; of a file that was never synced it leaves nothing.
"""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.spark.table import commit
from strandline.spark.tables import store as table_store
from strandline.spark.tables.files import TableFiles
from strandline.spark.tables.store import make_directory, replace_durably
from tests.kit.tables import DAY_MS, propose, rows, stored, visible

STEPS = ("link", "mkdir", "rename", "unlink", "fsync")
TABLE = Path("deep", "table")
STEPS_OF_A_BATCH = 21


def names_in(directory):
    """The numbers of the files in a directory, by name."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}


class Power:
    """Tracks what of a directory survives a power cut from now on."""

    def __init__(self, top, monkeypatch):
        self.top = top
        self._synced = {}
        self._held = []
        self.before_step = lambda: None
        for name in STEPS:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), name))
        self._synced[top.stat().st_ino] = {}

    def _watched(self, original, name):
        def call(*args, **kwargs):
            self.cut()
            done = original(*args, **kwargs)
            if name == "fsync":
                self._note(args[0])
            return done

        return call

    def cut(self):
        """What a test does before each step; it has none itself."""
        before_step, self.before_step = self.before_step, lambda: None
        try:
            before_step()
        finally:
            self.before_step = before_step

    def _note(self, fd):
        path = Path(f"/proc/self/fd/{fd}")
        if not path.readlink().is_relative_to(self.top):
            return
        self._held.append(os.dup(fd))  # so that no other file gets its number
        self._synced[os.fstat(fd).st_ino] = names_in(fd) if path.is_dir() else path.read_bytes()

    def survivors(self, into):
        """Yield a directory for each outcome of the power cut."""
        folders = (Path(folder) for folder, _, _ in os.walk(self.top))
        now = {folder.stat().st_ino: names_in(folder) for folder in folders}
        unsure = [number for number, names in now.items() if self._synced.get(number) != names]
        for count, newest in enumerate(itertools.product((False, True), repeat=len(unsure))):
            chosen = dict(zip(unsure, newest, strict=True))
            target = into / str(count)
            self._lay(self.top.stat().st_ino, target, now=now, chosen=chosen)
            yield target

    def _lay(self, number, target, *, now, chosen):
        target.mkdir(parents=True)
        names = now[number] if chosen.get(number) else self._synced.get(number, {})
        for name, inode in names.items():
            if inode in now or isinstance(self._synced.get(inode), dict):
                self._lay(inode, target / name, now=now, chosen=chosen)
            else:
                (target / name).write_bytes(self._synced.get(inode, b""))


@pytest.fixture
def power(tmp_path, monkeypatch):
    """The power of a directory's disk; names in staging go as soon as a file has its place."""
    monkeypatch.setattr(table_store, "_PLACED_GRACE_S", -1.0)
    top = tmp_path / "disk"
    top.mkdir()
    power = Power(top, monkeypatch)
    yield power
    for fd in power._held:
        os.close(fd)


def load(files, batch):
    """Write a batch like a query; each has ten rows in two files."""
    first = batch * 10
    pieces = rows(0, first, first + 4), rows(0, first + 4, first + 10)
    commit(files, propose(files, *pieces, batch=batch), garbage_age_ms=DAY_MS)


def values(batches):
    """Return the rows of this many batches."""
    return sorted(b"0/%d" % offset for offset in range(batches * 10))


def survives(power, folder, acked):
    """Whatever a cut leaves now holds what was acknowledged, and of the next batch all or none.

    What is left can be loaded further.
    """
    for disk in power.survivors(folder):
        path = disk / TABLE
        found = stored(path) if TableFiles(str(path)).sequences() else []
        assert found in (values(acked), values(acked + 1))
        assert set(visible(path)) <= set(found)
        load(TableFiles(str(path)), acked)
        assert stored(path) == visible(path) == values(acked + 1)


def test_committed_batches_survive_a_cut_at_any_step(tmp_path, power):
    """Also where the names in staging go as soon as a file has its place."""
    acked, cuts = 0, itertools.count()
    power.before_step = lambda: survives(power, tmp_path / f"cut-{next(cuts)}", acked)
    for acked in range(3):
        load(TableFiles(str(power.top / TABLE)), acked)
    assert next(cuts) > 30


class KilledError(BaseException):
    """Simulates kill -9."""


@pytest.mark.parametrize("kill_at", range(STEPS_OF_A_BATCH))
def test_what_a_successor_acknowledges_survives_too(tmp_path, power, kill_at):
    """A writer is killed at any step; who does its work again finds some or all of it done, and
    must not take for durable what is only there.
    """
    make_directory((power.top / TABLE).parent)
    steps = itertools.count()

    def kill():
        if next(steps) == kill_at:
            raise KilledError

    power.before_step = kill
    with pytest.raises(KilledError):
        load(TableFiles(str(power.top / TABLE)), 0)
    power.before_step = lambda: None
    load(TableFiles(str(power.top / TABLE)), 0)
    survives(power, tmp_path / "cut", 1)


def test_a_replaced_file_is_the_old_one_or_the_new_one(tmp_path, power):
    """The new one, once that was said."""
    note = power.top / "deep" / "note"
    make_directory(note.parent)
    replace_durably(note, b"old")
    cuts, allowed = itertools.count(), {b"old", b"new"}

    def cut():
        for disk in power.survivors(tmp_path / f"cut-{next(cuts)}"):
            assert (disk / "deep" / "note").read_bytes() in allowed

    power.before_step = cut
    replace_durably(note, b"new")
    allowed = {b"new"}
    power.cut()
    assert next(cuts) > 3


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    """Two loads with one checkpoint: each replacement is whole, and none fails."""
    note = tmp_path / "note"
    texts = [b"%d" % n * 2000 for n in range(2)]

    def write(text):
        for _ in range(50):
            replace_durably(note, text)
            assert note.read_bytes() in texts

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, texts))
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
