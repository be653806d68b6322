"""A program that syncs files for a broker; ``sync_process`` starts it and explains why.

Run as a script, with the descriptor of a socket as its only argument. Each message on the socket
carries the descriptor of a file. The answer is the system's error number, 0 if there is none, and
how many ns the sync took.

Rules: imports nothing of Strandline, so that it starts in milliseconds. It ends when the socket is
closed, and so with the broker, however the broker ends. It ignores signals meant for the broker,
since it also makes the broker's last syncs.
"""

import errno
import os
import signal
import socket
import struct
import sys
import time

REQUEST = b"\0"
ANSWER = struct.Struct("<iq")


def sync(fd: int) -> int:
    """Sync the contents of a file; return the system's error number, 0 if there is none."""
    try:
        os.fdatasync(fd)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def serve(channel: socket.socket) -> None:
    """Sync files until the other end closes the socket.

    Args:
        channel: preserves message boundaries, as SOCK_SEQPACKET does.
    """
    while True:
        message, received, _, _ = socket.recv_fds(channel, len(REQUEST), 1)
        if not message:
            return
        [fd] = received
        started_ns = time.monotonic_ns()
        code = sync(fd)
        channel.send(ANSWER.pack(code, time.monotonic_ns() - started_ns))
        os.close(fd)


def main() -> None:
    """Serve the socket whose descriptor is on the command line."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        try:
            serve(channel)
        except ConnectionError:
            return  # the broker was killed during a sync


if __name__ == "__main__":
    main()
