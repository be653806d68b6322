"""Data directories of earlier versions: this one opens them, and everything is there.

An archive is made once for each release by ``make_data_directory.py`` and never again.
"""

import json
import tarfile
from pathlib import Path

import pytest

import strandline
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer
from tests.kit.waiting import until
from tests.upgrade.contents import contents

HERE = Path(__file__).parent
ARCHIVES = sorted(HERE.glob("*.tar.xz"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name)
def unpacked(request, tmp_path_factory):
    """The contents of an archive."""
    folder = tmp_path_factory.mktemp("upgrade")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    (folder / "keys").chmod(0o600)
    return folder


def test_there_is_an_archive_of_the_first_release():
    """Without any, the tests below would show nothing."""
    assert "0.1.0.tar.xz" in [path.name for path in ARCHIVES]


@pytest.mark.parametrize("kind", ["single", "cluster"])
def test_an_older_data_directory_is_opened(unpacked, kind):
    """Records, settings and groups are as they were; new records follow, also after a restart."""
    arguments = ("--ingest-port", "-1")
    if kind == "cluster":
        [port] = free_ports(1)
        arguments += ("--broker-id", "1", "--cluster-id", "upgrade", "--peer-port", str(port))
        arguments += ("--peers", f"1=127.0.0.1:{port}")
    environment = {"STRANDLINE_ENCRYPTION__KEY_FILE": str(unpacked / "keys")}
    server = ProcessServer(unpacked / kind, arguments=arguments, environment=environment)
    expected = json.loads((unpacked / "contents.json").read_text())[kind]
    try:
        server.start()
        with strandline.connect(server.flight) as client:
            found = until(lambda: contents(client), retried=(StrandlineError,))
            assert found.keys() == expected.keys()
            for name, stream in expected["streams"].items():
                assert found["streams"][name]["records"] == stream["records"], name
                # A new setting has its default.
                assert stream["config"].items() <= found["streams"][name]["config"].items()
            assert found["groups"] == expected["groups"]
            for what in ("rules", "tokens", "quotas"):
                assert found[what] == expected[what]
            for name in expected["streams"]:
                client.append(name, b"of a later version", key=b"new", subject=subject_of(name))
        server.restart()
        with strandline.connect(server.flight) as client:
            for name, stream in expected["streams"].items():
                rows = until(
                    lambda name=name: client.read(name).read_all(), retried=(StrandlineError,)
                )
                assert rows.num_rows == len(stream["records"]) + 1
    finally:
        server.kill()


def subject_of(name):
    """A subject of the stream."""
    return f"{name}.later" if name in ("plain", "newest") else None
