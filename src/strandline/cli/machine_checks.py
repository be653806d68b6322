"""Checks of the machine on which a broker is to run: disk, descriptors, memory, clock, ports.

Rules: a check takes the broker's settings and yields findings. It leaves nothing behind, and
    reports
an error only where a broker would fail. The limits come from the modules that enforce them. This
module must not know how findings are shown.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from strandline.broker.lock import FILE_NAME
from strandline.cli.findings import CheckFinding, error, ok, warning
from strandline.cli.parsing import size_text
from strandline.config import BrokerConfig

SYNCS: Final = 50
SYNCING_S_MAX: Final = 2.0
SYNC_BYTES: Final = 4096
SYNC_MS_MAX: Final = 10.0
"""The median above which a disk is reported as slow: each publish waits for a sync."""
FREE_SHARE_MIN: Final = 0.05
FREE_INODES_MIN: Final = 1000
OPEN_FILES_WANTED: Final = 4096
RESIDENT_BYTES: Final = 192 << 20
"""The memory of a broker with a few streams, without publishes in flight."""
TIME_ERROR: Final = 5
"""The result of adjtimex if no program keeps the clock synchronized."""
TIMEX_BYTES: Final = 512
"""More than the size of ``struct timex`` on any system."""
CGROUPS: Final = Path("/sys/fs/cgroup")
LISTENING: Final = "0A"
"""The state of a listening socket in /proc/net/tcp."""

FILE_SYSTEMS: Final = {
    "tmpfs": "it is memory: all records are gone after a restart of the machine",
    "ramfs": "it is memory: all records are gone after a restart of the machine",
    "overlay": "it is a container's own layer, removed with the container: mount a volume",
    "nfs": "locks and syncs over a network may not hold what they promise",
    "nfs4": "locks and syncs over a network may not hold what they promise",
    "cifs": "locks and syncs over a network may not hold what they promise",
    "9p": "it may not sync to a disk",
}
"""File system on which a broker starts → why records are not durable there."""


def check_disk(config: BrokerConfig) -> Iterator[CheckFinding]:
    """Check that the data directory is writable and durable, has space, and syncs quickly."""
    directory = Path(config.data_dir).absolute()
    place = next(each for each in (directory, *directory.parents) if each.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".strandline-doctor-", dir=place) as probe:
            yield _data_directory(directory)
            yield _file_system(place)
            yield _space(place, config)
            yield _sync_latency(Path(probe) / "probe", place)
    except OSError as failure:
        yield error(
            "data directory",
            f"{failure.strerror} at {failure.filename or place}",
            f"let this user write to {place}, or choose another --data-dir"
            if failure.errno != errno.ENOSPC
            else f"free space on the file system of {place}, or choose another --data-dir",
        )


def _data_directory(directory: Path) -> CheckFinding:
    lock = directory / FILE_NAME
    if lock.exists():
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return error(
                    "data directory",
                    f"{directory} is in use by the broker with pid {file.read().strip()}",
                    "stop that broker, or choose another --data-dir and other ports",
                )
    return ok("data directory", f"{directory} can be written")


def _file_system(place: Path) -> CheckFinding:
    kind = file_system_of(place)
    reason = FILE_SYSTEMS.get(kind)
    if reason is None and kind.startswith("fuse"):
        reason = "a program in user space decides what a sync means"
    if reason is None:
        return ok("file system", kind)
    return warning("file system", f"{kind}: {reason}", "use a directory on a local disk")


def file_system_of(place: Path) -> str:
    """Return the type of a path's file system."""
    device = place.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            return rest.split()[0]
    return "unknown"


def _space(place: Path, config: BrokerConfig) -> CheckFinding:
    stats = os.statvfs(place)
    free, total = stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize
    found = f"{size_text(free)} of {size_text(total)} free"
    advice = "free space there, move data_dir, or set retention for the streams"
    journal = Path(config.data_dir) / "journal"
    kept = sum(file.stat().st_size for file in journal.glob("*")) if journal.is_dir() else 0
    if free + kept < config.journal.file_bytes:
        needed = size_text(config.journal.file_bytes)
        return error(
            "free space", f"{found}; the broker needs {needed} for its journal file", advice
        )
    # The journal has a spare file besides the one in use; then each partition needs space.
    if free + kept < 2 * config.journal.file_bytes or free < FREE_SHARE_MIN * total:
        return warning("free space", found, advice)
    if stats.f_files > 0 and stats.f_favail < FREE_INODES_MIN:
        return warning("free space", f"{found}, but only {stats.f_favail} inodes", advice)
    return ok("free space", found)


def _sync_latency(file: Path, place: Path) -> CheckFinding:
    """Measure what a group commit waits for: a small write and ``fdatasync``."""
    took_ms: list[float] = []
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Preallocate, as the journal does: a sync that changes the file's size takes longer.
        os.posix_fallocate(descriptor, 0, SYNCS * SYNC_BYTES)
        os.fsync(descriptor)
        end_s = time.perf_counter() + SYNCING_S_MAX
        for number in range(SYNCS):
            os.pwrite(descriptor, os.urandom(SYNC_BYTES), number * SYNC_BYTES)
            begin_s = time.perf_counter()
            os.fdatasync(descriptor)
            now_s = time.perf_counter()
            took_ms.append((now_s - begin_s) * 1000)
            if now_s > end_s:
                break
    finally:
        os.close(descriptor)
    median = statistics.median(took_ms)
    found = (
        f"fdatasync takes {median:.2f} ms (median of {len(took_ms)}), maximum {max(took_ms):.1f} ms"
    )
    if median > SYNC_MS_MAX:
        return warning(
            "sync latency",
            found,
            f"each group commit waits for it: use a local SSD for {place}, or see what else writes",
        )
    return ok("sync latency", found)


