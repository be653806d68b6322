"""``strandline encryption`` against a real broker."""

import json

import pytest
from typer.testing import CliRunner

from strandline.cli.app import app
from strandline.encryption.master_keys import new_key_text, parse_master_keys
from strandline.testing import Server


def run(*words, code=0):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def file(tmp_path):
    """A file of master keys, one so far."""
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text(new_key_text())
    return path


@pytest.fixture
def url(file):
    with Server(encryption={"key_file": str(file)}) as url:
        yield url


def keys_of(text):
    """(stream, data key, master key) of each line of JSON."""
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["stream"], line["data_key"], line["master_key"]) for line in lines]


def test_a_new_key_is_one(tmp_path):
    """Of the right form, another each time, and no broker is asked."""
    texts = [run("encryption", "new-key") for _ in range(2)]
    texts.append(json.loads(run("encryption", "new-key", "-o", "json"))["key"])
    assert len({parse_master_keys(text, "it")[0].id for text in texts}) == 3


def test_keys_are_rotated_while_records_come(url, file):
    """Master keys of all streams or one, data keys of one; the table lists the wrapping keys."""
    for name in ("a", "b"):
        run("stream", "create", name, "--encryption", "--server", url)
    run("stream", "create", "plain", "--server", url)
    run("publish", "a", "before", "--server", url)
    old = file.read_text()
    new = new_key_text()
    file.write_text(f"{new}\n{old}\n")
    old_id, new_id = (parse_master_keys(text, "it")[0].id for text in (old, new))
    listed = run("encryption", "list", "--server", url, "-o", "json")
    assert keys_of(listed) == [("a", 1, old_id), ("b", 1, old_id)]
    done = run("encryption", "rotate", "a", "--data-key", "--server", url, "-o", "json")
    assert keys_of(done) == [("a", 1, new_id), ("a", 2, new_id)]
    run("publish", "a", "after", "--server", url)
    run("encryption", "rotate", "--server", url)
    shown = run("encryption", "list", "--server", url)
    assert new_id in shown
    assert old_id not in shown
    file.write_text(new)
    found = run("read", "a", "--to", "2", "--server", url, "-o", "json").splitlines()
    assert [json.loads(line)["value"] for line in found] == ["before", "after"]


def test_what_is_not_encrypted_is_not_rotated(url):
    """The error has the reason."""
    run("stream", "create", "plain", "--server", url)
    assert "is not encrypted" in run("encryption", "rotate", "plain", "--server", url, code=1)
    assert "no stream 'x'" in run("encryption", "rotate", "x", "--server", url, code=1)
    assert run("encryption", "rotate", "--server", url, "-o", "json") == ""
