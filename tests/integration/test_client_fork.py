"""Forked processes: gRPC works there, or the call raises an error that explains it."""

import subprocess
import sys

import pytest

from strandline.testing import Server

PROGRAM = """
import os, signal, sys
import strandline

if sys.argv[2] != "unused":
    client = strandline.connect(sys.argv[1])
if sys.argv[2] == "closed":
    client.close()
if os.fork() == 0:
    signal.alarm(30)
    try:
        print(strandline.connect(sys.argv[1]).server_info().streams, flush=True)
    except strandline.errors.StrandlineError as error:
        print(error.code, flush=True)
    os._exit(0)
print("child ended with", os.wait()[1])
if sys.argv[2] == "open":
    print(client.server_info().streams)
"""


@pytest.mark.parametrize(
    ("parent", "said"),
    [
        ("unused", ["0", "child ended with 0"]),
        ("closed", ["invalid_request", "child ended with 0"]),
        ("open", ["invalid_request", "child ended with 0", "0"]),
    ],
)
def test_a_forked_process_works_or_says_why_not(parent, said):
    """It hung: the threads of the parent's gRPC are not there, and time limits are theirs."""
    with Server() as url:
        program = [sys.executable, "-c", PROGRAM, url, parent]
        told = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.splitlines() == said