def check_descriptors(_: BrokerConfig) -> Iterator[CheckFinding]:
    """Check the limit of open files, and report what it suffices for."""
    from strandline.process.run import OPEN_FILES_MIN
    from strandline.storage.descriptors import UNLIMITED, shares_of

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    hard = hard if hard >= 0 else UNLIMITED
    advice = "raise it with 'ulimit -n 65536' (systemd: LimitNOFILE=65536)"
    if hard < OPEN_FILES_MIN:
        yield error(
            "open files", f"at most {hard}; a broker needs {OPEN_FILES_MIN} to start", advice
        )
        return
    shares = shares_of(hard)
    found = (
        f"at most {hard:,}: {shares.partitions:,} partitions and {shares.connections:,} connections"
    )
    yield (
        ok("open files", found)
        if hard >= OPEN_FILES_WANTED
        else warning("open files", found, advice)
    )


def check_memory(config: BrokerConfig) -> Iterator[CheckFinding]:
    """Check that a broker fits into the available memory."""
    values = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(values["MemAvailable"].split()[0]) * 1024
    found = f"{size_text(available)} available"
    limit = _memory_limit()
    if limit is not None and limit < available:
        available, found = limit, f"{size_text(limit)} allowed by the control group"
    needed = RESIDENT_BYTES + config.limits.pending_bytes
    advice = "give it more memory, or lower limits.pending_bytes"
    if available < RESIDENT_BYTES:
        yield error("memory", f"{found}; a broker needs {size_text(RESIDENT_BYTES)}", advice)
    elif available < needed:
        yield warning(
            "memory", f"{found}; under load a broker takes up to {size_text(needed)}", advice
        )
    else:
        yield ok("memory", found)


def _memory_limit() -> int | None:
    """Return the lowest memory limit of this process's control groups; None without one."""
    limits: list[int] = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = CGROUPS / "memory" if controllers else CGROUPS
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        inner = root / path.lstrip("/")
        for group in (inner, *inner.parents):
            with contextlib.suppress(OSError, ValueError):  # the file does not exist, or has "max"
                limits.append(int((group / file).read_text()))
            if group == root:
                break
    return min(limits, default=None)


def check_clock(_: BrokerConfig) -> Iterator[CheckFinding]:
    """Check that the clock is right, as far as the machine can tell."""
    now_s = time.time()
    newest_s = Path(__file__).stat().st_mtime
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    advice = "start a time service (systemd-timesyncd or chrony); retention by age needs the time"
    if now_s < newest_s:
        yield error("clock", f"{shown} is before this program was installed", advice)
        return
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    if state == TIME_ERROR:
        yield warning("clock", f"{shown}, not synchronized", advice)
    elif state < 0:
        yield warning(
            "clock", f"{shown}; {os.strerror(ctypes.get_errno())} when asked for its state", advice
        )
    else:
        yield ok("clock", f"{shown}, synchronized")


def ports_of(config: BrokerConfig) -> dict[str, tuple[str, int]]:
    """Return setting, address and port of each listener with a fixed port that is on."""
    found = {
        "flight_port": (config.host, config.flight_port),
        "http_port": (config.host, config.http_port),
        "nats.ingest_port": (config.host, config.nats.ingest_port),
        "grpc.port": (config.grpc.host or config.host, config.grpc.port),
        "grpc.beam_port": (config.grpc.host or config.host, config.grpc.beam_port),
    }
    if not config.nats.servers:
        found["nats.port"] = (config.host, config.nats.port)
    if config.cluster.is_on:
        found["cluster.peer_port"] = (config.peer_host, config.cluster.peer_port)
    return {setting: place for setting, place in found.items() if place[1] > 0}


def check_ports(config: BrokerConfig) -> Iterator[CheckFinding]:
    """Check that each listener's port is available."""
    free: list[str] = []
    for setting, (host, port) in ports_of(config).items():
        try:
            _listen(host, port)
        except OSError as failure:
            yield _refused_port(setting, host, port=port, failure=failure)
        else:
            free.append(str(port))
    if free:
        yield ok("ports", f"free: {', '.join(free)}")


def _listen(host: str, port: int) -> None:
    kind, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listeners do
        probe.bind(address)
        probe.listen(1)


def _refused_port(setting: str, host: str, *, port: int, failure: OSError) -> CheckFinding:
    check = f"port {port}"
    if failure.errno == errno.EADDRINUSE:
        holder = holder_of(port)
        return error(
            check,
            f"{setting}: taken by {holder or 'a process of another user'}",
            f"stop that, or set {setting} to another port (0 for a free one)",
        )
    if failure.errno == errno.EACCES:
        return error(
            check,
            f"{setting}: ports below 1024 need root or CAP_NET_BIND_SERVICE",
            f"set {setting} to a higher one",
        )
    return error(
        check,
        f"{setting}: cannot listen on {host}: {failure.strerror}",
        "set host to an address of this machine; 0.0.0.0 is all of them",
    )


def holder_of(port: int) -> str:
    """Return name and id of the process that listens on a port; empty if it is not known."""
    sockets = {
        f"socket:[{fields[9]}]"
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port
    }
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if any(_is_one_of(sockets, link) for link in list((process / "fd").iterdir())):
                name = (process / "comm").read_text().strip()
                return f"{name} (pid {process.name})"
    return ""


def _is_one_of(sockets: set[str], link: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # it has been closed
        return str(link.readlink()) in sockets
    return False
