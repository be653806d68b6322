"""How our nats-server knows who its clients are: its accounts, and whom it asks.

Streams' subjects live in one account, which the nats-servers of all brokers share. The broker is a
client there and another one in the server's account of the system, where it answers the server's
questions (``callout``) and disconnects whom the rules no longer let in. Both log in by signing what
the server greets them with; the private keys are made at every start and never leave the process,
so the configuration on disk holds nothing that opens a door.

Rules: everybody else is asked about, and while nobody answers nobody comes in. The broker itself
may publish to reply inboxes and nowhere else: a client names the subject of its reply, and must not
publish through us where it may not by itself.
"""

import json
from collections.abc import Iterator
from typing import Final

from strandline.servers.nats.nkeys import ACCOUNT, USER, KeyPair
from strandline.servers.nats.server_link import NatsServerInfo

STREAMS_ACCOUNT: Final = "STRANDLINE"
SYSTEM_ACCOUNT: Final = "SYS"
INBOXES: Final = "_INBOX.>"
"""Where replies go; all stock clients subscribe below it."""
SYSTEM_SUBJECTS: Final = "$SYS.>"
ANSWER_TIMEOUT_S: Final = 5
"""How long a client waits for our answer about it."""


class Accounts:
    """The accounts of one run of the broker, and its own keys in them."""

    def __init__(self) -> None:
        self.issuer = KeyPair(ACCOUNT)
        """Signs answers about clients."""
        self._broker = KeyPair(USER)
        self._system = KeyPair(USER)

    def broker_login(self, info: NatsServerInfo) -> dict[str, str]:
        """How the broker says who it is where streams' subjects live."""
        return _signed(self._broker, info)

    def system_login(self, info: NatsServerInfo) -> dict[str, str]:
        """How it does so in the account of the system."""
        return _signed(self._system, info)

    def configuration(self) -> Iterator[str]:
        """The lines of nats-server's configuration."""
        publish = json.dumps([INBOXES])
        yield "accounts {"
        yield f"  {STREAMS_ACCOUNT} {{ users: [ {{"
        yield f"    nkey: {self._broker.public}"
        yield f"    permissions {{ publish: {{ allow: {publish} }} }}"
        yield "  } ] }"
        yield f"  {SYSTEM_ACCOUNT} {{ users: [ {{ nkey: {self._system.public} }} ] }}"
        yield "}"
        yield f"system_account: {SYSTEM_ACCOUNT}"
        yield "authorization {"
        yield f"  timeout: {ANSWER_TIMEOUT_S}"
        yield "  auth_callout {"
        yield f"    issuer: {self.issuer.public}"
        yield f"    account: {SYSTEM_ACCOUNT}"
        yield f"    auth_users: {json.dumps([self._broker.public, self._system.public])}"
        yield "  }"
        yield "}"


def _signed(key: KeyPair, info: NatsServerInfo) -> dict[str, str]:
    return {"nkey": key.public, "sig": key.sign(info.nonce.encode())}
