"""The accounts of the child nats-server, and the keys by which the broker logs in.

The subjects of streams are in one account, which the nats-servers of all brokers share. The broker
connects to that account as a client. It connects a second time, to the system account, where it
answers the server's authorization requests (``callout``) and disconnects clients that the rules no
longer allow. Both connections log in by signing the server's nonce. The private keys are created at
every start and never leave the process, so the configuration on disk contains no secret.

Rules: every other client needs an authorization, and without an answer the server rejects it. The
broker itself may publish only to inboxes, to other brokers about partitions, and to nats-server
about its clients: a client chooses its reply subject, and must not use the broker to publish where
the client may not. Over the leaf connection, which carries records of consumers, the broker may
publish to private inboxes only.
"""

import json
from collections.abc import Iterator
from typing import Final

from strandline.servers.nats.inboxes import INBOX_PREFIX, PRIVATE_PREFIX
from strandline.servers.nats.nkeys import ACCOUNT, USER, KeyPair
from strandline.servers.nats.server_clients import CONNZ
from strandline.servers.nats.server_link import NatsServerInfo

STREAMS_ACCOUNT: Final = "STRANDLINE"
SYSTEM_ACCOUNT: Final = "SYS"
INBOXES: Final = f"{INBOX_PREFIX}>"
"""The subjects of replies; standard clients subscribe below it."""
PRIVATE_INBOXES: Final = f"{PRIVATE_PREFIX}>"
"""The subjects of records, and of replies to clients that are configured to use them."""
REQUESTS: Final = ("$JS.API.STREAM.INFO.*", "$JS.API.STRANDLINE.READ.*")
"""Requests for the state and the records of partitions; the brokers that lead them answer."""
SYSTEM_REQUESTS: Final = (CONNZ,)
"""Requests for the clients of the account; nats-server itself answers."""
NOTHING: Final = "strandline.nothing"
"""A subject without messages, for an account that may receive nothing."""
SYSTEM_SUBJECTS: Final = "$SYS.>"
ANSWER_TIMEOUT_S: Final = 5
"""How long nats-server waits for the broker's answer about a client."""


class Accounts:
    """The accounts of one broker process, and the broker's own keys in them."""

    def __init__(self) -> None:
        self.issuer = KeyPair(ACCOUNT)
        """The key pair that signs answers about clients."""
        self._broker = KeyPair(USER)
        self._system = KeyPair(USER)
        self._leaf = KeyPair(USER)

    def broker_login(self, info: NatsServerInfo) -> dict[str, str]:
        """Return the login for the account with the subjects of streams."""
        return _signed(self._broker, info)

    def leaf_login(self, info: NatsServerInfo) -> dict[str, str]:
        """Return the login for the leaf connection, over which records are delivered."""
        return {**_signed(self._leaf, info), "remote_account": STREAMS_ACCOUNT}

    def system_login(self, info: NatsServerInfo) -> dict[str, str]:
        """Return the login for the system account."""
        return _signed(self._system, info)

    def configuration(self) -> Iterator[str]:
        """Yield the lines of nats-server's configuration."""
        publish = json.dumps([INBOXES, PRIVATE_INBOXES, *REQUESTS, *SYSTEM_REQUESTS])
        users = [self._broker.public, self._system.public, self._leaf.public]
        yield "accounts {"
        yield f"  {STREAMS_ACCOUNT} {{ users: [ {{"
        yield f"    nkey: {self._broker.public}"
        yield f"    permissions {{ publish: {{ allow: {publish} }} }}"
        yield "  }, {"
        yield f"    nkey: {self._leaf.public}"
        yield '    allowed_connection_types: ["LEAFNODE"]'
        inboxes, nothing = json.dumps([PRIVATE_INBOXES]), json.dumps([NOTHING])
        yield f"    permissions {{ publish: {inboxes}, subscribe: {nothing} }}"
        yield "  } ] }"
        yield f"  {SYSTEM_ACCOUNT} {{ users: [ {{ nkey: {self._system.public} }} ] }}"
        yield "}"
        yield f"system_account: {SYSTEM_ACCOUNT}"
        yield "authorization {"
        yield f"  timeout: {ANSWER_TIMEOUT_S}"
        yield "  auth_callout {"
        yield f"    issuer: {self.issuer.public}"
        yield f"    account: {SYSTEM_ACCOUNT}"
        yield f"    auth_users: {json.dumps(users)}"
        yield "  }"
        yield "}"


def _signed(key: KeyPair, info: NatsServerInfo) -> dict[str, str]:
    return {"nkey": key.public, "sig": key.sign(info.nonce.encode())}
