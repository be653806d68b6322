"""The advertised host of gRPC clients."""

import pytest

from strandline.config import BrokerConfig, ClusterConfig, GrpcConfig
from strandline.servers.grpc.address import advertised_host

PEERS = ["1=10.0.0.1:9295"]


@pytest.mark.parametrize(
    ("host", "grpc", "cluster", "dialled"),
    [
        ("10.0.0.9", "", None, "10.0.0.9"),
        ("0.0.0.0", "", None, "localhost"),
        ("0.0.0.0", "", "", "10.0.0.1"),
        ("10.0.0.9", "", "", "10.0.0.9"),
        ("10.0.0.9", "", "b1.example", "b1.example"),
        ("0.0.0.0", "", "b1.example", "b1.example"),
        ("10.0.0.9", "grpc.example", "b1.example", "grpc.example"),
    ],
)
def test_clients_dial_what_is_said_most_closely(host, grpc, cluster, dialled):
    """gRPC's own address wins, then the cluster's, then the bound address if it is specific."""
    settings = ClusterConfig()
    if cluster is not None:
        settings = ClusterConfig(broker_id=1, name="c", peers=PEERS, advertised_host=cluster)
    config = BrokerConfig(host=host, grpc=GrpcConfig(advertised_host=grpc), cluster=settings)
    assert advertised_host(config) == dialled
