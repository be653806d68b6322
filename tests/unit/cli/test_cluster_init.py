"""``strandline cluster init``: settings that brokers take and agree on, and nothing overwritten."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strandline.cli.app import app
from strandline.process.settings import load_settings

THREE = ("1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3")
ONE_MACHINE = ("1=127.0.0.1", "2=localhost", "3=127.0.0.1")


@pytest.fixture
def init(tmp_path, monkeypatch):
    """Run the command in an empty directory; by default three brokers, their settings loaded."""
    monkeypatch.chdir(tmp_path)

    def init(*arguments, brokers=THREE, code=0):
        named = [word for each in brokers for word in ("--broker", each)]
        result = CliRunner().invoke(app, ["cluster", "init", *named, *arguments])
        assert result.exit_code == code, result.output
        return result

    return init


def loaded(directory="strandline-cluster"):
    """The settings of all brokers, as ``strandline serve --config`` reads them."""
    files = sorted(Path(directory).glob("broker-*/strandline.yaml"))
    return [load_settings(file, {}, {}) for file in files]


def all_ports(config):
    """The ports that a broker listens on."""
    nats_peer = config.cluster.nats_addresses[config.cluster.broker_id][1]
    ports = [config.flight_port, config.http_port, config.nats.port, config.nats.ingest_port]
    return [*ports, config.cluster.peer_port, nats_peer]


def test_three_brokers_on_three_machines_have_the_usual_ports(init):
    """Each listens at its own address; all agree on the cluster, its brokers and its secret."""
    init()
    configs = loaded()
    assert [config.cluster.broker_id for config in configs] == [1, 2, 3]
    assert [config.host for config in configs] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert all(all_ports(config) == [9293, 9294, 4222, 4223, 9295, 6222] for config in configs)
    assert len({config.cluster.name for config in configs}) == 1
    for config in configs:
        assert config.cluster.peers == [f"{n}=10.0.0.{n}:9295" for n in (1, 2, 3)]
        assert config.cluster.nats_peers == [f"{n}=10.0.0.{n}:6222" for n in (1, 2, 3)]
    secrets = {Path(config.cluster.nats_secret_file).read_text() for config in configs}
    assert [len(secret.strip()) for secret in secrets] == [64]


def test_what_is_written_is_for_its_owner_alone(init):
    """Only the owner can read secrets and settings, whatever the umask."""
    before = os.umask(0)
    try:
        init()
    finally:
        os.umask(before)
    made = [Path("strandline-cluster"), *Path("strandline-cluster").rglob("*")]
    assert {path.name for path in made} >= {"nats-secret"}
    for path in made:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_two_clusters_are_never_taken_for_one(init):
    """Names are random, and secrets too; a name that is given is kept."""
    for out in ("a", "b"):
        init("--out", out)
    init("--out", "c", "--cluster-id", "production")
    names = [loaded(out)[0].cluster.name for out in "abc"]
    assert len(set(names)) == 3
    assert names[2] == "production"
    assert len({Path(out, "broker-1", "nats-secret").read_text() for out in "abc"}) == 3


def test_brokers_of_one_machine_share_no_port_and_no_directory(init):
    """So that a cluster can be tried on one; the usual ports, and those ten higher."""
    init(brokers=ONE_MACHINE)
    configs = loaded()
    ports = [port for config in configs for port in all_ports(config)]
    assert len(set(ports)) == 18
    assert ports[:6] == [9293, 9294, 4222, 4223, 9295, 6222]
    assert ports[6:12] == [9303, 9304, 4232, 4233, 9305, 6232]
    assert len({config.data_dir for config in configs}) == 3
    assert {config.host for config in configs} == {"127.0.0.1"}


@pytest.mark.parametrize("base", ["7000", "0"])
def test_ports_may_be_chosen_or_looked_for(init, base):
    """Six consecutive ports for each broker, or free ones of this machine."""
    init("--port-base", base, brokers=ONE_MACHINE)
    ports = [all_ports(config) for config in loaded()]
    assert len({port for each in ports for port in each}) == 18
    if base == "7000":
        assert ports[2] == [7020, 7021, 7022, 7023, 7024, 7025]


def test_a_name_is_dialled_and_every_address_listened_at(init):
    """A host's name may resolve to another address on the host itself."""
    init(brokers=("1=h1.example", "2=h2.example", "3=h3.example"))
    [config, *_] = loaded()
    assert config.host == "0.0.0.0"
    assert config.cluster.peers[0] == "1=h1.example:9295"


def test_an_address_of_ipv6_is_put_in_brackets(init):
    """The port comes after the brackets, in settings and output."""
    printed = init(brokers=("1=::1", "2=[::1]", "3=::1")).stdout
    assert loaded()[1].cluster.peer_addresses[2] == ("::1", 9305)
    assert loaded()[1].host == "::1"
    assert "--server '[::1]:9293'" in printed


def test_brokers_may_have_a_network_of_their_own(init):
    """Peers are listened for and dialled there; clients are sent to the other address."""
    own = [word for n in (1, 2, 3) for word in ("--peer-host", f"{n}=192.168.7.{n}")]
    init(*own)
    config = loaded()[1]
    assert (config.host, config.peer_host) == ("10.0.0.2", "192.168.7.2")
    assert config.cluster.client_host == "10.0.0.2"
    assert config.cluster.peers[0] == "1=192.168.7.1:9295"
    assert config.cluster.nats_peers[0] == "1=192.168.7.1:6222"


