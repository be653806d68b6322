"""The forwarding of calls from the asynchronous client to the synchronous one.

``info = awaited(Groups.info)`` in a class defines ``await groups.info(…)``: the parameters, their
types and the docstring are those of the synchronous method, which runs on a thread. So no method is
written twice. The other ``aio`` modules have what asyncio needs beyond that, such as cancellation.
"""

import asyncio
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from strandline.client.aio_thread import start_on_thread
from strandline.client.arguments import check_options, options_of
from strandline.client.close_on_exit import ClosesOnExit
from strandline.errors import InvalidRequestError

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
ContextT = TypeVar("ContextT", bound=ClosesOnExit)
P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class Forwarding(ABC, Generic[S_co]):
    """An asynchronous object that runs calls of a synchronous one on a thread."""

    @abstractmethod
    async def _call(self, call: Callable[[S_co], R]) -> R:
        """Run a call with the synchronous object on a thread."""


def awaited(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[Forwarding[S], P], Coroutine[Any, Any, R]]:
    """Return the asynchronous form of a method: the same parameters, to be awaited."""
    check = _check_of(method)

    async def forward(self: Forwarding[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        check(kwargs)
        return await self._call(lambda target: method(target, *args, **kwargs))

    functools.update_wrapper(forward, method)
    return forward


def _check_of(
    method: Callable[..., Any], check: Callable[[Mapping[str, Any]], None] | None = None
) -> Callable[[Mapping[str, Any]], None]:
    """Return a check of a method's options; its error suggests the most similar option."""
    parameters = inspect.signature(method).parameters.values()
    named = {each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    known = options_of(method)

    def check_given(given: Mapping[str, Any]) -> None:
        options = {name: given[name] for name in given if name not in named}
        if check is not None:
            check(options)
        elif not takes_any:
            check_options(method.__name__, options, known)

    return check_given


class OnThread(Forwarding[S_co]):
    """An object whose calls run on asyncio's threads.

    Args:
        target: the synchronous object to wrap.
    """

    def __init__(self, target: S_co) -> None:
        self._target = target

    async def _call(self, call: Callable[[S_co], R]) -> R:
        return await asyncio.to_thread(call, self._target)


def opened_later(
    method: Callable[Concatenate[S, P], R],
    make: Callable[[Callable[[], R]], A],
    *,
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> Callable[Concatenate[OnThread[S], P], A]:
    """Return a method that makes an asynchronous object; opening that object calls ``method``.

    Args:
        method: opens the synchronous object; blocks.
        make: makes the asynchronous object from that call.
        check: rejects options when the method is called, not only when the object is opened; by
            default, options that ``method`` does not have.
    """
    check = _check_of(method, check)

    def forward(self: OnThread[S], /, *args: P.args, **kwargs: P.kwargs) -> A:
        check(kwargs)
        return make(lambda: method(self._target, *args, **kwargs))

    functools.update_wrapper(forward, method)
    return forward


class ContextOnThread(Forwarding[ContextT]):
    """A context that ``async with`` begins and ends; it runs on a thread.

    Args:
        begin: begins the synchronous context; blocks.
    """

    def __init__(self, begin: Callable[[], ContextT]) -> None:
        self._begin = begin
        self._begun: ContextT | None = None

    @property
    def _opened(self) -> ContextT:
        if self._begun is None:
            raise InvalidRequestError(f"{type(self).__name__} has not begun; use 'async with'")
        return self._begun

    async def _call(self, call: Callable[[ContextT], R]) -> R:
        return await asyncio.to_thread(call, self._opened)

    async def __aenter__(self) -> Self:
        def undo(begun: ContextT) -> None:
            begun.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)

        self._begun = await start_on_thread(self._begin, undo=undo)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._opened.__exit__, kind, error, trace)
