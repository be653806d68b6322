"""Handlers of admin commands: their declaration and their context.

Rules: a change runs on the broker's loop, and the handler waits for it with a timeout. Reading the
state does not need the loop. A handler runs on a thread of Flight's pool.
"""

import concurrent.futures
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from strandline.api.command import AdminCommand
from strandline.api.monitoring import ConnectionInfo
from strandline.broker.broker import Broker
from strandline.errors import InvalidRequestError, RequestTimeoutError
from strandline.servers.flight.lifecycle import ServerLifecycle

if TYPE_CHECKING:
    from strandline.broker.cluster.broker import ClusterBroker

CHANGE_TIMEOUT_S: Final = 60.0
T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


class ActionContext(NamedTuple):
    """The context of a call that runs a command."""

    broker: Broker
    lifecycle: ServerLifecycle
    owner: str
    """The principal of the caller; empty if access is not checked."""
    is_cancelled: Callable[[], bool]
    """Returns whether the client has disconnected; any thread."""
    clients: Callable[[], list[ConnectionInfo]]
    """Returns the clients of all listeners; any thread."""

    @property
    def member(self) -> "ClusterBroker":
        """Return the broker as a member of a cluster.

        Raises:
            InvalidRequestError: the broker is not part of a cluster.
        """
        from strandline.broker.cluster.broker import ClusterBroker  # not for a broker alone

        if not isinstance(self.broker, ClusterBroker):
            raise InvalidRequestError(
                "this broker is not part of a cluster: 'strandline top' shows one alone, and "
                "docs/cluster.md how to run several"
            )
        return self.broker

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's loop and wait for its result.

        Raises:
            RequestTimeoutError: the coroutine did not finish in time, or the broker stopped.
        """
        future = self.broker.run_coroutine(coroutine)
        try:
            return future.result(CHANGE_TIMEOUT_S)
        except concurrent.futures.TimeoutError as error:
            raise RequestTimeoutError(
                f"the broker did not finish within {CHANGE_TIMEOUT_S:g} s; it may still do so"
            ) from error
        except concurrent.futures.CancelledError as error:
            raise RequestTimeoutError("the broker stopped before it could finish") from error


Handler = Callable[[ActionContext, Q], Iterable[A]]
HANDLERS: Final[dict[str, Handler[Any, Any]]] = {}
"""Command name → its handler; filled by importing the modules with handlers."""


def handles(command: AdminCommand[Q, A]) -> Callable[[Handler[Q, A]], Handler[Q, A]]:
    """Declare a function as the handler of a command."""

    def declare(handler: Handler[Q, A]) -> Handler[Q, A]:
        assert command.name not in HANDLERS, f"{command.name} has one handler"
        HANDLERS[command.name] = handler
        return handler

    return declare
