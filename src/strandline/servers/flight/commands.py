"""The dispatcher of admin commands: decodes, checks permissions, runs the handler, encodes.

Rules: only commands in the table can be run. Permissions are checked for every name in the decoded
body. Commands that list objects show a caller only those that it may see.
"""

from collections.abc import Callable
from typing import Any

from strandline.api.admin import WAIT_BEYOND
from strandline.api.command import AdminCommand
from strandline.api.commands import COMMANDS
from strandline.api.monitoring import ConnectionInfo
from strandline.api.wire import encode
from strandline.broker.access import Caller
from strandline.broker.broker import Broker
from strandline.errors import InvalidRequestError
from strandline.servers.flight import (  # noqa: F401  their import fills HANDLERS
    access,
    admin,
    backup,
    cluster,
    encryption,
    groups,
    local,
    monitoring,
    quotas,
    schemas,
    transactions,
)
from strandline.servers.flight.actions import HANDLERS, ActionContext
from strandline.servers.flight.lifecycle import ServerLifecycle


class CommandDispatcher:
    """The admin API of one broker.

    Args:
        broker: the broker.
        lifecycle: the lifecycle of the Flight server.
        clients: returns the clients of every listener.
    """

    def __init__(
        self,
        broker: Broker,
        lifecycle: ServerLifecycle,
        clients: Callable[[], list[ConnectionInfo]],
    ) -> None:
        self._clients = clients
        self._broker = broker
        self._lifecycle = lifecycle
        assert HANDLERS.keys() == COMMANDS.keys(), "every command has a handler"

    def run(
        self, name: str, body: bytes, *, caller: Caller, is_cancelled: Callable[[], bool]
    ) -> list[bytes]:
        """Run a command and return the JSON of its results.

        Args:
            name: the command's name.
            body: the request as JSON.
            caller: the caller.
            is_cancelled: returns whether the client has disconnected.

        Raises:
            InvalidRequestError: the command is unknown, or the body is invalid.
            UnauthenticatedError, NotAllowedError: the caller may not run the command.
            StrandlineError: the command failed.
        """
        command = COMMANDS.get(name)
        if command is None:
            known = ", ".join(COMMANDS)
            raise InvalidRequestError(f"unknown action {name[:80]!r}; actions are: {known}")
        self._lifecycle.check()
        request = allowed_request(caller, command, body)

        def is_over() -> bool:
            """Return whether to stop waiting; raise if the caller has lost the permission."""
            _check(caller, command, request)
            return is_cancelled()

        context = ActionContext(
            self._broker,
            self._lifecycle,
            caller.principal.name,
            is_over if command is WAIT_BEYOND else is_cancelled,
            self._clients,
        )
        visibility = command.visibility
        return [
            encode(result)
            for result in HANDLERS[name](context, request)
            if visibility is None or caller.has(visibility(result))
        ]


def allowed_request(caller: Caller, command: AdminCommand[Any, Any], body: bytes) -> Any:
    """Decode a request and check that the caller may make it.

    Raises:
        NotAllowedError, UnauthenticatedError: see ``Caller.check`` and ``check_producer``.
        StrandlineError: the body is invalid.
    """
    caller.check_known()
    request = command.decode_request(body)
    _check(caller, command, request)
    return request


def _check(caller: Caller, command: AdminCommand[Any, Any], request: Any) -> None:
    for need in command.needs(request):
        caller.check(need.resource, *need.operations)
    producer_id = command.producer(request) if command.producer is not None else None
    if producer_id is not None:
        caller.check_producer(producer_id)
