"""Seeded bugs: one small change each to code that is right, to see whether the checkers notice.

A bug is a piece of a function's source and what stands there instead. Planting it compiles the
function anew; if the piece is not there exactly once the bug is out of date, and that is an error.
"""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake somebody could make.

    Attributes:
        name: what is wrong, in a few words.
        place: ``package.module:Class.function`` or ``package.module:function``.
        right: a piece of its source, found there once.
        wrong: what stands there instead.
    """

    name: str
    place: str
    right: str
    wrong: str


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Run the body with the bug in place.

    Raises:
        ValueError: the source has changed, and the bug with it.
    """
    module_name, _, path = bug.place.partition(":")
    module = importlib.import_module(module_name)
    *owners, name = path.split(".")
    owner: Any = module
    for each in owners:
        owner = getattr(owner, each)
    original = inspect.getattr_static(owner, name)
    setattr(owner, name, _compiled(bug, original, vars(module)))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _compiled(bug: Bug, original: object, names: dict[str, Any]) -> object:
    """The function with the bug, in the same wrapping (a property stays one)."""
    function = original.fget if isinstance(original, property) else original
    assert inspect.isfunction(function), "a bug is planted in a function"
    source = textwrap.dedent(inspect.getsource(function))
    right, wrong = textwrap.dedent(bug.right), textwrap.dedent(bug.wrong)
    if source.count(right) != 1:
        raise ValueError(f"{bug.name}: its place holds {right!r} {source.count(right)} times")
    space = dict(names)
    exec(compile(source.replace(right, wrong), f"<{bug.name}>", "exec"), space)  # noqa: S102 -- our own source
    return space[function.__name__]
