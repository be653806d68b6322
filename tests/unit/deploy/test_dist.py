"""The release's files: an archive that was made again is the same, byte for byte."""

import importlib.util
import io
import tarfile
import time

import pytest

from tests.kit.doc_examples import ROOT


@pytest.fixture
def dist():
    """The script that builds them."""
    spec = importlib.util.spec_from_file_location("dist", ROOT / "deploy" / "dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def archive(path, names, *, mtime, uid):
    """An archive as setuptools makes it, of these files."""
    with tarfile.open(path, "w:gz") as made:
        for name in names:
            item = tarfile.TarInfo(name)
            item.size, item.mtime, item.uid, item.mode = len(name), mtime, uid, 0o664
            made.addfile(item, io.BytesIO(name.encode()))


def test_an_archive_depends_on_nothing_but_its_files(dist, tmp_path):
    """Neither on the time, nor on the order of files, nor on who made it."""
    made = []
    for number, names in enumerate((("s/a", "s/b"), ("s/b", "s/a"))):
        raw, out = tmp_path / f"raw-{number}.tar.gz", tmp_path / f"out-{number}.tar.gz"
        archive(raw, names, mtime=time.time() + number, uid=number)
        dist.normalise(raw, out, epoch_s=1_700_000_000)
        made.append(out.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(out) as found:
        assert {each.name: found.extractfile(each).read() for each in found} == {
            "s/a": b"s/a",
            "s/b": b"s/b",
        }


def test_the_time_of_a_build_is_the_commit_s(dist, monkeypatch, tmp_path):
    """Or what is asked for, or none outside a checkout; never that of the day."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1234567890")
    assert dist.commit_time_s() == 1_234_567_890
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert dist.commit_time_s() < time.time()
    monkeypatch.setattr(dist, "ROOT", tmp_path)
    assert dist.commit_time_s() == dist.EARLIEST_S
