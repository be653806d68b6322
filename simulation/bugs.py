"""Seeded bugs: small changes to correct code, to see whether the checkers notice them.

``SourceRewrite`` replaces a piece of a function's source and compiles the function again. The piece
must occur exactly once, or the bug is out of date, which is an error. ``Replacement`` replaces a
whole function.
"""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceRewrite:
    """A bug made by changing a function's source.

    Attributes:
        name: what is wrong, in a few words.
        place: ``package.module:Class.function`` or ``package.module:function``.
        right: a piece of the function's source, which must occur there once.
        wrong: the replacement.
    """

    name: str
    place: str
    right: str
    wrong: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the body with the bug in place.

        Raises:
            ValueError: the source no longer has the piece, so the bug has to be adapted.
        """
        module_name, _, path = self.place.partition(":")
        module = importlib.import_module(module_name)
        *owners, name = path.split(".")
        owner: Any = module
        for each in owners:
            owner = getattr(owner, each)
        original = inspect.getattr_static(owner, name)
        setattr(owner, name, self._compiled(original, vars(module)))
        try:
            yield
        finally:
            setattr(owner, name, original)

    def _compiled(self, original: object, names: dict[str, Any]) -> object:
        """Return the function with the bug, of the same kind (a property stays a property)."""
        function = original.fget if isinstance(original, property) else original
        assert inspect.isfunction(function), "a bug is planted in a function"
        source = textwrap.dedent(inspect.getsource(function))
        count = source.count(self.right)
        if count != 1:
            raise ValueError(f"{self.name}: {self.right!r} is in {self.place} {count} times")
        space = dict(names)
        wrong = source.replace(self.right, self.wrong)
        exec(compile(wrong, f"<{self.name}>", "exec"), space)  # noqa: S102 -- our own source
        return space[function.__name__]


@dataclass(frozen=True, slots=True)
class Replacement:
    """A bug made by replacing a function.

    Attributes:
        name: what is wrong, in a few words.
        attribute: the name by which the function is looked up.
        instead: the function with the bug.
        owners: the modules or classes in which it is looked up.
    """

    name: str
    attribute: str
    instead: Any
    owners: tuple[Any, ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the body with the bug in place."""
        right = [(owner, vars(owner)[self.attribute]) for owner in self.owners]
        for owner in self.owners:
            setattr(owner, self.attribute, self.instead)
        try:
            yield
        finally:
            for owner, original in right:
                setattr(owner, self.attribute, original)


SeededBug = SourceRewrite | Replacement
