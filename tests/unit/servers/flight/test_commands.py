"""The table of admin commands: each is served, listed, checked and offered by the client or CLI."""

import ast
from pathlib import Path
from types import NoneType
from typing import get_args, get_type_hints

import pytest

import strandline
from strandline.api import commands
from strandline.api.command import AdminCommand
from strandline.api.commands import COMMANDS
from strandline.api.required_permissions import cluster
from strandline.api.tickets import ReadRequest
from strandline.api.wire import WireAnswer, WireMessage
from strandline.client.cluster_client import ClusterClient
from strandline.errors import InvalidRequestError, NotAllowedError
from strandline.security.acl import Rule
from strandline.servers.flight.actions import HANDLERS, handles
from strandline.servers.flight.commands import allowed_request
from tests.unit.servers.flight.test_permissions import caller

SOURCE = Path(strandline.__file__).parent


def constants_of(folder: str) -> set[str]:
    """The names in upper case that the code of a folder uses."""
    trees = (ast.parse(path.read_text()) for path in (SOURCE / folder).rglob("*.py"))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_handler_takes_the_request_and_returns_the_results_of_its_declaration(name):
    """So client and broker encode and decode the same types."""
    command, hints = COMMANDS[name], get_type_hints(HANDLERS[name])
    [result] = get_args(hints.pop("return"))
    _context, request = hints.values()
    assert request == command.request
    assert (result or NoneType) == command.result


def test_list_actions_describes_every_command_and_its_fields(client):
    """A foreign client learns the requests from it."""
    listed = {each.type: each.description for each in client.list_actions()}
    assert listed == {name: command.description for name, command in COMMANDS.items()}
    assert listed["drain_broker"].endswith(". Body: {broker, is_on}.")
    assert listed["list_keys"].endswith(". No body.")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_without_a_body_rejects_one_and_another_rejects_garbage(name):
    """Nothing that the caller sent is left unread."""
    with pytest.raises(InvalidRequestError):
        COMMANDS[name].decode_request(b"[1]")


def test_the_client_the_cli_or_the_console_offers_every_command():
    """A command that only a test can give is not finished."""
    folders = ("client", "cli", "backup", "servers/http/console")
    offered = set().union(*map(constants_of, folders))
    assert {name.upper() for name in COMMANDS} <= offered


class Echo(WireMessage, frozen=True, kw_only=True):
    """The request of the example in docs/architecture.md."""

    text: str


class Echoed(WireAnswer, frozen=True, kw_only=True):
    """Its result."""

    text: str
    is_admin: bool


ECHO = AdminCommand(
    name="echo",
    help="Repeat a text.",
    request=Echo,
    result=Echoed,
    needs=lambda _: [cluster("read")],
)


@pytest.fixture
def echo(monkeypatch):
    """The command, declared and handled as docs/architecture.md says."""
    monkeypatch.setitem(commands.COMMANDS, ECHO.name, ECHO)
    monkeypatch.setitem(HANDLERS, ECHO.name, None)
    del HANDLERS[ECHO.name]

    @handles(ECHO)
    def _echo(context, request: Echo) -> list[Echoed]:
        return [Echoed(text=request.text, is_admin=bool(context.owner))]


def test_a_declared_command_and_its_handler_are_all_that_is_needed(echo, client, front_end):
    """Flight serves and lists it, the client encodes it, and its permission is checked."""
    assert "echo" in {each.type for each in client.list_actions()}
    brokers = ClusterClient(f"127.0.0.1:{front_end.port}", timeout_s=20)
    try:
        [answer] = brokers.ask(ECHO, Echo(text="again"))
        with pytest.raises(InvalidRequestError):
            brokers.ask(ECHO, ReadRequest(stream="s"))
    finally:
        brokers.close()
    assert answer.text == "again"
    with pytest.raises(NotAllowedError):
        allowed_request(caller(Rule("app", "read", "stream", "*")), ECHO, b'{"text":"again"}')
    allowed = caller(Rule("app", "read", "cluster", "*"))
    assert allowed_request(allowed, ECHO, b'{"text":"again"}') == Echo(text="again")
