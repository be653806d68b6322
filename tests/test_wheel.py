"""The built wheel as a new user gets it: in an empty environment, the README's lines and the
quickstart's, outside a checkout.

Rules: ``pip install`` lines run as they are printed, with the wheel in place of the name, as no
index has this version yet. ``WHEEL`` names a wheel that was built already (`make dist`). Then the
lines are also run by the other Pythons of the machine, or those in ``PYTHONS``, which install the
sdist beside it, as a wheel is for one version; they leave out Spark.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.spark.session import QUICK_JAVA
from tests.kit.doc_examples import ROOT, ExampleBroker, blocks, start_broker, stop_broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INSTALL_S = 400
INSTALL_LINE = r"^pip install|^python3 -m venv"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def base_of(name):
    """A Python outside of environments, with its version; None if there is none of this name."""
    found = shutil.which(name)
    if found is None:
        return None
    show = "import sys; print(sys.base_prefix, '%d.%d' % sys.version_info[:2])"
    done = subprocess.run([found, "-c", show], capture_output=True, text=True, check=False)
    if done.returncode:  # a link of a version manager to one that is not chosen
        return None
    prefix, version = done.stdout.split()
    return version, f"{prefix}/bin/python{version}"


def pythons():
    """The Python of this run, and those that only `make dist` tries."""
    version, own = base_of(sys.executable)
    found = {version: own}
    if "WHEEL" in os.environ:
        given = os.environ.get("PYTHONS", "").split()
        for other in filter(None, map(base_of, given or map("python{}".format, VERSIONS))):
            found.setdefault(*other)
    return [pytest.param(python, id=version) for version, python in found.items()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    if "WHEEL" in os.environ:
        return Path(os.environ["WHEEL"])
    return built(tmp_path_factory.mktemp("dist"))


def built(out):
    """Build sdist and wheel as a release; return the wheel."""
    build = "import sys; from pathlib import Path; from dist import build_dist\n"
    build += "build_dist(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, out],
        cwd=ROOT / "deploy",
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module", params=pythons())
def python(wheel, request, tmp_path_factory):
    """The interpreter of the environment that the README's install lines make."""
    base, is_own = request.param, request.param == base_of(sys.executable)[1]
    file = wheel if is_own else next(wheel.parent.glob("*.tar.gz"))
    lines = [
        re.sub(r'"strandline\b', f'"{file}', re.sub("^python3 ", f"{base} ", line))
        for _, text in blocks("README.md", "sh")
        for line in text.splitlines()
        if re.search(INSTALL_LINE, line) and (is_own or "[spark]" not in line)
    ]
    assert sum(str(file) in line for line in lines) == 1 + is_own
    home = tmp_path_factory.mktemp("new-user")
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", "\n".join(lines)],
        cwd=home,
        # Python compiles what is used when it is used; pip would compile all files of PySpark. It
        # takes this variable for the value of "compile", so 0 means what its name says.
        env={
            **os.environ,
            "PIP_NO_COMPILE": "0",
        },
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return home / "strandline-env" / "bin" / "python"


@pytest.fixture
def broker(python, tmp_path):
    process, ready = start_broker(tmp_path, python)
    yield ExampleBroker(ready, tmp_path, python)
    stop_broker(process)


def test_the_package_comes_from_the_wheel(broker):
    """The examples below import the installed package, not the checkout's."""
    shown = broker.run_python("import strandline; print(strandline.__file__)")
    assert shown.startswith(str(broker.python.parents[1]))


@pytest.mark.skipif("WHEEL" not in os.environ, reason="make dist builds twice")
def test_another_build_gives_the_same_bytes(wheel, tmp_path):
    """In another directory, at another time: anybody can check what a release was made from."""
    again = built(tmp_path)
    for here in wheel.parent.glob(f"{again.name.partition('-cp')[0]}*"):
        if not here.name.endswith(".json"):
            assert (tmp_path / here.name).read_bytes() == here.read_bytes(), here.name


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_a_new_user_can_run_every_line(page, broker):
    """Each line of the first pages works with nothing but the wheel, outside a checkout."""
    broker.run_page(page, skip=f"spark_session|{INSTALL_LINE}")


@pytest.mark.spark
def test_the_spark_lines_of_the_readme_run(broker, monkeypatch):
    """The README's Spark lines read what its other lines wrote."""
    if not (broker.python.parents[1] / "bin" / "spark-submit").exists():
        pytest.skip("this Python was given no Spark")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", QUICK_JAVA)
    broker.run_page("README.md", skip=f"spark_session|{INSTALL_LINE}|^make|^strandline serve")
    spark = next(text for _, text in blocks("README.md", "python") if "spark_session" in text)
    shown = broker.run_python(spark, timeout_s=500)
    assert "orders.oslo" in shown
    assert "orders.paris" in shown
