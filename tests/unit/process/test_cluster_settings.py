"""Settings of a broker in a cluster: the members must be clear before the start."""

import pytest

from strandline.config import BrokerConfig, ClusterConfig
from strandline.errors import InvalidConfigError
from strandline.process.settings import load_settings
from strandline.process.wiring import BrokerApp

PEERS = ["1=10.0.0.1:9295", "2=[::1]:9296", "3=h3:9297"]


def load(**cluster):
    """Settings of broker 2, with some changed."""
    values = {"broker_id": 2, "name": "c", "peers": PEERS, **cluster}
    return load_settings(None, {}, {"cluster": values}).cluster


def test_every_broker_is_named_with_its_address():
    """Hosts may be names, numbers or IPv6 in brackets; the environment takes commas."""
    assert load().peer_addresses == {1: ("10.0.0.1", 9295), 2: ("::1", 9296), 3: ("h3", 9297)}
    environ = {
        "STRANDLINE_CLUSTER__BROKER_ID": "3",
        "STRANDLINE_CLUSTER__NAME": "c",
        "STRANDLINE_CLUSTER__PEERS": ", ".join(PEERS),
    }
    assert load_settings(None, environ, {}).cluster.peers == PEERS


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"broker_id": 4}, "cluster.peers does not name broker 4"),
        ({"nats_peers": ["1=h:6222"]}, "cluster.nats_peers does not name broker 2"),
        ({"name": ""}, "cluster.name has 1 to 128"),
        ({"broker_id": 0}, "cluster.broker_id is missing"),
        ({"broker_id": -1}, "cluster.broker_id is missing"),
        ({"peers": [*PEERS, "2=h:1"]}, "repeats an id"),
        ({"peers": ["2=h:70000"]}, "it is 1 to 65535"),
        ({"peers": ["h:9295"]}, "is not ID=HOST:PORT"),
        ({"peers": ["2=:9295"]}, "is not ID=HOST:PORT"),
        ({"peer_port": 9293}, "cluster.peer_port and flight_port are both 9293"),
        ({"tls_key": "key.pem"}, "TLS needs"),
    ],
)
def test_what_cannot_be_a_cluster_is_rejected(cluster, message):
    """The error names the key."""
    with pytest.raises(InvalidConfigError, match=message):
        load(**cluster)


@pytest.mark.parametrize(
    ("cluster", "bound", "dialled"),
    [
        ({}, "127.0.0.1", "10.0.0.1"),
        ({"peer_host": "10.0.0.1"}, "10.0.0.1", "10.0.0.1"),
        ({"advertised_host": "b1.example"}, "127.0.0.1", "b1.example"),
    ],
)
def test_brokers_and_clients_may_have_networks_of_their_own(cluster, bound, dialled):
    """By default peers and clients use the host of all ports."""
    values = {"broker_id": 1, "name": "c", "peers": PEERS, **cluster}
    config = load_settings(None, {}, {"cluster": values})
    assert (config.peer_host, config.cluster.client_host) == (bound, dialled)


async def test_only_a_broker_of_a_cluster_says_which_it_is(tmp_path):
    """The ready line has the number and the peer port of a broker among others, and only then."""
    alone = BrokerApp(BrokerConfig(data_dir=str(tmp_path / "a")), with_nats=False)
    assert "broker_id" not in alone.ready_line()
    config = ClusterConfig(broker_id=2, name="c", peers=PEERS, peer_port=9296)
    member = BrokerApp(BrokerConfig(data_dir=str(tmp_path / "b"), cluster=config), with_nats=False)
    assert member.ready_line()["broker_id"] == 2
    assert member.ready_line()["peer_port"] == 9296
