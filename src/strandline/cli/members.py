"""Who the brokers of a new cluster are, as flags say it: numbers, hosts, racks.

Rules: what could not work is refused with what to do: a number given twice, an address that nobody
reaches, or that only its own machine does while others are elsewhere.
"""

import re
from ipaddress import ip_address

from strandline.cli.cluster_config import Member, is_ip
from strandline.errors import InvalidRequestError

FOUNDERS_MAX = 7
"""More do not take part in decisions: see ``strandline.broker.cluster.voters``."""
BROKER_ID_MAX = (1 << 31) - 1
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9.])?")


def read_members(brokers: list[str], racks: list[str], peer_hosts: list[str]) -> list[Member]:
    """Who the brokers are, by their numbers.

    Raises:
        InvalidRequestError: they cannot be a cluster.
    """
    hosts = {number: _host(text) for number, text in _by_number(brokers, "--broker").items()}
    rack_of = _of_all(hosts, _by_number(racks, "--rack"), "--rack")
    peers = _of_all(hosts, _by_number(peer_hosts, "--peer-host"), "--peer-host")
    peer_of = {number: _host(text) for number, text in peers.items()}
    if len(hosts) > FOUNDERS_MAX:
        raise InvalidRequestError(
            f"{len(hosts)} brokers are more than the {FOUNDERS_MAX} that decide; found the cluster "
            "with fewer, and let the others in with 'strandline cluster add'"
        )
    for found in (hosts, peer_of):
        _refuse_mixed(found)
    for number, host in peer_of.items():
        if not is_ip(host):
            raise InvalidRequestError(
                f"--peer-host {number}={host}: a name may lead to any network; give the address in "
                "the one that is the brokers' own"
            )
    return [
        Member(number, hosts[number], peer_of.get(number, ""), rack_of.get(number, ""))
        for number in sorted(hosts)
    ]


def _by_number(entries: list[str], flag: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in entries:
        number, _, text = entry.partition("=")
        if not (number.isdecimal() and 0 < int(number) <= BROKER_ID_MAX and text):
            raise InvalidRequestError(f"{flag} {entry!r} has no number from 1, '=' and a value")
        if int(number) in found:
            raise InvalidRequestError(
                f"{flag} names broker {int(number)} twice; each has a number of its own"
            )
        found[int(number)] = text
    return found


def _of_all(hosts: dict[int, str], found: dict[int, str], flag: str) -> dict[int, str]:
    """What is said of every broker, or of none."""
    if found and (odd := hosts.keys() ^ found.keys()):
        raise InvalidRequestError(
            f"--broker and {flag} do not name the same brokers: only one of them has "
            f"{', '.join(map(str, sorted(odd)))}; give {flag} for each broker or for none"
        )
    return found


def _host(text: str) -> str:
    """A host that others can reach."""
    host = text.removeprefix("[").removesuffix("]")
    if host == "localhost":
        return "127.0.0.1"
    if is_ip(host):
        if ip_address(host).is_unspecified:
            raise InvalidRequestError(f"nobody reaches a broker at {host}; give its own address")
        return host
    if not HOST_NAME.fullmatch(host):
        raise InvalidRequestError(
            f"{text!r} is no host; give its name or address alone, and ports with --port-base"
        )
    return host


def _refuse_mixed(hosts: dict[int, str]) -> None:
    """Check that brokers of other machines are told nothing that leads to themselves."""
    local = [number for number, host in hosts.items() if is_local(host)]
    if local and len(local) < len(hosts):
        number = local[0]
        raise InvalidRequestError(
            f"broker {number} is at {hosts[number]}, which only its own machine reaches, and "
            "others are elsewhere; give the address in their network"
        )


def is_local(host: str) -> bool:
    """Whether only its own machine reaches it."""
    return is_ip(host) and ip_address(host).is_loopback
