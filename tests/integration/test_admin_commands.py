"""Every admin command of the table, given to a real broker and to one of a cluster."""

import pyarrow.flight as fl

from strandline import connect
from strandline.api import cluster
from strandline.api.command import AdminCommand
from strandline.api.commands import COMMANDS
from strandline.api.status import from_flight
from strandline.api.wire import decode
from tests.kit.admin_requests import BODIES, MINE, OURS

_CLUSTER = [each.name for each in vars(cluster).values() if isinstance(each, AdminCommand)]
EXPECTED = {
    **dict.fromkeys(_CLUSTER, "invalid_request"),
    "create_stream": "stream_exists",
    "delete_records": "offset_out_of_range",
    "rotate_keys": "invalid_request",
    "prepare_transaction": "producer_fenced",
    "add_to_transaction": "producer_fenced",
    "end_transaction": "producer_fenced",
    "end_prepared": "unknown_transaction",
}
"""What a single broker answers where the body of the kit asks for what it does not have."""


def outcome(client: fl.FlightClient, command: AdminCommand) -> str:
    """Run a command; return the code of its error, or "" once its results are decoded."""
    try:
        results = list(client.do_action(fl.Action(command.name, BODIES[command.name])))
    except fl.FlightError as error:
        return from_flight(error, address="the broker").code
    for each in results:
        decode(each.body.to_pybytes(), command.result, what=command.name)
    return ""


def test_every_command_is_served(strandline_url):
    """With results of the declared type, or an error of the protocol; no handler fails."""
    with connect(strandline_url.flight) as client:
        for name in (MINE, OURS):
            client.create_stream(name)
    with fl.connect(f"grpc://{strandline_url.flight}") as flight:
        # The others need the stream.
        order = sorted(COMMANDS, key="delete_stream".__eq__)
        found = {name: outcome(flight, COMMANDS[name]) for name in order}
    assert {name: code for name, code in found.items() if code} == EXPECTED
