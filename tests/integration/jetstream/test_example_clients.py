"""The examples of stock clients in five languages run, here and at nats-server's JetStream.

Where a language's tools are missing, or its packages cannot be had, its test is skipped. Java's and
Rust's take minutes to build: only `make clients` builds them.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.testing.server import Server
from tests.kit.example_builds import built

from .conftest import Asker, connected

EXAMPLES = Path(__file__).parents[3] / "examples" / "clients"
SHOWN = """\
order 1 is synced as 1
order 2 is synced as 2
order 3 is synced as 3
billed: order 1
billed: order 2
billed: order 3
an apple costs 3
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def own():
    """A broker for the examples, whose streams have common names."""
    with Server(nats=True) as url:
        yield url


@pytest.fixture(params=["nats-server", "ingest listener", "JetStream"])
def place(request, own):
    """Where the examples connect to."""
    if request.param == "JetStream":
        return request.getfixturevalue("theirs")
    return own.nats_url if request.param == "nats-server" else own.ingest_url


@pytest.fixture(scope="module")
def python():
    return [sys.executable, str(EXAMPLES / "orders.py")]


@pytest.fixture(scope="module")
def go(tmp_path_factory):
    words = [["mod", "tidy"], ["build", "-o", "orders", "."]]
    return [str(built(EXAMPLES / "go", "go", tmp_path_factory, words=words) / "orders")]


@pytest.fixture(scope="module")
def javascript(tmp_path_factory):
    words = [["install", "--no-audit", "--no-fund", "--loglevel", "error"]]
    copy = built(EXAMPLES / "javascript", "npm", tmp_path_factory, words=words)
    return [shutil.which("node"), str(copy / "orders.mjs")]


def only_if_asked_for():
    if os.environ.get("CLIENTS") != "all":
        pytest.skip("takes minutes to build: make clients")


@pytest.fixture(scope="module")
def java(tmp_path_factory):
    only_if_asked_for()
    words = [["-q", "compile", "dependency:copy-dependencies"]]
    copy = built(EXAMPLES / "java", "mvn", tmp_path_factory, words=words)
    path = f"{copy / 'target' / 'classes'}:{copy / 'target' / 'dependency'}/*"
    return [shutil.which("java"), "-cp", path, "Orders"]


@pytest.fixture(scope="module")
def rust(tmp_path_factory):
    only_if_asked_for()
    copy = built(EXAMPLES / "rust", "cargo", tmp_path_factory, words=[["build", "-q"]])
    return [str(copy / "target" / "debug" / "orders")]


@pytest.mark.parametrize("language", ["python", "go", "javascript", "java", "rust"])
async def test_an_example_runs(language, place, request):
    """It prints what it stored, read and kept; and again, on streams that are deleted after."""
    words = request.getfixturevalue(language)
    found = await asyncio.to_thread(
        subprocess.run, [*words, place], capture_output=True, check=False, text=True, timeout=60
    )
    assert (found.stdout, found.returncode) == (SHOWN, 0), found.stderr[-2000:]
    client = await connected(place)
    ask = Asker(client)
    for stream in ("orders", "KV_prices"):
        assert (await ask(f"STREAM.DELETE.{stream}"))["success"]
    await client.close()
