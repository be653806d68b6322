"""The cluster page."""

from strandline.servers.http.console.cluster_queries import cluster_view
from strandline.servers.http.console.request import ConsoleRequest, ConsoleRoute, Page

SHOWN_MAX = 50


def cluster_page(request: ConsoleRequest) -> Page:
    """Return the brokers, their health, and partitions that need attention."""
    view = cluster_view(request.client)
    statuses = [row.status for row in view.brokers if row.status is not None]
    totals = {
        name: sum(getattr(status.rates, name) for status in statuses)
        for name in ("records_appended", "bytes_appended", "read_bytes", "syncs")
    }
    values = {
        "view": view,
        "totals": totals,
        "problems": view.problems,
        "under_replicated": view.under_replicated[:SHOWN_MAX],
        "under_replicated_count": len(view.under_replicated),
        "stored_bytes": sum(status.log_bytes for status in statuses),
        "connections": sum(sum(status.connections.values()) for status in statuses),
        "listeners": sorted({name for status in statuses for name in status.connections}),
    }
    return Page("cluster.html", values)


ROUTES = [ConsoleRoute("GET", "/", cluster_page)]
