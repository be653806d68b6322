"""A child process that syncs files, so that the syncs do not need the loop's interpreter.

A thread needs the interpreter's lock to report a finished sync. While the loop is busy, each switch
between the two costs more than the sync: a tenth to a fifth of the broker's speed (docs/adr/0037
has the figures). A process needs one message each way.

Rules: the process is started on first use. Each request passes the open file itself, so that a
write-back error of the file is reported to this request. If the process is killed before it answers
a request, the sync counts as failed: the disk's result is unknown.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections import deque

from strandline.broker.child_environment import child_environment
from strandline.broker.write_path import sync_program
from strandline.broker.write_path.sync_program import ANSWER, REQUEST
from strandline.broker.write_path.sync_thread import Done
from strandline.errors import UnavailableError
from strandline.storage.disk import failed_sync

logger = logging.getLogger(__name__)


class SyncProcess:
    """One process that syncs files, and reports on the loop.

    Args:
        loop: runs the ``done`` callbacks, and everything else in this class.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Done] = deque()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_missed = False

    @property
    def pid(self) -> int | None:
        """The process id while the process runs, or None."""
        return None if self._process is None else self._process.pid

    def is_there(self) -> bool:
        """Whether the process runs; starts it if necessary and possible."""
        if self._channel is None:
            try:
                self._start()
            except OSError as error:
                if not self._is_missed:
                    logger.warning("no process for syncs, so the event loop syncs: %s", error)
                self._is_missed = True
                return False
            self._is_missed = False
        return True

    def submit(self, fd: int, done: Done) -> None:
        """Sync ``fd`` in the process, then call ``done(error or None, ms)`` on the loop.

        Call this only while ``is_there``.
        """
        assert self._channel is not None, "it was asked for"
        self._waiting.append(done)
        try:
            socket.send_fds(self._channel, [REQUEST], [fd])
        except OSError as error:
            self._loop.call_soon(
                self._release_process, f"the process that syncs has ended: {error}"
            )

    def close(self) -> None:
        """Wait for the submitted syncs, and end the process."""
        channel = self._channel
        if channel is None:
            return
        self._loop.remove_reader(channel.fileno())
        channel.setblocking(True)
        while self._waiting and (answer := self._receive(channel)):
            self._loop.call_soon(self._take, self._waiting.popleft(), answer)
        self._release_process("the process that syncs has ended")

    def _start(self) -> None:
        """Start the process.

        Raises:
            OSError: the system cannot start another process.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-I", "-S", sync_program.__file__, str(its.fileno())]
        with its:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    env=child_environment(),
                    pass_fds=(its.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._channel = ours
        self._loop.add_reader(ours.fileno(), self._answered)

    def _answered(self) -> None:
        """Complete the oldest request, or fail all if the process has ended."""
        assert self._channel is not None, "else nothing is read"
        try:
            answer = self._receive(self._channel)
        except BlockingIOError:
            return
        if answer:
            self._take(self._waiting.popleft(), answer)
        else:
            self._release_process("the process that syncs has ended")

    def _receive(self, channel: socket.socket) -> bytes:
        """Return the next answer; empty if the process has ended."""
        try:
            return channel.recv(ANSWER.size)
        except ConnectionError:
            return b""

    def _take(self, done: Done, answer: bytes) -> None:
        code, took_ns = ANSWER.unpack(answer)
        error = failed_sync(OSError(code, os.strerror(code)), "syncing") if code else None
        done(error, took_ns / 1e6)

    def _release_process(self, reason: str) -> None:
        """Release the process; the next request starts another."""
        if self._channel is not None:
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.wait()
            self._process = None
        waiting, self._waiting = self._waiting, deque()
        for done in waiting:
            done(UnavailableError(reason), 0.0)
