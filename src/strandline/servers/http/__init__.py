"""The HTTP server: the console for people, metrics and health checks for machines.

Rules: it listens on loopback by default. It must not block the broker's loop: work that grows with
the number of partitions runs on a thread. The console makes changes as a client of the broker.
"""

from strandline.servers.http.frontend import HttpFrontEnd

__all__ = ["HttpFrontEnd"]
