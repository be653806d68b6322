"""Test helpers for users: a real broker in the test's process, or in one that can be killed.

    with strandline.testing.Server() as url:
        client = strandline.connect(url)

Importing this module is cheap: the broker is imported when a server is started.
"""

from strandline.testing.process import ProcessServer
from strandline.testing.server import Server, ServerUrl

__all__ = ["ProcessServer", "Server", "ServerUrl"]
