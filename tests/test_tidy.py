"""The style budget of STYLE.md as a test: each rejection names what to do instead.

Rules here are few and mechanical; what needs judgement is left to reviewers. A rule that must be
broken is broken here, in ``ALLOWED``, with a reason, and nowhere else.
"""

import ast
import builtins
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = {"src": 700, "simulation": 700, "chaos": 700}
LINES_MAX = {**PRODUCT, "tests": 1000, "benchmarks": 700, "examples": 300}
FUNCTION_LINES_MAX = dict.fromkeys(LINES_MAX, 60)
FUNCTION_LINES_MEDIAN_MAX = 10
POSITIONAL_MAX = 3
LIBRARY_SIGNATURES = {"do_put"}  # methods that a library calls with arguments by position
NESTING_MAX = 4
LINE_LENGTH_MAX = 100
FILE_BYTES_MAX = 512 << 10
TEXT_SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".sh", ".c", ".h", ".xml", ".svg"}

# word: what to say instead. Matched whole, in any case, in code, tests and docs.
BANNED_WORDS = {
    r"topics?": "stream (docs/glossary.md)",
    r"highwatermarks?|high water marks?": "high watermark",
    r"slaves?": "follower",
    r"black-?lists?|white-?lists?": "denied, allowed",
    r"write-ahead logs?|WALs?": "journal",
    r"broker node|server node": "broker",
    r"kafka-like": "say what it does",
}
# Marks of work left undone, spelled so that this file does not contain them.
UNDONE = re.compile(
    r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b"
)
# What only a developer's machine has, or a registry's address; pip and Maven know their own.
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(work|root|home|Users)/\w")
REGISTRIES = re.compile(
    r"pythonhosted|pypi\.org/simple|index-url|artifactory|repo1?\.maven|registry\.npmjs|"
    r"proxy\.golang",
    re.IGNORECASE,
)

PACKAGES = ("strandline", "pyspark_strandline", "pyspark_strandline_table")
# call: (what to use instead, packages of src/strandline where it is banned, files exempt)
CORE = ("record", "core", "storage", "broker", "servers", "process")
BANNED_CALLS = {
    "time.time": ("Clock.now_ns", CORE, ()),
    "time.time_ns": ("Clock.now_ns", CORE, ()),
    "time.monotonic": ("Clock.monotonic_ms", CORE, ()),
    "time.sleep": ("asyncio.sleep, or an event with a timeout", CORE, ()),
    "datetime.now": ("Clock.now_ns", CORE, ()),
    "datetime.utcnow": ("Clock.now_ns", (*CORE, "client", "spark", "cli"), ()),
    "hash": ("zlib.crc32: hash() differs between processes", (*CORE, "client"), ()),
    "id": ("a number of our own: id() is reused", CORE, ()),
    "uuid.uuid4": ("secrets.token_hex", CORE, ()),
    "os.fsync": (
        "Disk.fdatasync",
        CORE,
        ("storage/disk.py", "storage/private_directory.py"),
    ),
    "os.fdatasync": (
        "Disk.fdatasync",
        CORE,
        ("storage/disk.py", "broker/write_path/sync_program.py"),
    ),
    "os.write": ("Disk.pwritev", ("storage",), ("storage/disk.py",)),
    "os.pwrite": ("Disk.pwritev", ("storage",), ("storage/disk.py",)),
    "os.rename": ("Disk.rename", ("storage", "broker"), ("storage/disk.py",)),
    "os.replace": ("Disk.rename", ("storage", "broker"), ("storage/disk.py",)),
    "os.unlink": ("Disk.unlink", ("storage",), ("storage/disk.py",)),
    "open": ("Disk.open", ("storage", "record", "core"), ("storage/disk.py",)),
    "asyncio.ensure_future": ("asyncio.create_task, its result kept", (*CORE, "client"), ()),
    "asyncio.get_event_loop": ("asyncio.get_running_loop", (*CORE, "client", "testing"), ()),
    "pickle.loads": ("msgspec: unpickling runs code", (*CORE, "client"), ()),
    "os._exit": ("return from main: the turn must finish", (*CORE, "cli"), ()),
    "sys.exit": ("return an exit code from main", CORE, ()),
}