def test_racks_homes_and_data_directories_are_told(init):
    """Paths are those of the brokers' machines, not of the one where the command runs."""
    racks = [word for n in (1, 2, 3) for word in ("--rack", f"{n}=r{n}")]
    init(*racks, "--home", "/srv/strandline", "--data-dir", "/mnt/log")
    config = loaded()[2]
    assert config.cluster.rack == "r3"
    assert config.data_dir == "/mnt/log/broker-3"
    assert config.cluster.nats_secret_file == "/srv/strandline/broker-3/nats-secret"


def test_it_says_what_to_copy_where_and_what_to_run(init):
    """For people in steps, for programs as a document."""
    text = init("--out", "a", "--home", "/srv").stdout
    rows = [line.split() for line in text.splitlines()]
    assert [row[:2] for row in rows if row[:1] in (["1"], ["2"], ["3"])] == [
        [str(number), f"10.0.0.{number}"] for number in (1, 2, 3)
    ]
    assert "a/broker-2/  to  10.0.0.2:/srv/broker-2/" in text
    assert "strandline serve --config /srv/broker-2/strandline.yaml" in text
    assert "strandline cluster status --server 10.0.0.1:9293" in text
    document = json.loads(init("--out", "b", "--home", "/srv", "--output", "json").stdout)
    assert document["cluster_id"] == loaded("b")[0].cluster.name
    assert [broker["broker_id"] for broker in document["brokers"]] == [1, 2, 3]
    second = document["brokers"][1]
    assert (second["directory"], second["copy_to"]) == ("b/broker-2", "/srv/broker-2")
    assert second["command"] == "strandline serve --config /srv/broker-2/strandline.yaml"
    assert second["ports"]["nats_peer_port"] == 6222
    assert document["status_command"] == "strandline cluster status --server 10.0.0.1:9293"


def test_on_one_machine_there_is_nothing_to_copy(init):
    """The files are where they say that they are."""
    text = init(brokers=ONE_MACHINE).stdout
    assert "Copy" not in text
    for line in text.splitlines():
        if "--config" in line:
            assert Path(line.split()[-1]).exists()


def test_every_key_is_explained(init):
    """A file is read by people before it is read by a broker."""
    init("--rack", "1=r", brokers=("1=10.0.0.1",))
    lines = Path("strandline-cluster/broker-1/strandline.yaml").read_text().splitlines()
    keys = [number for number, line in enumerate(lines) if line.rstrip(":").strip().isidentifier()]
    keys += [number for number, line in enumerate(lines) if ": " in line and "#" not in line]
    assert len(keys) > 10
    sections = ("nats:", "cluster:")
    bare = [lines[n] for n in keys if lines[n] not in sections and "#" not in lines[n - 1]]
    assert not bare


def test_nothing_is_overwritten(init):
    """A second run changes nothing and adds no part of a cluster."""
    init()
    before = {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()}
    refused = init(brokers=(*THREE[1:], "4=10.0.0.4", "5=10.0.0.5"), code=1)
    assert "broker-2 exists already" in refused.stderr
    refused = init(brokers=("9=10.0.0.9", *THREE), code=1)
    assert {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()} == before


def test_what_a_broker_would_reject_leaves_nothing_behind(init):
    """Settings are loaded as a broker loads them before the command says that it is done."""
    refused = init("--cluster-id", "c" * 200, code=1)
    assert "cluster.name has 1 to 128 characters" in refused.stderr
    assert not Path("strandline-cluster").exists()


def test_a_package_that_is_missing_leaves_nothing_behind(tmp_path):
    """Without the broker's extra the error names it, and nothing is written."""
    code = "import sys; sys.modules['yaml'] = None; from strandline.cli import main; main()"
    command = [sys.executable, "-c", code, "cluster", "init", "--broker", "1=h", "--out", "a/b"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "the package 'yaml': pip install 'strandline[server]'" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("brokers", "arguments", "message"),
    [
        (("1=a", "1=b"), (), "broker 1 twice"),
        (("0=a",), (), "is not ID=VALUE"),
        (("a",), (), "is not ID=VALUE"),
        (("1=",), (), "is not ID=VALUE"),
        (("9999999999=a",), (), "is not ID=VALUE"),
        (("1=a:9295",), (), "and use --port-base"),
        (("1=a b",), (), "is not a host"),
        (("1=0.0.0.0",), (), "others cannot reach"),
        (("1=127.0.0.1", "2=10.0.0.2"), (), "other machines cannot reach"),
        (tuple(f"{n}=h{n}" for n in range(1, 9)), (), "more than the 7"),
        (THREE, ("--rack", "1=a"), "has 2, 3"),
        (("1=a",), ("--rack", "2=a"), "has 1, 2"),
        (("1=a",), ("--peer-host", "1=b"), "may resolve to another network"),
        (("1=a",), ("--port-base", "0"), "some brokers are elsewhere"),
    ],
)
def test_what_cannot_be_a_cluster_is_rejected(init, brokers, arguments, message):
    """The error has a valid alternative, and nothing is written."""
    refused = init(*arguments, brokers=brokers, code=1)
    assert message in refused.stderr
    assert "(invalid_request)" in refused.stderr
    assert not Path("strandline-cluster").exists()


def test_a_cluster_has_at_least_one_broker(init):
    """Fewer is a usage error."""
    assert "--broker" in init(brokers=(), code=2).output


@pytest.mark.parametrize(
    ("count", "advice"),
    [(1, "tolerates no loss"), (2, "the loss of none"), (3, ""), (4, "the loss of 1,")],
)
def test_an_even_number_of_brokers_is_advised_against(init, count, advice):
    """It works, but tolerates no more failures than one broker less."""
    result = init(brokers=[f"{n}=10.0.0.{n}" for n in range(1, count + 1)])
    assert advice in result.stderr
    assert bool(advice) == bool(result.stderr)
    assert len(loaded()) == count
