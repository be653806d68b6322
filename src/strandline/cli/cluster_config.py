"""Settings files of the brokers of a new cluster: addresses, ports, and the YAML text.

Rules: brokers that share an address get ports ten apart, so that two on one machine do not collide.
Settings that must be equal at all brokers are generated here once. ``strandline.process.settings``
checks the result.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, NamedTuple

from strandline.config import BrokerConfig, bracketed
from strandline.process.ports import free_ports

CLIENT_PORTS = ("flight_port", "http_port", "nats_port", "ingest_port")
PEER_PORTS = ("peer_port", "nats_peer_port")
PORTS = CLIENT_PORTS + PEER_PORTS
"""The names of a broker's ports, in their order from ``--port-base``."""
PORTS_PER_BROKER = 10
NATS_PEER_PORT = 6222
"""The usual port for routes of nats-servers."""
EVERYWHERE = "0.0.0.0"  # noqa: S104 - a name may resolve to any address

COMMENTS = {
    "data_dir": "Directory of everything that this broker stores; never share it.",
    "log_level": "debug, info, warning or error.",
    "host": "Address that the ports for clients bind to.",
    "flight_port": "Arrow Flight: the Python client, the command line, Spark.",
    "http_port": "Web page, metrics, health.",
    "nats.port": "The nats-server that this broker starts.",
    "nats.ingest_port": "The broker's own listener for NATS publishers, which is faster.",
    "cluster.broker_id": "Number of this broker; never change it.",
    "cluster.name": "Name of the cluster, the same at every broker; others are rejected.",
    "cluster.peer_port": "Port on which the other brokers reach this one.",
    "cluster.peer_host": "Address that the ports for other brokers bind to.",
    "cluster.peers": "Every broker, including this one; the same at every broker.",
    "cluster.advertised_host": "Address that clients connect to.",
    "cluster.nats_peers": "Route addresses of the nats-servers; the same at every broker.",
    "cluster.nats_secret_file": "Shared secret of the nats-servers; the same at every broker.",
    "cluster.rack": "Replicas are spread over racks.",
}


class ClusterMember(NamedTuple):
    """One broker of a new cluster.

    Attributes:
        number: the broker's id.
        host: the address or name for clients.
        peer_host: the address for other brokers; empty for ``host``.
        rack: the broker's rack; empty if unknown.
        ports: the ports, by the names in ``PORTS``.
    """

    number: int
    host: str
    peer_host: str = ""
    rack: str = ""
    ports: Mapping[str, int] = MappingProxyType({})

    @property
    def addresses(self) -> set[str]:
        """The addresses on which the broker listens."""
        return {self.host, self.peer_host} - {""}


def with_ports(members: Sequence[ClusterMember], base: int | None) -> list[ClusterMember]:
    """Return the members with ports assigned.

    Args:
        members: members without ports.
        base: the first port of the first broker on an address; None: the default ports; 0: ports
            that are free on this machine.
    """
    if base == 0:
        free = iter(free_ports(len(members) * len(PORTS)))
        return [each._replace(ports={name: next(free) for name in PORTS}) for each in members]
    firsts = _usual_ports() if base is None else {name: base + i for i, name in enumerate(PORTS)}
    slots: list[int] = []
    for each in members:
        # The slots of earlier members that share an address with this one.
        near = [slots[i] for i, other in enumerate(members[: len(slots)]) if _meet(each, other)]
        slots.append(max(near, default=-1) + 1)
    return [
        each._replace(ports={name: p + slot * PORTS_PER_BROKER for name, p in firsts.items()})
        for each, slot in zip(members, slots, strict=True)
    ]


def _meet(one: ClusterMember, other: ClusterMember) -> bool:
    return not one.addresses.isdisjoint(other.addresses)


def _usual_ports() -> dict[str, int]:
    usual = BrokerConfig()
    nats, peer_port = usual.nats, usual.cluster.peer_port
    ports = (usual.flight_port, usual.http_port, nats.port, nats.ingest_port, peer_port)
    return dict(zip(PORTS, (*ports, NATS_PEER_PORT), strict=True))


def settings_of(
    member: ClusterMember,
    members: Sequence[ClusterMember],
    *,
    name: str,
    data_dir: str,
    secret_file: str = "",
) -> dict[str, Any]:
    """Return the settings of one broker, by the keys of ``BrokerConfig``."""
    cluster = {
        "broker_id": member.number,
        "name": name,
        "peer_port": member.ports["peer_port"],
        "peer_host": member.peer_host,
        "peers": _addresses(members, "peer_port"),
        "advertised_host": member.host if member.peer_host else "",
        "nats_peers": _addresses(members, "nats_peer_port"),
        "nats_secret_file": secret_file,
        "rack": member.rack,
    }
    return {
        "data_dir": data_dir,
        "host": member.host if is_ip(member.host) else EVERYWHERE,
        "flight_port": member.ports["flight_port"],
        "http_port": member.ports["http_port"],
        "nats": {"port": member.ports["nats_port"], "ingest_port": member.ports["ingest_port"]},
        "cluster": {key: value for key, value in cluster.items() if value != ""},
    }


def _addresses(members: Sequence[ClusterMember], port: str) -> list[str]:
    return [
        f"{each.number}={bracketed(each.peer_host or each.host)}:{each.ports[port]}"
        for each in members
    ]


def settings_text(settings: dict[str, Any], title: str) -> str:
    """Format settings as an annotated YAML file."""
    return "\n".join([f"# {title}", *_lines(settings, path="")]) + "\n"


def _lines(settings: dict[str, Any], path: str) -> Iterator[str]:
    indent = "  " if path else ""
    for number, (key, value) in enumerate(settings.items()):
        if comment := COMMENTS.get(path + key):
            if number or not path:
                yield ""
            yield f"{indent}# {comment}"
        if isinstance(value, dict):
            yield f"\n{key}:"
            yield from _lines(value, f"{key}.")
        elif isinstance(value, list):
            yield f"{indent}{key}:"
            yield from (f"{indent}  - {_text(each)}" for each in value)
        else:
            yield f"{indent}{key}: {_text(value)}"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # JSON is valid YAML


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
