"""The interface between Flight's dispatcher and the handlers of its actions."""

from collections.abc import Callable
from typing import Any, NamedTuple


class ActionContext(NamedTuple):
    """The call that an action belongs to."""

    owner: str
    """Name of the principal that calls; empty where access is not checked."""
    is_cancelled: Callable[[], bool]
    """Whether the client went away; any thread."""


Handler = Callable[[bytes, ActionContext], list[Any]]
