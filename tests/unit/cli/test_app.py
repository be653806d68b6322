"""The command line as a whole, without a broker."""

import json
import socket
import subprocess
import sys
import threading
import time

import pytest
import typer
from typer.testing import CliRunner

from strandline.cli.app import app
from strandline.cli.documents import DOCUMENTS, schema_of
from strandline.cli.liftbridge import _default_nats, liftbridge
from strandline.config import BrokerConfig
from strandline.speedups import IS_COMPILED
from strandline.version import __version__


def groups(command, path=()):
    """The names of all commands that only hold others."""
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield " ".join((*path, name))
            yield from groups(inner, (*path, name))


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_no_command_shows_the_help(run):
    """`strandline` alone teaches the first steps."""
    result = run()
    assert result.exit_code == 2
    assert "strandline stream create" in result.output
    for command in ("serve", "publish", "read", "inspect", "bench", "demo", "version"):
        assert command in result.output


@pytest.mark.parametrize("name", sorted(groups(typer.main.get_command(app))))
def test_a_group_alone_shows_its_commands(run, name):
    """As `strandline` alone does."""
    result = run(*name.split())
    assert result.exit_code == 2
    assert "Usage: " in result.output
    assert "Commands" in result.output
    assert "Missing command" not in result.output


def test_the_version_for_people_and_programs(run):
    """The version is the package's, and says which form of the hot functions is used."""
    text = f"strandline {__version__} ({'compiled' if IS_COMPILED else 'plain Python'})\n"
    assert run("version").stdout == text
    expected = {"version": __version__, "compiled": IS_COMPILED}
    assert json.loads(run("version", "--output", "json").stdout) == expected
    assert run("--version").stdout == text


def test_every_command_has_a_schema_of_its_output(run):
    """The schema is valid, and the same as text and as JSON."""
    from jsonschema import Draft202012Validator  # see tests/kit/json_schemas.py

    names = {name for name, _ in leaves(typer.main.get_command(app))}
    assert names == DOCUMENTS.keys()
    for name in names:
        shown = json.loads(run("schema", *name.split()).stdout)
        Draft202012Validator.check_schema(shown)
    assert json.loads(run("schema", "read", "-o", "json").stdout) == schema_of("read")
    assert "is no command" in run("schema", "nothing").stderr


def test_a_line_of_output_is_one_of_its_documents():
    """A command that prints several kinds of lines has them all in its schema."""
    assert "anyOf" not in schema_of("version")
    assert set(schema_of("restore")["$defs"]) >= {"RestoredDocument", "VerifiedDocument"}
    assert [each["$ref"].rpartition("/")[2] for each in schema_of("restore")["anyOf"]] == [
        "RestoredDocument",
        "VerifiedDocument",
    ]


