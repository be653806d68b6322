"""The documentation's site: it is built without a warning, from files and the code alone."""

import html
import re
import subprocess
import sys

import msgspec
import pytest

from strandline.api.commands import COMMANDS
from strandline.client.client import Client
from strandline.config import BrokerConfig
from strandline.errors import all_error_classes
from strandline.process.settings import flat_settings
from tests.kit.doc_examples import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` does, in a network namespace without a network if possible."""
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    build += ["-d", str(out / "doctrees"), str(DOCS), str(out / "site")]
    isolated = ["unshare", "--net", *build]
    works = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    done = subprocess.run(
        build if works.returncode else isolated, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "site"


def shown(site, page):
    """The text of a page of the site."""
    source = (site / f"{page}.html").read_text("utf-8")
    return html.unescape(re.sub(r"<[^>]+>", "", source[source.index("<article") :]))


def test_every_page_is_in_the_menu_of_one_of_the_four_kinds(site):
    """No page can be reached by its address only."""
    index = (site / "index.html").read_text("utf-8")
    for caption in ("Tutorial", "How-to", "Reference", "Explanation"):
        assert f'<span class="caption-text">{caption}</span>' in index
    pages = {each.relative_to(DOCS).with_suffix("").as_posix() for each in DOCS.rglob("*.md")}
    assert pages == {
        each.relative_to(site).with_suffix("").as_posix()
        for each in site.rglob("*.html")
        if each.stem not in ("genindex", "py-modindex", "search")
    }
    assert all(
        f'href="{page}.html"' in index for page in pages if "/" not in page and page != "index"
    )


def test_nothing_is_fetched_by_a_reader(site):
    """Styles, scripts and fonts come with the site."""
    source = (site / "index.html").read_text("utf-8")
    assert not re.findall(r'(?:src|href)="(https?:[^"]+\.(?:css|js|woff2?|png|svg))', source)


def test_settings_are_written_from_the_structs(site):
    """Each setting with its default and its meaning."""
    text = shown(site, "reference/settings")
    for key in flat_settings(BrokerConfig()):
        assert key in text
    assert "Largest record: key, value and headers together." in text


def test_the_protocol_has_a_schema_for_each_action(site):
    """The name of each action, and every field of its request and its result."""
    text = shown(site, "reference/protocol")
    for name, command in COMMANDS.items():
        assert name in text
        for struct in (command.request, command.result):
            if struct is type(None):
                continue
            assert f'"title": "{struct.__name__}"' in text
            if not struct.__struct_config__.array_like:
                fields = [each.encode_name for each in msgspec.structs.fields(struct)]
                assert not [name for name in fields if f'"{name}"' not in text]


def test_the_python_api_has_the_methods_and_errors(site):
    """Each public method of the client, and each error class."""
    text = shown(site, "reference/python-api")
    hidden = {"abandon", "appender", "open_read", "group_coordinator"}
    for name in {each for each in vars(Client) if not each.startswith("_")} - hidden:
        assert name in text
    for cls in all_error_classes():
        assert cls.__name__ in text


def test_the_help_of_every_command_is_there(site):
    """As the command prints it."""
    text = shown(site, "reference/command-help")
    for words in ("serve", "stream create", "cluster reassign", "top", "doctor"):
        assert f"Usage: strandline {words}" in text
