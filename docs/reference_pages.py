"""Sphinx directives that write reference pages from the code, so that they cannot be out of date.

``{commands}`` shows every command of the command line as its ``--help``, ``{settings} CLASS`` a
table of a settings struct, ``{admin-commands}`` the actions of Arrow Flight, ``{schema} CLASS`` the
JSON Schema of a struct, and ``{json-output}`` those of what commands print.
"""

import ast
import importlib
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec
import typer
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from typer.testing import CliRunner

from strandline.api.commands import COMMANDS
from strandline.cli.app import app as cli
from strandline.cli.documents import DOCUMENTS, schema_of

ROOT = Path(__file__).parents[1]


class Generated(Directive):
    """A directive whose content is Markdown made from the code."""

    def text(self) -> str:
        """Return the Markdown."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parse the Markdown where the directive stands."""
        parent = nodes.container()
        lines = StringList(self.text().splitlines(), source=type(self).__name__)
        self.state.nested_parse(lines, self.content_offset, parent, match_titles=True)
        return parent.children


class Commands(Generated):
    """Every command as its help."""

    def text(self) -> str:
        """Return a section for each command."""
        runner = CliRunner(env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"})
        parts = []
        for words in _leaves(typer.main.get_command(cli), ()):
            shown = runner.invoke(cli, [*words, "--help"], prog_name="strandline").stdout
            body = "\n".join(line.rstrip() for line in shown.splitlines()).strip("\n")
            parts.append(f"## strandline {' '.join(words)}\n\n```text\n{body}\n```\n")
        return "\n".join(parts)


def _leaves(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, (*path, name))
        else:
            yield (*path, name)


class OfClass(Generated):
    """A directive about the class that its argument names, with its module."""

    required_arguments = 1

    @property
    def subject(self) -> Any:
        """Return the class."""
        module, _, name = self.arguments[0].rpartition(".")
        return getattr(importlib.import_module(module), name)


class Settings(OfClass):
    """A table of a struct's fields: name, default, the text below the field."""

    def text(self) -> str:
        """Return the table; sections of the settings get their prefix."""
        rows = ["| Setting | Default | Meaning |", "|---|---|---|", *_rows(self.subject, "")]
        return "\n".join(rows)


def _rows(struct: Any, prefix: str) -> Iterator[str]:
    texts = _field_texts(struct)
    for field in msgspec.structs.fields(struct):
        default = field.default
        if isinstance(default, msgspec.Struct):
            yield from _rows(type(default), f"{prefix}{field.name}.")
            continue
        if default is msgspec.NODEFAULT:
            made = field.default_factory
            default = "required" if made is msgspec.NODEFAULT else made()
        shown = "required" if default == "required" else f"`{json.dumps(default)}`"
        meaning = texts.get(field.name, "").replace("|", "\\|").replace("``", "`")
        yield f"| `{prefix}{field.name}` | {shown} | {meaning} |"


def _field_texts(struct: Any) -> dict[str, str]:
    """Return the text below each field of a class."""
    source = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    body = source.body[0].body  # type: ignore[attr-defined]  # a class
    return {
        field.target.id: " ".join(ast.literal_eval(below.value).split())
        for field, below in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(field.target, ast.Name)
    }


class Schema(OfClass):
    """The JSON Schema of a struct."""

    def text(self) -> str:
        """Return it as a code block."""
        return _schema(self.subject)


def _schema(struct: Any) -> str:
    shown = json.dumps(msgspec.json.schema(struct), indent=2, ensure_ascii=False)
    return f"```json\n{shown}\n```\n"


class AdminCommands(Generated):
    """Every action of Arrow Flight with its request and its results."""

    def text(self) -> str:
        """Return a section for each action."""
        parts = []
        for name, command in sorted(COMMANDS.items()):
            parts.append(f"### {name}\n\n{command.help}\n")
            for title, struct in (("Body", command.request), ("Result", command.result)):
                if struct is NoneType:
                    parts.append(f"{title}: none.\n")
                else:
                    parts.append(f"{title}: `{struct.__name__}`\n\n{_schema(struct)}")
        return "\n".join(parts)


class JsonOutput(Generated):
    """The schema of each command's JSON output."""

    def text(self) -> str:
        """Return a section for each command."""
        return "\n".join(
            f"### strandline {name}\n\n```json\n{json.dumps(schema_of(name), indent=2)}\n```\n"
            for name in DOCUMENTS
        )


def _without_local_targets(_: Any, __: str, source: list[str]) -> None:
    """Turn links to folders and sources into text: the site has the pages only."""
    source[0] = re.sub(
        r"\[([^\]]+)\]\((?:\.\./)+(?!docs/)[^)]*\)", lambda found: found.group(1), source[0]
    )


def setup(app: Any) -> dict[str, Any]:
    """Register the directives."""
    for name, directive in (
        ("commands", Commands),
        ("settings", Settings),
        ("schema", Schema),
        ("admin-commands", AdminCommands),
        ("json-output", JsonOutput),
    ):
        app.add_directive(name, directive)
    app.connect("source-read", _without_local_targets)
    return {"parallel_read_safe": True}
