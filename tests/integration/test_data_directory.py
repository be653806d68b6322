"""Every file of a data directory is one that docs/format.md names."""

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

import strandline
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
NATS = ("nats-server.conf", "nats-server.log", r"nats-server_\d+\.ports")
FAMILIES = {r"\d{20}": "0" * 20, r"\d{6}\.journal": "000001.journal"}
"""What the page shows one of."""


def alone():
    """Arguments of a broker by itself."""
    return ()


def in_a_cluster():
    """Arguments of the only broker of a cluster."""
    [port] = free_ports(1)
    peers = f"1=127.0.0.1:{port}"
    return ("--broker-id", "1", "--cluster-id", "files", "--peers", peers, "--peer-port", str(port))


def as_on_the_page(path):
    """A file's name as the page writes it."""
    for family, shown in FAMILIES.items():
        path = re.sub(family, shown, path)
    return path


@pytest.mark.parametrize("arguments", [alone, in_a_cluster])
def test_every_file_is_named(tmp_path, arguments):
    """After appends, retention, compaction, a position, a rule and a kill."""
    with ProcessServer(tmp_path / "data", arguments=arguments()) as server:
        with strandline.connect(server.flight) as client:
            client.create_stream("s", segment_bytes=1 << 20)
            client.create_stream("keyed", compact=True, segment_bytes=1 << 20)
            for stream in ("s", "keyed"):
                values = [os.urandom(1000) for _ in range(2500)]
                table = pa.table({"value": values, "key": [b"k"] * len(values)})
                client.append_batch(stream, table)
            client.delete_records("s", 1200)
            client.groups.commit("g", {("s", 0): 1300})
            client.access.grant("ann", "read", "stream", "s")
        server.kill()
        server.start()
        files = [file for file in server.data_dir.rglob("*") if file.is_file()]
        names = {as_on_the_page(file.name) for file in files if file.parent.name != "nats"}
    assert {"metadata.json", "log-start"} & names
    assert not {name for name in names if name not in PAGE}
    of_nats = {file.name for file in files if file.parent.name == "nats"}
    assert all(any(re.fullmatch(known, name) for known in NATS) for name in of_nats)
