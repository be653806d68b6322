"""``strandline pipeline run``: mistakes are reported before Spark starts."""

import pytest
from typer.testing import CliRunner

from strandline.cli.app import app


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("kind: [", (), "is not valid YAML: line 1: expected the node content"),
        ("kind: copy\nstream: a\nstream: b\n", (), "'stream' is given twice, again on line 3"),
        ("kind: load\nstorage:\n  region: a\n  region: b\n", (), "'region' is given twice"),
        ("", (), "`kind`"),
        ("- kind: copy\n", (), "must hold keys and values, not a list"),
        ("kind: coppy\nstream: a\ninto: b\ncheckpoint: c\n", (), "coppy"),
        ("kind: copy\nstream: a\ninto: b\n", (), "checkpoint"),
        (None, (), "cannot read"),
        ("kind: copy\nstream: a\ninto: b\ncheckpoint: c\n", ("--conf", "x"), "NAME=VALUE"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, text, arguments, message):
    """Broken YAML, an unknown kind, a missing key or file, a wrong setting: named, with exit 1."""
    file = tmp_path / "pipeline.yaml"
    if text is not None:
        file.write_text(text)
    result = CliRunner().invoke(app, ["pipeline", "run", str(file), *arguments])
    assert result.exit_code == 1
    assert message in result.output
    assert "invalid_config" in result.output
    assert len(result.output.splitlines()) == 1
