"""What the process that syncs does with its socket."""

import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from strandline.broker.write_path import sync_program
from strandline.broker.write_path.sync_program import ANSWER, REQUEST, serve


@pytest.fixture
def channel():
    """One end of a socket whose other end is served."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = threading.Thread(target=serve, args=(its,))
    server.start()
    ours.settimeout(60)
    with ours, its:
        yield ours
        ours.shutdown(socket.SHUT_RDWR)
        server.join()


def ask(channel, fd):
    """Return the reply for a file: the error's number and ns."""
    socket.send_fds(channel, [REQUEST], [fd])
    return ANSWER.unpack(channel.recv(ANSWER.size))


def open_files():
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_it_syncs_the_file_it_is_handed(channel, tmp_path, monkeypatch):
    """The very file that was opened, whatever its number is and whether it has a name."""
    synced = []
    sync = os.fdatasync

    def seen(fd):
        synced.append(os.fstat(fd).st_ino)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", seen)
    inodes = []
    for name in ("a", "b"):
        with (tmp_path / name).open("wb") as file:
            (tmp_path / name).unlink()
            inodes.append(os.fstat(file.fileno()).st_ino)
            code, took_ns = ask(channel, file.fileno())
        assert code == 0
        assert took_ns >= 0
    assert synced == inodes


def test_it_answers_with_the_systems_error(channel):
    """A pipe cannot be synced."""
    reading, writing = os.pipe()
    assert ask(channel, writing)[0] == errno.EINVAL
    os.close(reading)
    os.close(writing)


def test_it_keeps_no_file_open(channel, tmp_path):
    """Else a deleted file would keep its space."""
    before = open_files()
    for number in range(20):
        with (tmp_path / str(number)).open("wb") as file:
            ask(channel, file.fileno())
    with (tmp_path / "last").open("wb") as file:
        ask(channel, file.fileno())
        ask(channel, file.fileno())  # when this is answered, what came before is closed
        assert open_files() <= before + 2


def test_it_knows_nothing_of_strandline():
    """So that it starts in milliseconds."""
    words = [sys.executable, "-I", "-S", "-X", "importtime", sync_program.__file__]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert "socket" in done.stderr
    assert "strandline" not in done.stderr.partition("Traceback")[0]
