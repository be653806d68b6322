"""The page of connected clients."""

from typing import Final, NamedTuple

from strandline.api.monitoring import LIST_CONNECTIONS, ConnectionInfo
from strandline.servers.http.console.cluster_queries import answers_of_all, cluster_view
from strandline.servers.http.console.request import ConsoleRequest, ConsoleRoute, Page

SHOWN_MAX: Final = 500
LISTENERS: Final = {
    "flight": "Arrow Flight",
    "nats": "NATS, at nats-server",
    "ingest": "NATS, at the ingest listener",
    "grpc": "gRPC",
}


class ClientRow(NamedTuple):
    """A connection as a row of the page."""

    key: str
    broker: str
    info: ConnectionInfo
    protocol: str


def clients_page(request: ConsoleRequest) -> Page:
    """Return the connections of all brokers, those with the most messages first."""
    view = cluster_view(request.client)
    names = {row.address: str(row.id) if view.is_cluster else "" for row in view.brokers}
    answers = answers_of_all(request.client, LIST_CONNECTIONS, None)
    rows = [
        ClientRow(
            f"{address} {info.listener} {info.address}",
            names.get(address, address),
            info,
            LISTENERS.get(info.listener, info.listener),
        )
        for address, infos in answers.items()
        for info in infos
    ]
    wanted = request.query["q"].lower()
    found = [
        row
        for row in rows
        if wanted in f"{row.info.address} {row.info.principal} {row.protocol}".lower()
    ]
    found.sort(key=lambda row: (-row.info.messages, row.key))
    totals = {row.key: row.info.messages for row in rows}
    values = {
        "rows": found[:SHOWN_MAX],
        "rates": request.rates.observe("client", totals, request.now_ms),
        "count": len(found),
        "is_cluster": view.is_cluster,
        "q": request.query["q"],
    }
    return Page("clients.html", values)


ROUTES = [ConsoleRoute("GET", "/clients", clients_page)]
