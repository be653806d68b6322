"""The table of all pages and actions of the console."""

from typing import Final

from strandline.servers.http.console import (
    pages_access,
    pages_clients,
    pages_cluster,
    pages_groups,
    pages_load,
    pages_pipelines,
    pages_records,
    pages_streams,
    pages_trace,
)
from strandline.servers.http.console.request import ConsoleRoute

ROUTES: Final[list[ConsoleRoute]] = [
    *pages_cluster.ROUTES,
    *pages_load.ROUTES,
    *pages_streams.ROUTES,
    *pages_records.ROUTES,
    *pages_groups.ROUTES,
    *pages_pipelines.ROUTES,
    *pages_clients.ROUTES,
    *pages_trace.ROUTES,
    *pages_access.ROUTES,
]
