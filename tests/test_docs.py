"""The documentation as a test: nothing undocumented, no dead link, every example runs.

Rules: pages are parsed the way readers see them (tables and headings), and compared with the code
in both directions, so that a page cannot describe what does not exist either. Shell examples run
against a real broker on free ports; ports and addresses in the text are replaced by its own.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args
from urllib.parse import unquote

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from strandline.cli.app import app
from strandline.config import BrokerConfig, StreamConfig
from strandline.core.metadata.image import BrokerState
from strandline.errors import all_error_classes
from strandline.process.settings import flat_settings
from strandline.telemetry import GROUP_METRICS, METRICS, PARTITION_METRICS, PREFIX, metric_names
from tests.kit.doc_examples import ROOT, ExampleBroker, blocks, start_broker, stop_broker

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN_PAGES = (
    "docs/backup.md",
    "docs/consumer-groups.md",
    "docs/offset-stores.md",
    "docs/python-client.md",
    "docs/schemas.md",
    "docs/transactions.md",
)


def text_of(page):
    return (ROOT / page).read_text("utf-8")


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def table_rows(text):
    """Rows of all tables, by the code in their first cell."""
    rows = {}
    for line in without_code(text).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and (key := re.fullmatch(r"`([^`]+)`", cells[0])):
            rows[key.group(1)] = cells[1:]
    return rows


def section(text, heading):
    """The text under one second-level heading."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found, f"no section '## {heading}'"
    return found.group(1)


def shown(value):
    """A default as the pages write it."""
    return f"`{json.dumps(value)}`"


def commands(group, path=()):
    """Every leaf command of the CLI with its full name."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join(("strandline", *path, name)), command


COMMANDS = dict(commands(typer.main.get_command(app)))


# Nothing undocumented, nothing invented


def test_every_broker_setting_is_documented_with_its_default():
    """The table of broker settings is exactly the settings there are."""
    rows = table_rows(section(text_of("docs/configuration.md"), "Broker settings"))
    settings = flat_settings(BrokerConfig())
    assert {key: cells[0] for key, cells in rows.items()} == {
        key: shown(value) for key, value in settings.items()
    }


def test_every_stream_setting_is_documented_with_its_default():
    """The table of stream settings is exactly the settings there are."""
    rows = table_rows(section(text_of("docs/configuration.md"), "Stream settings"))
    assert {key: cells[0] for key, cells in rows.items()} == {
        field.name: "required" if field.required else shown(field.default)
        for field in msgspec.structs.fields(StreamConfig)
    }


def test_every_metric_is_documented():
    """The table of metrics has each name, kind and meaning, and no others."""
    expected = {name: [] for name in metric_names()}
    for field in METRICS:
        kind, label = field.metadata["kind"], field.metadata.get("label")
        name = PREFIX + field.name + ("_total" if kind == "counter" else "")
        expected[name] = [f"{kind}, by `{label}`" if label else kind, field.metadata["help"]]
    for name, help_text in PARTITION_METRICS.items():
        expected[f"{PREFIX}partition_{name}"] = ["gauge, by `stream` and `partition`", help_text]
    for name, help_text in GROUP_METRICS.items():
        expected[f"{PREFIX}group_{name}"] = [
            "gauge, by `group`, `stream` and `partition`",
            help_text,
        ]
    rows = table_rows(text_of("docs/metrics.md"))
    assert list(rows) == metric_names()
    assert {name: cells for name, cells in rows.items() if expected[name]} == {
        name: cells for name, cells in expected.items() if cells
    }


def test_every_error_code_is_documented():
    """Each code is in the tables with the right answer to whether a retry may help."""
    rows = table_rows(text_of("docs/errors.md"))
    assert {code: cells[0] for code, cells in rows.items()} == {
        cls.code: "yes" if cls.retriable else "no" for cls in all_error_classes()
    }
    assert all(len(cells) == 3 and all(cells) for cells in rows.values())


def test_every_state_of_a_broker_is_documented():
    """The table in docs/cluster.md has each word that `cluster status` shows, and no others."""
    _, _, table = text_of("docs/cluster.md").partition("### The states of a broker\n")
    assert set(table_rows(table.split("\n#")[0])) == set(get_args(BrokerState))


def test_every_command_is_documented():
    """docs/cli.md has a section per command, and none for a command that does not exist."""
    headings = re.findall(r"^## (strandline .*)$", text_of("docs/cli.md"), re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_flag_is_documented(name):
    """A command's section has exactly its flags and arguments, besides the common ones.

    The default is the one that the page names, if it is a value and no text.
    """
    page = text_of("docs/cli.md")
    common = set(table_rows(section(page, "Flags that most commands take")))
    assert common == {"--server", "--output"}
    documented = table_rows(section(page, name))
    flags = set()
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "argument":
            flags.add((parameter.metavar or parameter.name.upper()).strip("[]"))
        elif parameter.name != "help":
            longs = [flag for flag in parameter.opts if flag.startswith("--")]
            flags.add(longs[0])
            if longs[0] not in common:
                assert_default(documented[longs[0]][0], parameter)
    assert documented.keys() == flags - common


def assert_default(text, flag):
    """Check what a page writes as a flag's default."""
    default = getattr(flag.default, "value", flag.default)
    if isinstance(default, bool) and not flag.required:
        assert text.startswith("yes") == default, text
    elif default is not None and flag.show_default is True:
        assert text == f"`{default:g}`" if isinstance(default, int) else f"`{default}`", text
    assert (text == "required") == flag.required, text


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name):
    """Help has a sentence and an example, each flag a description; output may be JSON."""
    command = COMMANDS[name]
    assert command.help, name
    assert command.epilog, f"{name} shows no example"
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}"
    assert any("--output" in parameter.opts for parameter in command.params), name


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_names_every_flag_in_full(name, monkeypatch):
    """On a terminal of 80 columns."""
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = CliRunner().invoke(app, [*name.split()[1:], "--help"]).output
    flags = [flag for each in COMMANDS[name].params for flag in each.opts if flag.startswith("--")]
    assert not [flag for flag in flags if not re.search(rf"(?<![^\s,]){flag}(?![^\s,])", shown)]


