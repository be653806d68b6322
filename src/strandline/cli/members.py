"""Parsing of the flags that name the brokers of a new cluster: numbers, hosts, racks.

Rules: combinations that cannot work are rejected, with what to do: a duplicate number, an
unreachable address, or a loopback address while other brokers are on other machines.
"""

import re
from ipaddress import ip_address

from strandline.cli.cluster_config import ClusterMember, is_ip
from strandline.errors import InvalidRequestError

FOUNDERS_MAX = 7
"""The limit of voters, as in ``strandline.broker.cluster.voters``."""
BROKER_ID_MAX = (1 << 31) - 1
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9.])?")


def read_members(
    brokers: list[str], racks: list[str], peer_hosts: list[str]
) -> list[ClusterMember]:
    """Return the brokers in order of their numbers.

    Raises:
        InvalidRequestError: the brokers cannot form a cluster.
    """
    hosts = {number: _host(text) for number, text in _by_number(brokers, "--broker").items()}
    rack_of = _of_all(hosts, _by_number(racks, "--rack"), "--rack")
    peers = _of_all(hosts, _by_number(peer_hosts, "--peer-host"), "--peer-host")
    peer_of = {number: _host(text) for number, text in peers.items()}
    if len(hosts) > FOUNDERS_MAX:
        raise InvalidRequestError(
            f"{len(hosts)} brokers are more than the {FOUNDERS_MAX} possible voters; start the "
            "cluster with fewer, and add the others with 'strandline cluster add'"
        )
    for found in (hosts, peer_of):
        _check_hosts(found)
    for number, host in peer_of.items():
        if not is_ip(host):
            raise InvalidRequestError(
                f"--peer-host {number}={host}: a name may resolve to another network; give the "
                "address in the brokers' network"
            )
    return [
        ClusterMember(number, hosts[number], peer_of.get(number, ""), rack_of.get(number, ""))
        for number in sorted(hosts)
    ]


def _by_number(entries: list[str], flag: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in entries:
        number, _, text = entry.partition("=")
        if not (number.isdecimal() and 0 < int(number) <= BROKER_ID_MAX and text):
            raise InvalidRequestError(
                f"{flag} {entry!r} is not ID=VALUE with an ID from 1; write e.g. {flag} 1=10.0.0.1"
            )
        if int(number) in found:
            raise InvalidRequestError(
                f"{flag} names broker {int(number)} twice; give each broker its own number"
            )
        found[int(number)] = text
    return found


def _of_all(hosts: dict[int, str], found: dict[int, str], flag: str) -> dict[int, str]:
    """Check that a flag is given for all brokers or for none."""
    if found and (odd := hosts.keys() ^ found.keys()):
        raise InvalidRequestError(
            f"--broker and {flag} name different brokers: only one of them has "
            f"{', '.join(map(str, sorted(odd)))}; give {flag} for each broker or for none"
        )
    return found


def _host(text: str) -> str:
    """Return a host, checked to be one that other machines can reach."""
    host = text.removeprefix("[").removesuffix("]")
    if host == "localhost":
        return "127.0.0.1"
    if is_ip(host):
        if ip_address(host).is_unspecified:
            raise InvalidRequestError(f"others cannot reach {host}; give the broker's own address")
        return host
    if not HOST_NAME.fullmatch(host):
        raise InvalidRequestError(
            f"{text!r} is not a host; give a name or address without port, and use --port-base"
        )
    return host


def _check_hosts(hosts: dict[int, str]) -> None:
    """Reject a loopback address if other brokers are on other machines."""
    local = [number for number, host in hosts.items() if is_local(host)]
    if local and len(local) < len(hosts):
        number = local[0]
        raise InvalidRequestError(
            f"broker {number} is at {hosts[number]}, which brokers on other machines cannot reach; "
            "give its address in their network"
        )


def is_local(host: str) -> bool:
    """Return whether a host can be reached only from its own machine."""
    return is_ip(host) and ip_address(host).is_loopback
