"""Fetches jars with Maven, once, into `benchmarks/.build`, from wherever Maven is configured to.

Rules: a folder appears only when all of its jars are there; what cannot be had raises
`UnavailableError`, whose text says how to get it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.loadgen.build import BUILD_DIR
from benchmarks.peers.process import UnavailableError, find_program

HOW_TO_GET: Final = "install Maven (Debian: `apt-get install maven`)"
Artifact = tuple[str, str, str]
"""Group, artifact and version."""


NOTHING_MORE: Final = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


def _pom(artifacts: Sequence[Artifact], *, alone: bool) -> str:
    entries = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{NOTHING_MORE if alone else ''}</dependency>"
        for group, artifact, version in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>bench</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{entries}</dependencies></project>\n"
    )


def fetch(name: str, artifacts: Sequence[Artifact], *, alone: bool = False) -> Path:
    """The folder with these artifacts; fetches them the first time.

    Args:
        name: of the folder.
        artifacts: what to fetch.
        alone: leave out what they depend on.

    Raises:
        UnavailableError: there is no Maven, or it cannot reach a repository.
    """
    libs = BUILD_DIR / name / "libs"
    if libs.is_dir():
        return libs
    maven = find_program("mvn", HOW_TO_GET)
    libs.parent.mkdir(parents=True, exist_ok=True)
    (libs.parent / "pom.xml").write_text(_pom(artifacts, alone=alone))
    part = libs.with_name("libs.part")
    shutil.rmtree(part, ignore_errors=True)
    words = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
    done = subprocess.run(
        [*words, "-DincludeScope=runtime"],
        cwd=libs.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UnavailableError(f"Maven could not fetch {name}: {done.stdout[-800:].strip()}")
    part.rename(libs)
    return libs
