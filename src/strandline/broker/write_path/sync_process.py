"""A child process that syncs files, so that the loop shares the interpreter with nobody.

A thread that has synced needs the interpreter's lock to say so. While the loop is busy each
hand-over costs both of them more than the sync does: a tenth to a fifth of the broker's speed
(docs/adr/0037 has the figures). A process needs a message each way.

Rules: started when it is first needed. Each request hands over the open file itself, so that what
goes wrong while it is written back is told to whom it concerns. What is not answered, because the
process was killed, has failed: nobody knows what the disk has said.
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
        loop: where ``done`` callbacks run, and everything else here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Done] = deque()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_missed = False

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return None if self._process is None else self._process.pid

    def is_there(self) -> bool:
        """Whether the process runs; it is started if it does not, and if that is possible."""
        if self._channel is None:
            try:
                self._start()
            except OSError as error:
                if not self._is_missed:
                    logger.warning("no process to sync with, the loop syncs by itself: %s", error)
                self._is_missed = True
                return False
            self._is_missed = False
        return True

    def submit(self, fd: int, done: Done) -> None:
        """Sync ``fd`` in the process, then call ``done(error or None, ms)`` on the loop.

        Only while it is there.
        """
        assert self._channel is not None, "it was asked for"
        self._waiting.append(done)
        try:
            socket.send_fds(self._channel, [REQUEST], [fd])
        except OSError as error:
            self._loop.call_soon(self._give_up, f"the process that syncs has ended: {error}")

    def close(self) -> None:
        """Finish what was submitted and end the process."""
        channel = self._channel
        if channel is None:
            return
        self._loop.remove_reader(channel.fileno())
        channel.setblocking(True)
        while self._waiting and (answer := self._receive(channel)):
            self._loop.call_soon(self._take, self._waiting.popleft(), answer)
        self._give_up("the process that syncs has ended")

    def _start(self) -> None:
        """Start the process.

        Raises:
            OSError: the system has no room for it.
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
        """Tell who has waited longest, or everybody if the process has ended."""
        assert self._channel is not None, "else nothing is read"
        try:
            answer = self._receive(self._channel)
        except BlockingIOError:
            return
        if answer:
            self._take(self._waiting.popleft(), answer)
        else:
            self._give_up("the process that syncs has ended")

    def _receive(self, channel: socket.socket) -> bytes:
        """The next answer; nothing if the process has ended."""
        try:
            return channel.recv(ANSWER.size)
        except ConnectionError:
            return b""

    def _take(self, done: Done, answer: bytes) -> None:
        code, took_ns = ANSWER.unpack(answer)
        error = failed_sync(OSError(code, os.strerror(code)), "syncing") if code else None
        done(error, took_ns / 1e6)

    def _give_up(self, reason: str) -> None:
        """Let go of the process; the next request starts another one."""
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
