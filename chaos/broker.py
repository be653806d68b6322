"""A broker whose clock and disk a chaos run can manipulate from outside.

    python -m chaos.broker --knobs FILE --data-dir DIR --broker-id 1 ...

It is the product's own broker, whose ``Clock`` and ``Disk`` are the real ones plus the deviations
in a shared file. The monotonic clock is unchanged, as it is when somebody sets a machine's clock.
Flags are those of ``strandline serve``; it prints the same ready line.
"""

import argparse
import json
import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final

from strandline.clock import SystemClock
from strandline.process.run import run_broker
from strandline.process.settings import load_settings
from strandline.storage.disk import Disk
from strandline.types import TimestampNs

_KNOBS: Final = struct.Struct("<qq")


class Knobs:
    """A small file shared by a broker and the nemesis.

    Args:
        path: the file; created if it is missing.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, _KNOBS.size)
            self._map = mmap.mmap(fd, _KNOBS.size)
        finally:
            os.close(fd)

    @property
    def clock_ms(self) -> int:
        """By how many ms the broker's clock is ahead of the machine's; negative if it is behind."""
        return int(_KNOBS.unpack_from(self._map)[0])

    @property
    def sync_ms(self) -> int:
        """The delay of each sync, in ms."""
        return int(_KNOBS.unpack_from(self._map)[1])

    def turn(self, *, clock_ms: int | None = None, sync_ms: int | None = None) -> None:
        """Set one value, or both."""
        clock = self.clock_ms if clock_ms is None else clock_ms
        sync = self.sync_ms if sync_ms is None else sync_ms
        _KNOBS.pack_into(self._map, 0, clock, sync)


class JumpingClock(SystemClock):
    """The machine's clock, with the deviation of the knobs."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs

    def now_ns(self) -> TimestampNs:
        """Return the Unix time in nanoseconds, plus the deviation."""
        return TimestampNs(super().now_ns() + self._knobs.clock_ms * 1_000_000)


class SlowDisk(Disk):
    """The machine's disk, slowed down."""

    syncs_plainly = False

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs

    def fdatasync(self, fd: int) -> None:
        """Sync, after the delay of the knobs."""
        super().fdatasync(fd)
        if self._knobs.sync_ms:
            time.sleep(self._knobs.sync_ms / 1e3)


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the flags as settings."""
    return {
        "data_dir": arguments.data_dir,
        "flight_port": arguments.flight_port,
        "http_port": arguments.http_port,
        "log_level": "warning",
        "nats": {"port": arguments.nats_port, "ingest_port": arguments.ingest_port},
        "cluster": {
            "broker_id": arguments.broker_id,
            "name": "chaos",
            "peer_port": arguments.peer_port,
            "peers": arguments.peers.split(","),
            "nats_peers": arguments.nats_peers.split(","),
        },
    }


def main() -> int:
    """Run the broker until a signal; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("knobs", "data-dir", "peers", "nats-peers"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("flight", "http", "nats", "ingest", "peer"):
        parser.add_argument(f"--{name}-port", type=int, required=True)
    parser.add_argument("--broker-id", type=int, required=True)
    arguments = parser.parse_args()
    knobs = Knobs(Path(arguments.knobs))

    def tell(ready: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()

    config = load_settings(None, {}, settings_of(arguments))
    return run_broker(config, on_ready=tell, clock=JumpingClock(knobs), disk=SlowDisk(knobs))


if __name__ == "__main__":
    sys.exit(main())