# path: why a word, length or address rule does not hold there.
ALLOWED = {
    "tests/test_tidy.py": "states the rules",
    "docs/glossary.md": "names the words that are banned",
    "STYLE.md": "names the words that are banned",
    "LICENSE": "not ours",
}
KAFKA_WORDS = re.compile(r"(?i:kafka)|highWatermark")
"""What is not ours to name: Kafka's own, and a field of Liftbridge's."""


@cache
def project_files() -> list[Path]:
    """Files that are, or would be, committed."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        listed = subprocess.run(
            [git, "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.splitlines()
        found = [ROOT / name for name in listed]
    else:
        found = [
            path
            for folder in (*LINES_MAX, "docs", ".")
            for path in (ROOT / folder).glob("*" if folder == "." else "**/*")
        ]
    return sorted(path for path in set(found) if path.is_file())


def relative(path: Path) -> str:
    """Path as the rules write it."""
    return path.relative_to(ROOT).as_posix()


@cache
def texts() -> dict[str, str]:
    """Every text file of the project, by name."""
    return {
        relative(path): path.read_text("utf-8")
        for path in project_files()
        if path.suffix in TEXT_SUFFIXES or path.name in {"Makefile", "run", ".gitignore"}
    }


@cache
def trees() -> dict[str, ast.Module]:
    """Every Python file, parsed: by the tests that ask, not in each worker that collects them."""
    return {name: ast.parse(text) for name, text in texts().items() if name.endswith(".py")}


@cache
def ours() -> dict[str, ast.Module]:
    """Those with a limit of lines: not what a compiler of protocols writes."""
    return {
        name: tree
        for name, tree in trees().items()
        if "/_generated/" not in name and name.split("/")[0] in LINES_MAX
    }


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    """Every function and method."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def body_lines(function: Function) -> int:
    """Lines of the body, without the docstring and without nested functions."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    lines: set[int] = set()
    for statement in function.body[has_docstring:]:
        lines |= _span(statement)
    for node in ast.walk(function):
        if isinstance(node, Function) and node is not function:
            lines -= _span(node)
    return len(lines)


def _span(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def nesting(nodes: list[ast.stmt], depth: int = 0) -> int:
    """Depth of the deepest compound statement; an ``elif`` is no deeper than its ``if``."""
    deepest = depth
    for node in nodes:
        if isinstance(node, Function | ast.ClassDef):
            continue
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, [])
            if not isinstance(inner, list):
                continue  # the body of a lambda or conditional expression is one expression
            is_elif = field == "orelse" and len(inner) == 1 and isinstance(inner[0], ast.If)
            is_arm = field in ("handlers", "cases")
            deepest = max(deepest, nesting(inner, depth if is_elif or is_arm else depth + 1))
    return deepest if nodes else depth - 1


def refuse(offences: list[str]) -> None:
    """Fail with every offence on a line of its own."""
    assert not offences, "\n" + "\n".join(sorted(offences))


def test_modules_are_short() -> None:
    """A module fits the budget of its folder; a longer one is two subjects."""
    refuse(
        [
            f"{name}: {texts()[name].count(chr(10))} lines, at most {LINES_MAX[name.split('/')[0]]}"
            for name in ours()
            if texts()[name].count("\n") > LINES_MAX[name.split("/")[0]]
        ]
    )


def test_functions_are_short() -> None:
    """A function is at most one screen, its docstring not counted."""
    refuse(
        [
            f"{name}:{function.lineno}: {function.name} has {lines} lines, at most {limit}"
            for name, tree in ours().items()
            for function in functions(tree)
            if (lines := body_lines(function)) > (limit := FUNCTION_LINES_MAX[name.split("/")[0]])
        ]
    )


def test_most_functions_are_very_short() -> None:
    """The median function of the product is about ten lines."""
    lengths = [
        body_lines(function)
        for name, tree in ours().items()
        if name.split("/")[0] in PRODUCT
        for function in functions(tree)
    ]
    assert median(lengths) <= FUNCTION_LINES_MEDIAN_MAX


def test_functions_take_few_positional_arguments() -> None:
    """At most three arguments may be given by position; put a * before the others."""
    offences = []
    for name, tree in ours().items():
        if name.split("/")[0] not in PRODUCT:
            continue
        for function in functions(tree):
            given = [*function.args.posonlyargs, *function.args.args]
            is_bound = bool(given) and given[0].arg in ("self", "cls")
            is_dunder = function.name.startswith("__") and function.name != "__init__"
            if is_dunder or function.name in LIBRARY_SIGNATURES:
                continue
            if len(given) - is_bound > POSITIONAL_MAX:
                offences.append(f"{name}:{function.lineno}: {function.name} takes {len(given)}")
    refuse(offences)


def test_code_is_not_deeply_nested() -> None:
    """Four levels inside a function at most; return early, or name the inner part."""
    refuse(
        [
            f"{name}:{function.lineno}: {function.name} is nested {depth} deep"
            for name, tree in ours().items()
            for function in functions(tree)
            if (depth := nesting(function.body)) > NESTING_MAX
        ]
    )


def test_every_module_says_what_it_is() -> None:
    """Each module opens with a docstring of at least one sentence."""
    refuse(
        [
            f"{name}: no module docstring, or not a sentence"
            for name, tree in ours().items()
            if texts()[name].strip() and not re.search(r"[.:]", ast.get_docstring(tree) or "")
        ]
    )


def test_every_test_says_what_it_shows() -> None:
    """Each test has a docstring: the behaviour, in a sentence."""
    refuse(
        [
            f"{name}:{function.lineno}: {function.name} has no docstring"
            for name, tree in ours().items()
            if name.startswith("tests/")
            for function in functions(tree)
            if function.name.startswith("test_") and not ast.get_docstring(function)
        ]
    )


def test_lines_are_short_in_every_language() -> None:
    """One hundred characters; ruff sees to Python, this to the rest. Markdown tables are free."""
    suffixes = (".c", ".h", ".sh", ".yaml", ".txt", "Makefile", ".ci/run")
    refuse(
        [
            f"{name}:{number}: {len(line)} characters"
            for name, text in texts().items()
            if name.endswith(suffixes) and name not in ALLOWED
            for number, line in enumerate(text.splitlines(), 1)
            if len(line) > LINE_LENGTH_MAX
        ]
    )


def test_one_word_per_concept() -> None:
    """The vocabulary of docs/glossary.md; Kafka's own terms may be used for Kafka."""
    offences = []
    for name, text in texts().items():
        if name in ALLOWED or KAFKA_WORDS.search(name):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if KAFKA_WORDS.search(line):
                continue
            offences += [
                f"{name}:{number}: '{found.group()}'; say {instead}"
                for word, instead in BANNED_WORDS.items()
                if (found := re.search(rf"\b({word})\b", line, re.IGNORECASE))
            ]
    refuse(offences)


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (UNDONE, "do it, or write an issue"),
        (MACHINE_PATHS, "a path relative to the project, or a temporary directory"),
        (REGISTRIES, "the package's name alone: the installer knows where"),
    ],
    ids=["undone", "machine-path", "registry"],
)
def test_nothing_local_or_unfinished_is_committed(pattern: re.Pattern[str], instead: str) -> None:
    """No marks of unfinished work, no paths of one machine, no addresses of registries."""
    refuse(
        [
            f"{name}:{number}: '{found.group()}'; use {instead}"
            for name, text in texts().items()
            if name not in ALLOWED
            for number, line in enumerate(text.splitlines(), 1)
            if (found := pattern.search(line))
        ]
    )


