"""Beam's log on one broker that stops, starts again and runs out of disk."""

from contextlib import contextmanager

import pytest

from strandline.errors import DiskFullError
from strandline.storage.log import Log
from strandline.testing import Server

pytestmark = pytest.mark.timeout(400)


@contextmanager
def running(directory):
    """A broker in this process; the port of its log."""
    server = Server(data_dir=directory, grpc={"beam_port": 0})
    server.start()
    try:
        yield server.app.ready_line()["beam_port"]
    finally:
        server.stop()


def test_what_was_answered_survives(tmp_path, connected):
    """Entries, the first index and the place after a jump are there after a restart."""
    with running(tmp_path) as port, connected(port) as log:
        assert (log.info().firstIndex, log.info().lastIndex) == (1, 0)
        log.append([b"old"])
        log.discard(500)
        log.append([b"new"])
    with running(tmp_path) as port, connected(port) as log:
        assert (log.info().firstIndex, log.info().lastIndex) == (500, 500)
        assert log.entries(500, 1)[0].data == b"new"


def test_a_full_disk_is_said_once(tmp_path, connected, monkeypatch):
    """The reply is ``full``, and nothing comes after it."""

    def refuse(*_):
        raise DiskFullError("no space left")

    with running(tmp_path) as port, connected(port) as log:
        monkeypatch.setattr(Log, "append", refuse)
        replies = log.append([b"a"], [b"b"], [b"c"])
        assert [reply.WhichOneof("reply") for reply in replies] == ["full"]
        monkeypatch.undo()
        [reply] = log.append([b"a"])
        assert list(reply.ok.indexes) == [1]
