"""Commands that destroy something: at a terminal they ask, and a "no" leaves everything."""

import pytest
import typer
from typer.testing import CliRunner

import strandline
from strandline.cli import cluster_admin, force_recover, group, stream, stream_schema
from strandline.cli.app import app
from strandline.cli.output import OutputFormat, is_asked
from strandline.testing import Server

NOBODY = "127.0.0.1:9"
ASKING = {
    "stream delete": ("orders",),
    "stream schema delete": ("orders",),
    "group delete": ("billing",),
    "cluster remove": ("1",),
    "cluster replace-disk": ("1",),
    "cluster elect": ("orders", "--leader", "1", "--unclean"),
    "cluster force-recover": (),
    "cluster discard-metadata": (),
}


@pytest.fixture(scope="module")
def url():
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders")
        words = ["group", "reset", "billing", "orders", "--to", "earliest", "--server", url]
        assert CliRunner().invoke(app, words).exit_code == 0
        client.schemas.set("orders", "id BIGINT")
        yield url


def with_yes(command, path=()):
    """The names of all commands that take ``--yes``."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from with_yes(inner, (*path, name))
    if any("--yes" in each.opts for each in command.params):
        yield " ".join(path)


def test_every_command_with_yes_is_tried():
    """None was added without a case here."""
    assert set(with_yes(typer.main.get_command(app))) == ASKING.keys()


@pytest.mark.parametrize("command", ASKING)
def test_a_no_leaves_everything(command, url, tmp_path, monkeypatch):
    """The command is aborted before it changes anything, or asks a broker to."""
    for module in (cluster_admin, force_recover, group, stream, stream_schema):
        monkeypatch.setattr(module, "is_asked", lambda _, *, yes: not yes)
    server = NOBODY if command.startswith("cluster") else url
    where = ("--server", server)
    if command in ("cluster force-recover", "cluster discard-metadata"):
        where = ("--data-dir", str(tmp_path / "none"))
    done = CliRunner().invoke(app, [*command.split(), *ASKING[command], *where], input="n\n")
    assert (done.exit_code, "Aborted" in done.output) == (1, True), done.output
    with strandline.connect(url) as client:
        assert client.stream_info("orders")
        assert client.groups.info("billing")
        assert client.schemas.list("orders")


@pytest.mark.parametrize(
    ("is_terminal", "yes", "output", "asked"),
    [
        (True, False, OutputFormat.text, True),
        (True, True, OutputFormat.text, False),
        (True, False, OutputFormat.json, False),
        (False, False, OutputFormat.text, False),
    ],
)
def test_only_people_are_asked(monkeypatch, is_terminal, yes, output, asked):
    """Programs would wait for ever."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal)
    assert is_asked(output, yes=yes) is asked
