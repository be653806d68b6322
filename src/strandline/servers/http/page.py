"""The status pages as HTML, from plain values.

Rules: pure functions; every text from outside passes ``html.escape``; no scripts and no files to
fetch, so that the strictest content policy works. The page refreshes itself.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple
from urllib.parse import quote

from strandline.servers.http.rates import Rates
from strandline.servers.http.view import StreamSnapshot
from strandline.telemetry import Telemetry
from strandline.version import __version__

REFRESH_S = 2
STREAMS_MAX = 500
"""Rows on the first page; the rest is in ``/api/streams``."""

STYLE = """
:root{color-scheme:light dark;--line:color-mix(in srgb,currentColor 18%,transparent);--sea:#2a7f9e}
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem}a{color:var(--sea)}
header{display:flex;gap:1rem;align-items:baseline;flex-wrap:wrap}small,.dim{opacity:.65}
.ok{color:#1a7f4b}.bad{color:#c0392b;font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.75rem;
margin:1.25rem 0}.card{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.card b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.35rem .6rem .35rem 0;
border-bottom:1px solid var(--line)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:3.5rem;color:var(--sea)}footer{margin:2.5rem 0;display:flex;gap:1rem}
code{font-family:ui-monospace,monospace;font-size:.9em}
""".replace("\n", "")


class Overview(NamedTuple):
    """The values on the first page."""

    streams: Sequence[StreamSnapshot]
    rates: Rates
    history: Sequence[float]
    telemetry: Telemetry
    data_dir: str
    why_not_ready: str
    up_s: float


def overview_page(view: Overview) -> str:
    """Return the first page: health, rates and the list of streams."""
    shown = view.streams[:STREAMS_MAX]
    rest = len(view.streams) - len(shown)
    body = (
        f"<header><h1>Strandline</h1>{_health(view.why_not_ready)}"
        f"<small>version {escape(__version__)} · data in <code>{escape(view.data_dir)}</code>"
        f" · up {duration(view.up_s)}</small></header>"
        f"{_cards(view)}"
        f"<h2>Records stored per second, last minute</h2>{sparkline(view.history)}"
        f"<h2>Streams</h2>{_streams_table(shown)}"
        + (f"<p class=dim>and {rest:,} more in /api/streams</p>" if rest else "")
    )
    return _document("Strandline", body)


def stream_page(stream: StreamSnapshot) -> str:
    """Return the page of one stream: its settings and partitions."""
    config = stream.config
    settings = _table(
        ("Setting", "Value"),
        (
            (escape(name), f"<code>{escape(str(getattr(config, name)))}</code>")
            for name in config.__struct_fields__
        ),
    )
    partitions = _table(
        ("Partition", "#Log start offset", "#High watermark", "#Log end offset", "#Records"),
        (
            (
                str(state.partition),
                f"{state.log_start_offset:,}",
                f"{state.high_watermark:,}",
                f"{state.log_end_offset:,}",
                f"{state.records:,}",
            )
            for state in stream.partitions
        ),
    )
    created = f"{datetime.fromtimestamp(stream.created_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    body = (
        f"<header><h1><a href=/>Strandline</a> / {escape(config.name)}</h1>"
        f"<small>created {created}</small></header>"
        f"<h2>Partitions</h2>{partitions}<h2>Settings</h2>{settings}"
    )
    return _document(config.name, body)


def error_page(status: int, message: str) -> str:
    """Return a page with an error message."""
    body = f"<h1><a href=/>Strandline</a></h1><p class=bad>{status}: {escape(message)}</p>"
    return _document(str(status), body)


def sparkline(values: Sequence[float]) -> str:
    """Return a line over ``values`` as inline SVG, scaled to the largest."""
    if len(values) < 2:
        return "<p class=dim>not enough samples yet</p>"
    top = max(*values, 1.0)
    step = 100 / (len(values) - 1)
    points = " ".join(
        f"{index * step:.2f},{29 - 28 * value / top:.2f}" for index, value in enumerate(values)
    )
    return (
        '<svg viewBox="0 0 100 30" preserveAspectRatio="none" role="img">'
        f"<title>largest {top:,.0f} records/s</title>"
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )


def size(size_bytes: float) -> str:
    """Return bytes in the binary unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def duration(seconds: float) -> str:
    """Return seconds in the two largest units that apply."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    used = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(used[:2]) or "0 s"


def _health(why_not_ready: str) -> str:
    if why_not_ready:
        return f"<span class=bad>not ready: {escape(why_not_ready)}</span>"
    return "<span class=ok>ready</span>"


def _cards(view: Overview) -> str:
    rates, telemetry = view.rates, view.telemetry
    connections = telemetry.connections.copy()
    figures = (
        ("records stored/s", f"{rates.records_appended:,.0f}"),
        ("stored/s", size(rates.bytes_appended)),
        ("acks/s", f"{rates.acks:,.0f}"),
        ("syncs/s", f"{rates.syncs:,.0f}"),
        ("records a sync", f"{rates.records_per_sync:,.1f}"),
        ("read/s", size(rates.read_bytes)),
        ("waiting to be stored", size(telemetry.pending_bytes)),
        ("connections", f"{sum(connections.values()):,}"),
    )
    cards = "".join(f"<div class=card><b>{value}</b>{label}</div>" for label, value in figures)
    return f"<div class=cards>{cards}</div>"


def _streams_table(streams: Sequence[StreamSnapshot]) -> str:
    if not streams:
        return (
            "<p>None yet. Make one: <code>strandline stream create orders "
            "--subject 'orders.&gt;' --partitions 4</code></p>"
        )
    return _table(
        ("Stream", "Subject", "#Partitions", "#Records", "Acks survive", "Retention"),
        (
            (
                _stream_link(stream.config.name),
                f"<code>{escape(stream.config.subject)}</code>",
                f"{len(stream.partitions):,}",
                f"{stream.records:,}",
                escape(stream.config.acks_in_force),
                _retention(stream),
            )
            for stream in streams
        ),
    )


def _stream_link(name: str) -> str:
    return f"<a href='/streams/{quote(name, safe='')}'>{escape(name)}</a>"


def _retention(stream: StreamSnapshot) -> str:
    config = stream.config
    limits = [
        duration(config.retention_age_ms / 1000) if config.retention_age_ms else "",
        f"{size(config.retention_bytes)} a partition" if config.retention_bytes else "",
        f"{config.retention_records:,} records a partition" if config.retention_records else "",
        "newest of each key" if config.compact else "",
        f"{config.max_records_per_subject:,} of each subject"
        if config.max_records_per_subject
        else "",
    ]
    return ", ".join(limit for limit in limits if limit) or "all"


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of ready HTML cells; a heading that begins with # makes its column numeric."""
    titles = list(heads)
    classes = [" class=n" if title.startswith("#") else "" for title in titles]
    head = "".join(
        f"<th{css}>{title.removeprefix('#')}</th>"
        for css, title in zip(classes, titles, strict=True)
    )
    lines = (
        "<tr>"
        + "".join(f"<td{css}>{cell}</td>" for css, cell in zip(classes, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _document(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        f"<meta http-equiv=refresh content={REFRESH_S}>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{body}"
        "<footer><a href=/api/streams>/api/streams</a><a href=/metrics>/metrics</a>"
        "<a href=/health/ready>/health/ready</a></footer></body></html>"
    )
