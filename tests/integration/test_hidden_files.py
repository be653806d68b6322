"""Only the broker's user can read its files, and its children know no secret."""

import os
import stat
from pathlib import Path

import pytest

import strandline
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer

ADMIN = "an-administrators-token-made-for-this-test"
SECRETS = {"STRANDLINE_AUTH__ADMIN_TOKEN": ADMIN, "STRANDLINE_TOKEN": ADMIN, "AWS_SECRET": ADMIN}
ENVIRONMENT = {"STRANDLINE_AUTH__ENABLED": "true", **SECRETS, "GOMEMLIMIT": "1GiB"}


@pytest.fixture
def open_mask():
    """The most careless umask there is."""
    before = os.umask(0)
    yield
    os.umask(before)


def children_of(pid):
    """The processes that a process has started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()


def environment_of(pid):
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


@pytest.fixture(params=["alone", "cluster"])
def server(request, tmp_path, open_mask):
    """A broker with access checks and everything that writes files or starts processes."""
    arguments = ("--grpc-port", "0")
    if request.param == "cluster":
        [port] = free_ports(1)
        peers = f"1=127.0.0.1:{port}"
        arguments += ("--broker-id", "1", "--cluster-id", "c", "--peers", peers)
        arguments += ("--peer-port", str(port))
    with ProcessServer(
        tmp_path / "made" / "data", arguments=arguments, environment=ENVIRONMENT
    ) as made:
        with strandline.connect(made.flight, token=ADMIN) as client:
            client.create_stream("s", subject="s", segment_bytes=1 << 20)
            with client.producer("s") as producer:
                for _ in range(4):
                    producer.append(bytes(500_000))
            client.groups.commit("g", {("s", 0): 1})
        yield made


def test_files_are_for_the_user_of_the_broker_alone(server):
    """Whatever the umask: directories 0700, files 0600, those of nats-server too."""
    found = {path: stat.S_IMODE(path.lstat().st_mode) for path in server.data_dir.rglob("*")}
    for made in (server.data_dir, server.data_dir.parent):
        found[made] = stat.S_IMODE(made.stat().st_mode)
    assert any(path.name == "nats-server.log" for path in found), "it has started one"
    wide = {str(path): oct(mode) for path, mode in found.items() if mode & 0o077}
    assert not wide


def test_a_child_has_no_secret_in_its_environment(server):
    """Only known harmless variables are passed."""
    children = children_of(server.pid)
    assert children, "nats-server runs"
    for pid in children:
        variables = environment_of(pid)
        assert not [each for each in variables if ADMIN.encode() in each]
        assert not [each for each in variables if each.startswith(b"STRANDLINE")]
        assert b"GOMEMLIMIT=1GiB" in variables
