"""A broker process on a disk that loses what was not synced: every acknowledged record is there.

Needs FUSE and the right to mount; skipped where there is none.
"""

import pytest

import strandline
from chaos.power_cut import power_cut_disk, unavailable_reason
from chaos.unsynced import Names
from strandline.testing import ProcessServer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("names", Names)
def test_a_new_broker_keeps_what_it_acknowledged_over_power_cuts(tmp_path, names):
    """Its directory is new, too: the names that lead to a record are as durable as the record."""
    (tmp_path / "probe").mkdir()
    if reason := unavailable_reason(tmp_path / "probe"):
        pytest.skip(reason)
    with power_cut_disk(tmp_path / "disk", names) as disk:
        server = ProcessServer(disk.path / "new" / "data")
        values = []
        try:
            for seed in (None, 1):
                server.start()
                append_more(server, values)
                server.kill()
                disk.cut(seed)
            server.start()
            with strandline.connect(server.flight) as client:
                assert stored(client) == values
        finally:
            server.kill()


def append_more(server, values):
    """Append to the stream, made at first, after a look at what it has."""
    with strandline.connect(server.flight) as client:
        if not values:
            client.create_stream("s", segment_bytes=64 << 10)
        assert stored(client) == values
        for number in range(20):
            values.append(b"%d " % number + bytes(10_000))
            client.append("s", values[-1])


def stored(client):
    """The values of the stream's records."""
    return [value for batch in client.read("s") for value in batch["value"].to_pylist()]
