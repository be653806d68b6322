"""The systemd unit: systemd itself accepts it, and it runs what the documentation says."""

import configparser
import re
import shutil
import subprocess

import pytest

from tests.kit.doc_examples import ROOT

UNIT = ROOT / "deploy" / "systemd" / "strandline.service"


def test_systemd_accepts_the_unit(tmp_path):
    """With the program where it is here: systemd looks for it."""
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd is not installed")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/strandline/bin/strandline", "/bin/true"))
    done = subprocess.run(
        [verify, "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    about = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert not about, about


def test_the_unit_keeps_the_broker_s_promises():
    """It gives the broker time to hand over, restarts it, and gives it descriptors."""
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str
    unit.read(UNIT)
    service = unit["Service"]
    assert re.fullmatch(r"\S+/strandline serve --config \S+\.yaml", service["ExecStart"])
    assert int(service["TimeoutStopSec"]) >= 30
    assert service["Restart"] == "on-failure"
    assert int(service["LimitNOFILE"]) >= 65536
