"""The menu of versions on the documentation's site, in a browser."""

import functools
import http.server
import importlib.util
import shutil
import subprocess
import sys
import threading

import pytest
from playwright.sync_api import expect

from tests.kit.doc_examples import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def versions():
    """The script that lists versions."""
    spec = importlib.util.spec_from_file_location("site_versions", DOCS / "site_versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site of two pages with the settings of ours, in two versions."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "more").mkdir()
    (source / "index.md").write_text("# First\n\n```{toctree}\nmore/second\n```\n")
    (source / "more" / "second.md").write_text("# Second\n")
    for version in ("0.9.0", "0.10.0"):
        build = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "-c", DOCS]
        build += ["-D", "extensions=myst_parser", "-D", f"release={version}"]
        done = subprocess.run(
            [*build, source, out / version], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def served(site):
    """The address of the site."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    handler.log_message = lambda *_: None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_versions_are_sorted_as_numbers(versions, site):
    """The newest is the first, and where the address without a version leads."""
    assert versions.write_versions(site) == ["0.10.0", "0.9.0"]
    assert "url=0.10.0/index.html" in (site / "index.html").read_text()


def test_another_version_is_chosen(versions, site, served, page):
    """From any page, to the first page of the other version."""
    versions.write_versions(site)
    page.goto(f"{served}/index.html")
    page.wait_for_url("**/0.10.0/index.html")
    page.goto(f"{served}/0.10.0/more/second.html")
    menu = page.get_by_label("Version")
    expect(menu).to_have_value("0.10.0")
    menu.select_option("0.9.0")
    page.wait_for_url("**/0.9.0/index.html")
    expect(page.get_by_label("Version")).to_have_value("0.9.0")


def test_one_version_needs_no_menu(versions, site, served, page):
    """Nor does a version that stands alone, without a list."""
    place = site / "another" / "place"
    shutil.copytree(site / "0.9.0", place / "0.9.0")
    for _ in range(2):
        page.goto(f"{served}/another/place/0.9.0/index.html")
        expect(page.get_by_role("heading", name="First")).to_be_visible()
        expect(page.get_by_label("Version")).to_be_hidden()
        assert versions.write_versions(place) == ["0.9.0"]