@pytest.mark.parametrize(
    ("page", "heading"),
    [("kafka", "Settings of a topic"), ("liftbridge", "Settings of a stream")],
)
def test_pages_for_newcomers_translate_to_what_exists(page, heading):
    """Each command in their tables is one of ours, and each setting of a stream, too."""
    text = text_of(f"docs/coming-from-{page}.md")
    tokens = re.findall(r"`strandline ([^`]+)`", without_code(text))
    asked = [token.split() for token in tokens]
    unknown = [
        words
        for words in asked
        if not {f"strandline {' '.join(words[:count])}" for count in (1, 2)} & COMMANDS.keys()
    ]
    assert asked
    assert not unknown
    settings = {field.name for field in msgspec.structs.fields(StreamConfig)}
    settings |= flat_settings(BrokerConfig()).keys()
    ours = re.findall(r"^\|.* \| (.*) \|$", section(text, heading), re.MULTILINE)
    named = re.findall(r"`(\w+(?:\.\w+)?)`", " ".join(ours))
    assert len(named) > 5
    assert not [name for name in named if name not in settings | {"zstd", "lz4", "none"}]


def test_the_readme_begins_with_what_it_is_and_how_to_try_it():
    """Its first screen has a sentence, make, install, Python, SQL, Spark, promises, a picture."""
    screen, rest = text_of("README.md").split("\n## ", 1)
    wanted = ("A durable log", "make demo", "make test")
    wanted += ('pip install "strandline[server,cli]"', "strandline serve", "import asyncio, nats")
    wanted += (".scan(", "duckdb.sql", "spark_session")
    wanted += ("| What you do | What holds |", "docs/img/overview.svg")
    places = [screen.index(each) for each in wanted]
    assert places == sorted(places)
    assert screen.count("![") == 1
    sentence = screen.split("\n\n")[1]
    assert sentence.count(".") == 1
    lines = [
        [line for line in block.splitlines() if line] for _, block in blocks("README.md", "python")
    ]
    assert all(len(block) <= 8 for block in lines)
    assert len(lines[-1]) <= 4
    assert rest.index("## What it is not") < rest.index("## Benchmarks")


