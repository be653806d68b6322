"""Which form of the hot functions is used."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ASK = "from strandline import speedups; print(speedups.IS_COMPILED, speedups.ack_lines.__module__)"
HEADER = Path(sysconfig.get_path("include"), "Python.h")
IS_BUILT = importlib.util.find_spec("strandline.speedups._compiled") is not None


def asked(switch):
    """Whether the compiled functions are used with the switch set so, and where they are from."""
    environment = {**os.environ, "STRANDLINE_PURE_PYTHON": switch}
    command = [sys.executable, "-c", ASK]
    return subprocess.check_output(command, env=environment, text=True).split()


@pytest.mark.skipif(not (shutil.which("cc") and HEADER.exists()), reason="no compiler")
def test_a_compiler_is_used_where_there_is_one():
    """A mistake in the compiled module does not go unnoticed, since it is optional."""
    assert IS_BUILT, "run `make setup` and look at what the compiler says"


@pytest.mark.skipif(not IS_BUILT, reason="installed without a compiler")
def test_built_functions_are_used():
    """Also after a function was added: a module that lacks one would not be used."""
    assert asked("") == ["True", "strandline.speedups._compiled"]


def test_the_switch_keeps_them_out():
    """So that both forms can be tested."""
    assert asked("1") == ["False", "strandline.speedups.pure"]
