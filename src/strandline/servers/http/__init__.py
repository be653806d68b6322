"""The HTTP server: a status page for people, metrics and health checks for machines.

Rules: read-only, no state of its own beyond one minute of rates, loopback by default. It must not
change the broker nor block its loop: work that grows with the number of partitions runs on a
thread.
"""

from strandline.servers.http.server import HttpFrontEnd

__all__ = ["HttpFrontEnd"]
