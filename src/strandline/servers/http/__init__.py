"""The broker over HTTP: a status page for people, metrics and health for machines.

Rules: read-only, no state of its own beyond one minute of rates, loopback unless told otherwise.
It must not change anything in the broker, nor hold its loop: what grows with the number of
partitions is made on a thread.
"""

from strandline.servers.http.server import HttpFrontEnd

__all__ = ["HttpFrontEnd"]