def test_class_names_are_unique() -> None:
    """A class name of the product means one thing, and is found by searching for it."""
    places: dict[str, list[str]] = {}
    for name, tree in trees().items():
        if name.startswith("src/"):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(f"{name}:{node.lineno}")
    refuse(
        [f"{where[1]}: {each} is also in {where[0]}" for each, where in places.items() if where[1:]]
    )


def constants(tree: ast.Module) -> Iterator[str]:
    """The constants that a module assigns, each as often as it does."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from (ast.unparse(each) for each in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target)


def test_constants_are_assigned_once() -> None:
    """A merge that keeps both sides leaves two values, of which the last one counts."""
    refuse(
        [
            f"{name}: {constant} is assigned {count} times"
            for name, tree in trees().items()
            for constant, count in Counter(constants(tree)).items()
            if constant.isupper() and count > 1
        ]
    )


def test_imports_have_no_cycles() -> None:
    """No module of the product imports itself by way of others, for type checking included."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_banned_calls_are_not_made() -> None:
    """Clocks, randomness and the file system are reached through one door each."""
    offences = []
    for name, tree in ours().items():
        inside = name.removeprefix("src/strandline/")
        if inside == name:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            instead, packages, exempt = BANNED_CALLS.get(ast.unparse(node.func), ("", (), ()))
            if inside.split("/")[0] in packages and inside not in exempt:
                called = ast.unparse(node.func)
                offences.append(f"{name}:{node.lineno}: {called}(); use {instead}")
    refuse(offences)


