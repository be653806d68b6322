"""``strandline serve``: load settings and run a broker until a signal."""

import gc
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from strandline.cli.output import (
    OutputFormat,
    OutputOption,
    examples,
    print_json,
    print_line,
    reports_errors,
)

NETWORK = "Listeners"
CLUSTER = "Cluster"

EPILOG = examples(
    "strandline serve                                  # data in ./strandline-data",
    "strandline serve --data-dir /srv/log --nats nats://10.0.0.5:4222",
    "strandline serve --config strandline.yaml --log-level debug",
    "strandline serve --broker-id 1 --cluster-id prod --peers 1=h1:9295,2=h2:9295,3=h3:9295",
    "strandline serve --nats-port 0 --ingest-port 0 --flight-port 0 --http-port 0 -o json",
)


@reports_errors
def serve(
    *,
    data_dir: Annotated[
        str | None,
        typer.Option(help="The data directory.", show_default="strandline-data"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(envvar="STRANDLINE_CONFIG", help="YAML file of settings; flags override it."),
    ] = None,
    nats: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Your NATS server; repeat for more."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on.", show_default="127.0.0.1", rich_help_panel=NETWORK
        ),
    ] = None,
    nats_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the embedded nats-server.", show_default="4222", rich_help_panel=NETWORK
        ),
    ] = None,
    ingest_port: Annotated[
        int | None,
        typer.Option(
            help="The broker's own listener for NATS publishers; -1 is off.",
            show_default="4223",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    flight_port: Annotated[
        int | None,
        typer.Option(help="Port of Arrow Flight.", show_default="9293", rich_help_panel=NETWORK),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            help="Port of web page, metrics and health; -1 is off.",
            show_default="9294",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the Liftbridge API, usually 9292; -1 is off.",
            show_default="-1",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    beam_port: Annotated[
        int | None,
        typer.Option(
            help="Port of Beam's log API; -1 is off.", show_default="-1", rich_help_panel=NETWORK
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error.", show_default="info")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="text or json.", show_default="text")
    ] = None,
    broker_id: Annotated[
        int | None,
        typer.Option(help="Number of this broker in a cluster, from 1.", rich_help_panel=CLUSTER),
    ] = None,
    cluster_id: Annotated[
        str | None, typer.Option(help="Name of the cluster.", rich_help_panel=CLUSTER)
    ] = None,
    peer_port: Annotated[
        int | None,
        typer.Option(
            help="Port for the other brokers.",
            show_default="9295",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="ID=HOST:PORT,…",
            help="All brokers, including this one.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    nats_peers: Annotated[
        str | None,
        typer.Option(
            metavar="ID=HOST:PORT,…",
            help="Route addresses of all brokers' nats-servers.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    join: Annotated[
        bool | None,
        typer.Option(
            "--join",
            help="Join a running cluster with an empty directory.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    rack: Annotated[
        str | None,
        typer.Option(
            help="Rack of this broker; replicas are spread over racks.", rich_help_panel=CLUSTER
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="File for a trace of elections and writes.", rich_help_panel=CLUSTER),
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Start a broker, with an embedded nats-server unless --nats names your own.

    A port of 0 picks a free one. Ctrl-C or SIGTERM stops the broker cleanly; acknowledged records
    survive a crash, too. Settings come from the defaults, --config, STRANDLINE_* variables and
    flags; a later source overrides an earlier one.
    """
    gc.disable()  # modules leave no garbage, and looking for some takes a tenth of the start
    try:
        from strandline.process.run import run_broker
        from strandline.process.settings import load_settings
    finally:
        gc.freeze()
        gc.enable()
    settings = load_settings(
        config,
        os.environ,
        {
            "data_dir": data_dir,
            "host": host,
            "flight_port": flight_port,
            "http_port": http_port,
            "log_level": log_level,
            "log_format": log_format,
            "nats": {"servers": nats or None, "port": nats_port, "ingest_port": ingest_port},
            "grpc": {"port": grpc_port, "beam_port": beam_port},
            "cluster": {
                "broker_id": broker_id,
                "name": cluster_id,
                "peer_port": peer_port,
                "peers": peers.split(",") if peers else None,
                "nats_peers": nats_peers.split(",") if nats_peers else None,
                "join": join or None,
                "rack": rack,
                "trace": trace,
            },
        },
    )
    started_s = time.monotonic()

    def on_ready(ready: dict[str, Any]) -> None:
        if output is OutputFormat.json:
            print_json(ready)
        else:
            _print_banner(ready, settings.nats.servers, seconds=time.monotonic() - started_s)

    code = run_broker(settings, on_ready=on_ready)
    if code:
        raise typer.Exit(code)


def _print_banner(ready: dict[str, Any], nats_servers: list[str], *, seconds: float) -> None:
    from strandline.config import bracketed
    from strandline.version import __version__

    host = bracketed(ready["host"])
    nats = ", ".join(nats_servers) or f"nats://{host}:{ready['nats_port']}"
    lines = [("NATS", nats)]
    if ready["ingest_port"]:
        lines.append(("ingest", f"nats://{host}:{ready['ingest_port']}   publishers only, faster"))
    lines.append(("Flight", f"{host}:{ready['flight_port']}   strandline.connect(...), Spark"))
    for name, port in (("Liftbridge", ready["grpc_port"]), ("Beam", ready["beam_port"])):
        if port:
            lines.append((name, f"{host}:{port}   gRPC"))
    if ready["http_port"]:
        lines.append(("web", f"http://{host}:{ready['http_port']}/"))
    print_line(f"Strandline {__version__} is ready after {seconds:.1f} s")
    for name, address in [("data", ready["data_dir"]), *lines]:
        print_line(f"  {name:7} {address}")
    print_line("Next: strandline stream create orders --subject 'orders.>'     (Ctrl-C stops)")