def test_the_makefile_lists_every_target_of_the_readme():
    """`make` alone lists the targets, each with a description."""
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = {line.split()[0] for line in listed.splitlines() if line.strip()}
    assert {"demo", "test", "check", "bench", "sim", "docs"} <= targets
    assert all(len(line.split()) > 2 for line in listed.splitlines())


# Links


def anchors(text):
    """The anchors that a page's headings make."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE):
        plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_links_lead_somewhere(page):
    """Every relative link names a file that exists, and a heading in it."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text("utf-8"))):
            dead.append(target)
    assert not dead


def test_architecture_names_what_exists():
    """Each path, class and method that docs/architecture.md names is in the code."""
    sources = ROOT / "src" / "strandline"
    defined = {
        name
        for path in sources.rglob("*.py")
        for name in re.findall(
            r"^ *(?:(?:async )?def |class )?(\w+)(?=[ (:])", path.read_text("utf-8"), re.MULTILINE
        )
    }
    unknown = []
    for token in set(re.findall(r"`([^`\n]+)`", without_code(text_of("docs/architecture.md")))):
        if re.fullmatch(r"[\w/]+(?:\.py|/)", token):
            found = (ROOT / token).exists() or any(sources.rglob(token.removesuffix("/")))
        elif re.fullmatch(r"[A-Z]\w+(?:\.\w+)?", token):
            found = defined.issuperset(token.split("."))
        else:
            continue
        unknown += [] if found else [token]
    assert not unknown


@pytest.mark.parametrize("page", ["docs/status.md", "docs/guarantees.md"])
def test_pages_about_tests_name_what_exists(page):
    """Each path and test file in them exists; a star matches any name."""
    folders = [ROOT, ROOT / "src" / "strandline", ROOT / "src"]
    unknown = []
    for token in set(re.findall(r"`([\w/*.{},-]+)`", text_of(page))):
        names = [token]
        if "{" in token:
            head, _, rest = token.partition("{")
            middle, _, tail = rest.partition("}")
            names = [f"{head}{each}{tail}" for each in middle.split(",")]
        for name in names:
            if "/" in name:
                found = any(next(folder.glob(name.rstrip("/")), None) for folder in folders)
            elif name.endswith((".py", ".md")):
                found = any(ROOT.glob(f"src/**/{name}")) or any(ROOT.glob(f"tests/**/{name}"))
            else:
                continue
            unknown += [] if found else [name]
    assert not unknown


def test_every_page_is_reached_from_the_readme():
    """Links from the README lead to every page."""
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        targets = re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))
        waiting.extend(page.parent / target for target in targets)
    assert not {page for page in PAGES if page.resolve() not in seen}


# Examples


@pytest.fixture(params=RUN_PAGES)
def page(request):
    return request.param


@pytest.fixture
def broker(tmp_path):
    python = Path(sys.executable)
    process, ready = start_broker(tmp_path, python)
    yield ExampleBroker(ready, tmp_path, python)
    stop_broker(process)


@pytest.mark.timeout(600)
def test_a_first_load_takes_eight_lines(broker):
    """The lines of the page, from an empty directory to a queried table."""
    text = section(text_of("docs/pipelines.md"), "A first load")
    [(file, commands)] = re.findall(r"```yaml\n(.*?)```.*?```sh\n(.*?)```", text, re.DOTALL)
    assert len(file.splitlines()) <= 8
    server = broker.localise("server: 127.0.0.1:9293")
    (broker.directory / "load.yaml").write_text(f"{file}{server}\n")
    outputs = [
        broker.run_shell(line)
        for line in commands.splitlines()
        if not line.startswith(("pip install", "strandline serve"))
    ]
    assert "ada" in outputs[-1]


@pytest.mark.timeout(600)
def test_examples_run_in_order(page, broker):
    """Every shell and Python example of a page works, from top to bottom, on a fresh broker."""
    broker.run_page(page, skip="spark")
