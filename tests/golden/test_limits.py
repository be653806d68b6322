"""The named numbers of the product: formats on wire and disk, limits, defaults of parameters.

``limits.txt`` lists them, so that none changes by accident: what is on disks and in other brokers
was written with them, limits were chosen by measurement, and users rely on defaults.
``GOLDEN_UPDATE=1`` writes what is there now into the list: read the difference before a commit.
"""

import ast
import importlib
import os
import pkgutil
from pathlib import Path

import pytest
from msgspec import Meta
from typer.main import get_command

import strandline
from strandline.cli.app import app

LIST = Path(__file__).with_name("limits.txt")
AREAS = (
    *("api", "backup", "broker", "cli", "client", "core", "encryption", "process", "reading"),
    *("record", "security", "servers", "spark", "storage", "values"),
)
COMPLETE = ("broker", "core", "record", "storage")
"""What is on disks and in other brokers: of these every number is listed."""
NUMBERS = (int, float)


def named(body, prefix):
    """Yield the names that a module, class or signature gives to values, with their expressions."""
    for node in body:
        match node:
            case ast.ClassDef():
                yield from named(node.body, f"{prefix}{node.name}.")
            case (
                ast.FunctionDef(name=function, args=args)
                | ast.AsyncFunctionDef(name=function, args=args)
            ):
                plain = [*args.posonlyargs, *args.args]
                given = zip(reversed(plain), reversed(args.defaults), strict=False)
                for each, value in [*given, *zip(args.kwonlyargs, args.kw_defaults, strict=True)]:
                    if value is not None:
                        yield f"{prefix}{function}({each.arg})", value
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield f"{prefix}{name}", value
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                yield f"{prefix}{name}", value


def numbers_of(module):
    """Yield a line for each named number of a module."""
    for name, value in named(ast.parse(Path(module.__file__).read_bytes()).body, ""):
        if not any(
            isinstance(each, ast.Constant) and isinstance(each.value, NUMBERS)
            for each in ast.walk(value)
        ):
            continue
        owner = module
        for part in name.split(".")[:-1]:
            owner = getattr(owner, part)
        try:
            found = eval(
                compile(ast.Expression(value), name, "eval"), {**vars(module), **vars(owner)}
            )
        except NameError:
            continue  # of a class that is not there at run time, such as a member of an enum
        found = getattr(found, "__metadata__", found)  # limits of a type
        if isinstance(found, NUMBERS) or (
            isinstance(found, tuple) and all(isinstance(each, (*NUMBERS, Meta)) for each in found)
        ):
            text = repr(found).replace("msgspec.", "")
            yield f"{module.__name__.removeprefix('strandline.')}.{name} = {text}"


def bounds_of(command, path="cli"):
    """Yield a line for each smallest and largest number that a flag of the command line takes."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from bounds_of(inner, f"{path}.{name}")
    for each in command.params:
        for bound in ("min", "max"):
            if (number := getattr(each.type, bound, None)) is not None:
                yield f"{path}({each.name}).{bound} = {number!r}"


@pytest.mark.parametrize("area", AREAS)
def test_numbers_with_names_change_on_purpose_only(area):
    """Each is what the list says."""
    package = importlib.import_module(f"strandline.{area}")
    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.walk_packages(package.__path__, f"strandline.{area}.")
        if not each.name.endswith("__main__")
    ]
    lines = [line for each in modules for line in numbers_of(each)]
    now = sorted([*lines, *bounds_of(get_command(app))] if area == "cli" else lines)
    listed = LIST.read_text("utf-8").splitlines() if LIST.exists() else []
    if os.environ.get("GOLDEN_UPDATE"):
        others = [line for line in listed if not line.startswith(f"{area}.")]
        LIST.write_text("\n".join(sorted([*others, *now])) + "\n", "utf-8")
    before = [line for line in listed if line.startswith(f"{area}.")]
    if area not in COMPLETE:  # elsewhere a number that is new may wait for the next list
        names = {line.partition(" = ")[0] for line in before}
        there = {line.partition(" = ")[0] for line in now}
        now = [line for line in now if line.partition(" = ")[0] in names]
        before = [line for line in before if line.partition(" = ")[0] in there]
    assert now == before, "if that is meant, write the list anew with GOLDEN_UPDATE=1"


def test_the_areas_are_packages():
    """None was renamed."""
    there = {each.name for each in pkgutil.iter_modules(strandline.__path__) if each.ispkg}
    assert there.issuperset(AREAS)
