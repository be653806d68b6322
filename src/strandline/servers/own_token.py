"""The token that authenticates a broker when it forwards a client's publish.

The broker that receives a request checks the client's access; the leader to which it forwards the
request sees this token, whose principal may only publish. Rules: each forwarding client gets a new
token, which never leaves memory. The metadata stores its hash under the broker's number, so that
restarts leave no old tokens behind. The token is used once the other brokers know it.
"""

import secrets
import threading
from typing import Final

from strandline.api import admin
from strandline.broker.broker import Broker
from strandline.client.connection import BrokerConnection
from strandline.client.tls import Credentials
from strandline.clock import Clock
from strandline.core.metadata.commands import AddToken
from strandline.errors import RequestTimeoutError, UnauthenticatedError, UnavailableError
from strandline.security.principal import BROKERS
from strandline.security.tokens import ID_BYTES, SECRET_BYTES, Token, fingerprint, token_text

CHANGE_TIMEOUT_S: Final = 30.0
KNOWN_TIMEOUT_S: Final = 10.0
KNOWN_POLL_S: Final = 0.02
ASK_TIMEOUT_S: Final = 3.0


def own_token(broker: Broker) -> str | None:
    """Return this broker's token once the metadata has it; None without access control.

    Blocks; must not be called on the loop's thread.

    Raises:
        RequestTimeoutError: the metadata did not accept it in time.
        StrandlineError: the metadata rejected it.
    """
    if not broker.config.auth.enabled:
        return None
    number = broker.config.cluster.broker_id.to_bytes(ID_BYTES, "big")
    text = token_text(number + secrets.token_bytes(SECRET_BYTES))
    token = Token(
        id=number.hex(),
        principal=BROKERS.name,
        sha256=fingerprint(text),
        created_ns=broker.clock.now_ns(),
    )
    try:
        broker.run_coroutine(broker.change(AddToken(token))).result(CHANGE_TIMEOUT_S)
    except TimeoutError as error:
        text = "the metadata did not take this broker's own token in time; retry"
        raise RequestTimeoutError(text) from error
    return text


def wait_until_known(address: str, credentials: Credentials, clock: Clock) -> None:
    """Wait until a broker knows a token; blocks.

    A leader elected from now on knows it: the election is later in the metadata than the token.

    Raises:
        UnauthenticatedError: the broker does not know the token in time.
    """
    deadline_ms = clock.monotonic_ms() + KNOWN_TIMEOUT_S * 1e3
    pause = threading.Event()
    connection = BrokerConnection(address, timeout_s=ASK_TIMEOUT_S, credentials=credentials)
    try:
        while True:
            try:
                connection.action(admin.SERVER_INFO, None)
            except UnauthenticatedError:
                if clock.monotonic_ms() >= deadline_ms:
                    raise
                pause.wait(KNOWN_POLL_S)
            except UnavailableError:
                return  # offline, so it leads nothing until it has caught up
            else:
                return
    finally:
        connection.close()