def test_every_exemption_gives_a_reason() -> None:
    """A suppressed check names its rule and says why."""
    suppressed = re.compile(r"#\s*(noqa|type: ignore)(?P<rest>.*)")
    reasoned = re.compile(r"(: ?[A-Z]+\d+(, ?[A-Z]+\d+)*|\[[\w, -]+\])\s*(#\s*)?[-:(]?\s*\w.{5,}")
    refuse(
        [
            f"{name}:{number}: say which rule, and why"
            for name in ours()
            if name.split("/")[0] in PRODUCT
            for number, line in enumerate(texts()[name].splitlines(), 1)
            if (found := suppressed.search(line)) and not reasoned.match(found["rest"].strip())
        ]
    )


def test_markdown_begins_with_a_title() -> None:
    """Each page opens with one first-level heading, and has no second."""
    for name, text in texts().items():
        if name.endswith(".md"):
            outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
            titles = [line for line in outside.splitlines() if line.startswith("# ")]
            assert text.startswith("# "), f"{name} has no title"
            assert len(titles) == 1, f"{name} has {len(titles)} titles"


def test_no_large_files_are_committed() -> None:
    """The repository stays small; data comes from packages."""
    refuse(
        [
            f"{relative(path)}: {path.stat().st_size} bytes, at most {FILE_BYTES_MAX}"
            for path in project_files()
            if path.stat().st_size > FILE_BYTES_MAX
        ]
    )


@pytest.mark.parametrize(
    ("code", "depth"),
    [
        ("def f():\n pass", 0),
        ("def f():\n if a:\n  pass", 1),
        ("def f():\n if a:\n  pass\n elif b:\n  pass\n elif c:\n  pass", 1),
        ("def f():\n for a in b:\n  try:\n   pass\n  except E:\n   if c:\n    pass", 3),
        ("def f():\n match a:\n  case 1:\n   while b:\n    pass", 2),
    ],
)
def test_nesting_is_counted_as_read(code: str, depth: int) -> None:
    """The rule's own counting: an elif chain is flat, arms count with their statement."""
    [function] = functions(ast.parse(code))
    assert nesting(function.body) == depth


def raised_names(docstring: str) -> Iterator[str]:
    """The classes that the ``Raises:`` section of a docstring names."""
    section = re.search(r"^Raises:\n((?: {4}.*\n?|\n)+)", docstring, re.MULTILINE)
    for line in re.findall(r"^ {4}(\S.*)", section[1], re.MULTILINE) if section else ():
        yield from re.split(r", | and | or ", line.partition(":")[0])


def test_the_errors_that_docstrings_name_exist():
    """A name in a ``Raises:`` section is a class of the product, imported there, or built in."""
    trees = {path: ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py")}
    classes = {n.name for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.ClassDef)}
    unknown, checked = [], 0
    for path, tree in trees.items():
        nodes = list(ast.walk(tree))
        imports = [a for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
        known = classes | {(a.asname or a.name).partition(".")[0] for a in imports}
        for node in nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for name in raised_names(ast.get_docstring(node) or ""):
                checked += 1
                if name.partition(".")[0] not in known and not hasattr(builtins, name):
                    unknown.append(f"{path.relative_to(ROOT)}: {node.name}: {name}")
    assert checked > 100
    assert not unknown, f"write the name of an existing class: {unknown}"
