"""What our nats-server says of its clients."""

import json

import msgspec
import pytest

from strandline.api.monitoring import ConnectionInfo
from strandline.errors import UnavailableError
from strandline.servers.nats.server_clients import (
    CLIENTS_MAX,
    CONNZ,
    DESCRIPTION_BYTES_MAX,
    server_clients,
)


async def clients_of(answer, *, payload_max=1 << 20, ours=()):
    """What is listed where a server answers so, and the requests that it got."""
    asked = []

    async def ask(subject, payload):
        assert subject.decode() == CONNZ
        asked.append(json.loads(payload))
        return answer(asked[-1])

    found = await server_clients(
        ask, server="N", payload_max=payload_max, ours=ours, principal_of=lambda cid: f"p{cid}"
    )
    return found, asked


def server_with(count):
    """A server with so many clients."""

    def answer(request):
        numbers = range(count)[request["offset"] :][: request["limit"]]
        rows = [{"cid": n, "ip": "::1", "port": n, "kind": "Client", "in_msgs": 9} for n in numbers]
        return msgspec.json.encode({"server": {}, "data": {"connections": rows}})

    return answer


async def test_a_client_has_its_address_principal_and_messages():
    """The broker's own connections and leaf nodes are left out."""
    rows = [
        {"cid": 1, "ip": "10.0.0.1", "port": 4, "kind": "Client", "in_msgs": 3, "name": "x"},
        {"cid": 2, "ip": "10.0.0.1", "port": 5, "kind": "Client"},
        {"cid": 3, "ip": "10.0.0.1", "port": 6, "kind": "Leafnode"},
    ]
    answer = msgspec.json.encode({"data": {"connections": rows}})
    found, [request] = await clients_of(lambda _: answer, ours={2})
    address = "10.0.0.1:4"
    assert found == [ConnectionInfo(listener="nats", address=address, principal="p1", messages=3)]
    assert (request["server_name"], request["exact_match"]) == ("N", True)


@pytest.mark.parametrize("count", [0, 39, 40, 41, 100, CLIENTS_MAX + 5])
async def test_no_answer_is_longer_than_a_message_may_be(count):
    """Each has few clients, whatever they are called; all are found, up to a limit."""
    found, asked = await clients_of(server_with(count))
    assert [each.address for each in found] == [
        f"[::1]:{number}" for number in range(min(count, CLIENTS_MAX))
    ]
    assert all(each["limit"] * DESCRIPTION_BYTES_MAX <= 1 << 20 for each in asked)


@pytest.mark.parametrize("answer", [None, b"{", b'{"data": 3}', b'{"error": {"code": 403}}'])
async def test_another_answer_is_an_error(answer):
    """Of a server that does not know the request, or speaks otherwise."""
    with pytest.raises(UnavailableError, match="nats-server"):
        await clients_of(lambda _: answer)