def leaves(group, path=()):
    """Every command that is no group, by its name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("serve", "--nonsense"),
        ("serve", "--flight-port", "many"),
        ("stream", "create"),
        ("stream", "create", "orders", "--partitions", "0"),
        ("stream", "create", "orders", "--retention-bytes", "plenty"),
        ("stream", "create", "orders", "--acks", "never"),
        ("publish", "orders", "x", "--header", "novalue"),
        ("publish", "orders", "--file", "does-not-exist"),
        ("read", "orders", "--from", "soon"),
        ("read", "orders", "--format", "xml"),
        ("read", "orders", "--output", "yaml"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(run, arguments):
    """A wrong command, flag or value exits with code 2, unlike other errors."""
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense", "--output", "json"), "nonsense"),
        (("serve", "-o", "json", "--nonsense"), "--nonsense"),
        (("serve", "-ojson", "--flight-port", "many"), "'--flight-port'"),
        (("stream", "create", "--output=json"), "Missing argument 'NAME'"),
        (
            ("publish", "orders", "x", "--header", "novalue", "-o", "json"),
            "Invalid value for '--header': 'novalue' is not a header",
        ),
        (("read", "orders", "--from", "soon", "-ojson"), "Invalid value for '--from': 'soon'"),
        (("read", "orders", "--to", "soon", "-ojson"), "Invalid value for '--to': 'soon'"),
        (("group", "reset", "g", "s", "--to", "x", "-ojson"), "Invalid value for '--to': 'x'"),
        (("quota", "set", "p", "--read", "x", "-ojson"), "Invalid value for '--read': 'x'"),
        (("publish", "orders", "--message-id", "m", "-o", "json"), "--message-id names one"),
    ],
)
def test_wrong_usage_is_told_to_programs_as_other_errors_are(run, arguments, said):
    """With --output json it is one document on standard error; the exit code stays."""
    result = run(*arguments)
    assert result.exit_code == 2
    told = json.loads(result.stderr)
    assert (told["error"], told["retriable"]) == ("invalid_request", False)
    assert said in told["message"]
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("stream", "list"),
        ("stream", "info", "orders"),
        ("publish", "orders", "x"),
        ("read", "orders"),
        ("bench", "latency"),
    ],
    ids=" ".join,
)
def test_no_broker_is_one_line_and_exit_1(run, arguments):
    """Without a broker every command prints the address and how to start one."""
    result = run(*arguments, "--server", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_serve_hands_over_what_was_asked(run, monkeypatch):
    """Flags become settings, others keep their default; the ready line is one line."""
    given = []
    ports = dict.fromkeys(("nats_port", "ingest_port", "http_port", "grpc_port", "beam_port"))
    ready = {"event": "ready", "data_dir": "d", "host": "h", **ports, "flight_port": 1, "pid": 2}

    def run_broker(config, *, on_ready):
        given.append(config)
        on_ready(ready)
        return 0

    monkeypatch.setattr("strandline.process.run.run_broker", run_broker)
    result = run(
        *("serve", "--data-dir", "d", "--nats", "nats://a", "--nats", "nats://b"),
        *("--flight-port", "0", "--grpc-port", "0", "--log-level", "debug", "--output", "json"),
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == ready
    config = given[0]
    assert (config.data_dir, config.flight_port, config.log_level) == ("d", 0, "debug")
    assert config.nats.servers == ["nats://a", "nats://b"]
    assert config.http_port == BrokerConfig().http_port


def test_serve_prints_where_everything_listens(run, monkeypatch):
    """People get the addresses and the next command to type."""

    def run_broker(config, *, on_ready):
        on_ready(
            {
                "host": "127.0.0.1",
                "data_dir": "d",
                "nats_port": 4222,
                "ingest_port": 4223,
                "flight_port": 9293,
                "http_port": 9294,
                "grpc_port": None,
                "beam_port": None,
            }
        )
        return 0

    monkeypatch.setattr("strandline.process.run.run_broker", run_broker)
    shown = run("serve").stdout
    for part in ("nats://127.0.0.1:4222", "127.0.0.1:9293", "http://127.0.0.1:9294/", "Next:"):
        assert part in shown


def test_a_wrong_setting_is_rejected_before_anything_starts(run, tmp_path):
    """A misspelt key in the file ends serve with one line and exit code 1."""
    file = tmp_path / "s.yaml"
    file.write_text("flihgt_port: 1\n")
    result = run("serve", "--config", str(file))
    assert result.exit_code == 1
    assert "did you mean 'flight_port'" in result.stderr


def test_help_is_quick():
    """Nothing heavy is imported to show help: no Arrow, no Spark, no event loop."""
    code = (
        "import sys; from strandline.cli.app import app\n"
        "heavy = {'pyarrow', 'pyspark', 'numpy', 'uvloop', 'starlette', 'rich.progress'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_runs_as_a_module():
    """`python -m strandline.cli` is `strandline`."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "strandline.cli", "version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"strandline {__version__} ")
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("script", ["main", "liftbridge_main"])
def test_the_client_alone_says_what_the_command_needs(script):
    """Without extras the scripts exist and name the extras to install."""
    code = f"import sys; sys.modules['typer'] = None; from strandline import cli; cli.{script}()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: typer is not installed: pip install 'strandline[server,cli]'\n"


def test_a_command_without_its_extra_names_it(tmp_path):
    """`serve` names the extra `server`, and no others."""
    code = "import sys; sys.modules['uvloop'] = None; from strandline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "the package 'uvloop': pip install 'strandline[server]'" in done.stderr


@pytest.mark.parametrize(
    "flags", [["-n", "nats://a:1,nats://b:2"], ["-n", "nats://a:1", "--nats-servers", "nats://b:2"]]
)
def test_liftbridges_command_takes_several_nats_servers(monkeypatch, flags):
    """Between commas, as Liftbridge does, or one by one."""
    given = []
    monkeypatch.setattr(
        "strandline.process.run.run_broker", lambda settings, **_: given.append(settings) or 0
    )
    app = typer.Typer()
    app.command()(liftbridge)
    done = CliRunner().invoke(app, flags, env={})
    assert done.exit_code == 0, done.output
    assert given[0].nats.servers == ["nats://a:1", "nats://b:2"]


def test_liftbridges_command_has_a_version():
    """Printed, and nothing is started."""
    done = subprocess.run(
        [sys.executable, "-c", "from strandline import cli; cli.liftbridge_main()", "--version"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"Liftbridge's API 1.9, by Strandline {__version__}\n"


def test_liftbridges_command_uses_the_server_that_liftbridge_would(monkeypatch):
    """It uses a nats-server on Liftbridge's port; any other server there is ignored."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = "strandline.process.liftbridge_settings.DEFAULT_NATS"
        monkeypatch.setattr(settings, server.getsockname())
        greetings = [b"INFO {}\r\n", b"HTTP/1.1"]

        def answer():
            for greeting in greetings:
                client, _ = server.accept()
                with client:
                    client.sendall(greeting)

        answering = threading.Thread(target=answer)
        answering.start()
        assert _default_nats({"nats.servers": "nats://a"}, {}) is None
        assert _default_nats({"nats.embedded": True}, {}) is None
        assert _default_nats({}, {"STRANDLINE_NATS__PORT": "0"}) is None
        url = f"nats://127.0.0.1:{server.getsockname()[1]}"
        assert [_default_nats({}, {}), _default_nats({}, {})] == [url, None]
        answering.join()
    assert _default_nats({}, {}) is None
