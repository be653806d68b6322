"""``strandline liftbridge``: a broker with the flags and files of Liftbridge's server.

It is also the script ``strandline-liftbridge``, a replacement for Liftbridge's binary.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from strandline.cli.output import OutputFormat, OutputOption, examples, print_json, reports_errors
from strandline.cli.output import print_line as say
from strandline.version import __version__

EPILOG = examples(
    "strandline liftbridge --raft-bootstrap-seed --embedded-nats --data-dir data",
    "strandline liftbridge --config liftbridge.yaml",
)


def _note(text: str) -> None:
    typer.echo(text, err=True)


def _version_asked(is_asked: bool) -> None:
    if is_asked:
        say(f"Liftbridge's API 1.9, by Strandline {__version__}")
        raise typer.Exit


@reports_errors
def liftbridge(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Liftbridge's YAML file.")
    ] = None,
    server_id: Annotated[
        str | None,
        typer.Option("--server-id", "--id", help="Ignored: a single broker's id is 0."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "--ns", help="First token of the API's subjects."),
    ] = None,
    nats_servers: Annotated[
        list[str] | None,
        typer.Option("--nats-servers", "-n", metavar="URL", help="Your NATS servers."),
    ] = None,
    embedded_nats: Annotated[
        bool,
        typer.Option(
            "--embedded-nats", "-e", help="Start a nats-server; the default without --nats-servers."
        ),
    ] = False,
    embedded_nats_config: Annotated[
        str | None,
        typer.Option("--embedded-nats-config", "--nc", help="Not supported: rejected."),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", "-d", help="The data directory.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", "-p", help="Port of the API.", show_default="9292")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", help="PEM file of the certificate.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", help="PEM file of the key.")] = None,
    level: Annotated[
        str | None, typer.Option("--level", "-l", help="debug, info, warn or error.")
    ] = None,
    raft_bootstrap_seed: Annotated[
        bool, typer.Option("--raft-bootstrap-seed", help="Ignored: not needed.")
    ] = False,
    raft_bootstrap_peers: Annotated[
        str | None,
        typer.Option("--raft-bootstrap-peers", help="Not supported: see docs/cluster.md."),
    ] = None,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version_asked, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Start a broker for clients of Liftbridge, on Liftbridge's ports.

    The command accepts Liftbridge's flags, LIFTBRIDGE_* variables and file. STRANDLINE_* variables
    set what Liftbridge does not have, such as the other ports.
    """
    from strandline.process.liftbridge_settings import (
        read_liftbridge_file,
        settings_in_environment,
        translated,
    )
    from strandline.process.run import run_broker
    from strandline.process.settings import load_settings

    flags: dict[str, Any] = {
        "clustering.server.id": server_id,
        "clustering.namespace": namespace,
        "nats.servers": ",".join(nats_servers) if nats_servers else None,
        "nats.embedded": embedded_nats or None,
        "nats.embedded.config": embedded_nats_config,
        "data.dir": data_dir,
        "port": port,
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "logging.level": level,
        "clustering.raft.bootstrap.seed": raft_bootstrap_seed or None,
        "clustering.raft.bootstrap.peers": raft_bootstrap_peers,
    }
    given = read_liftbridge_file(config) if config is not None else {}
    from_environment, unknown = settings_in_environment(os.environ)
    for variable in unknown:
        _note(f"{variable} is not a setting of Liftbridge; it is ignored")
    given |= from_environment
    given |= {key: value for key, value in flags.items() if value is not None}
    if server := _default_nats(given, os.environ):
        _note(f"using the nats-server at {server}; --embedded-nats starts another")
        given["nats.servers"] = server
    settings = load_settings(None, os.environ, translated(given))

    def on_ready(ready: dict[str, Any]) -> None:
        if output is OutputFormat.json:
            print_json(ready)
        else:
            say(f"Liftbridge's API listens on {ready['host']}:{ready['grpc_port']}")

    code = run_broker(settings, on_ready=on_ready)
    if code:
        raise typer.Exit(code)


def _default_nats(given: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """Return the URL of the nats-server that Liftbridge would use by default, if one listens."""
    from strandline.process.liftbridge_settings import DEFAULT_NATS

    is_chosen = given.get("nats.servers") or str(given.get("nats.embedded", "")).lower() == "true"
    if is_chosen or any(key.startswith("STRANDLINE_NATS__") for key in environ):
        return None
    try:
        with socket.create_connection(DEFAULT_NATS, timeout=1) as connection:
            greeting = connection.recv(5)
    except OSError:
        return None
    return "nats://{}:{}".format(*DEFAULT_NATS) if greeting == b"INFO " else None


def main() -> None:
    """Run the command as the script ``strandline-liftbridge``."""
    typer.run(liftbridge)
