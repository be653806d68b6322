"""Examples in other languages, built with their own tools and packages from their registries."""

import re
import shutil
import subprocess

import pytest

BUILD_S = 500
FAULTS = r"error: |COMPILATION ERROR|syntax error|\.go:\d+:"
"""Compilers' messages about the program, as opposed to problems of the network."""


def built(example, tool, tmp_path_factory, *, words):
    """Return a copy of an example whose packages were fetched and which was built.

    Skips the test if the tool is missing, or the packages cannot be fetched.
    """
    program = shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not on the PATH")
    copy = tmp_path_factory.mktemp(example.name) / example.name
    shutil.copytree(example, copy)
    for each in words:
        try:
            done = subprocess.run(
                [program, *each],
                cwd=copy,
                capture_output=True,
                check=False,
                text=True,
                timeout=BUILD_S,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"the example is not built within {BUILD_S} s")
        if done.returncode:
            text = (done.stdout + done.stderr)[-800:]
            if re.search(FAULTS, text):
                pytest.fail(text)
            pytest.skip(f"the example cannot be built, offline perhaps: {text}")
    return copy
