"""Every command against a real broker."""

import contextlib
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.cli.completion import group_names, stream_names
from strandline.errors import InvalidSubjectError
from strandline.process.ports import free_ports
from strandline.testing import Server
from strandline.types import PartitionName

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def url():
    with Server() as url:
        yield url


@pytest.fixture
def run(url):
    def run(*arguments, stdin=None, code=0):
        result = CliRunner().invoke(app, [*arguments, "--server", url], input=stdin)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def stream(run):
    name = f"stream-{next(NUMBERS)}"
    run("stream", "create", name, "--subject", f"{name}.>", "--partitions", "2")
    yield name
    run("stream", "delete", name, "--yes")


@pytest.mark.parametrize(
    "command", [["cluster", "status"], ["stream", "list"], ["encryption", "keys"]]
)
def test_of_several_addresses_one_that_answers_is_used(url, command):
    """Every command takes a list, since a broker of a cluster may be down."""
    [closed] = free_ports(1)
    server = f"127.0.0.1:{closed},{url}"
    result = CliRunner().invoke(app, [*command, "--server", server])
    assert "is not an address" not in result.output
    assert str(closed) not in result.output


def on_a_terminal(*arguments):
    """Run a command with only standard error on a terminal; return its output."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "strandline.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, env=environment) as process:
        os.close(its)
        # Beside the terminal: a command waits until what it shows there is read.
        with ThreadPoolExecutor(1) as reader:
            rest = reader.submit(process.stdout.read)
            shown = b""
            with contextlib.suppress(OSError):  # so the end of a terminal is told
                while piece := os.read(ours, 65_536):
                    shown += piece
            out = rest.result()
    os.close(ours)
    assert process.returncode == 0, shown
    return out.decode(), shown.decode()


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_an_empty_subject_is_rejected(run, url):
    """An empty subject is an error, unlike a missing one."""
    said = run("stream", "create", "nothing", "--subject", "", code=1).stderr
    assert "the subject is empty" in said
    with strandline.connect(url) as client:
        with pytest.raises(InvalidSubjectError, match="the subject is empty"):
            client.create_stream("nothing", subject="")
        assert "nothing" not in [each.name for each in client.list_streams()]
    assert "records 'named' in" in run("stream", "create", "named").stdout


def test_a_stream_is_created_shown_and_deleted(run):
    """Flags become the stream's settings; a deleted stream is gone."""
    run(
        *("stream", "create", "s1", "--subject", "s1.*", "--partitions", "3", "--no-pub-ack"),
        *("--retention-age", "7d", "--retention-bytes", "1GiB", "--compact"),
    )
    [info] = lines(run("stream", "info", "s1", "--output", "json"))
    config = info["config"]
    assert (config["subject"], config["partitions"], config["pub_ack"]) == ("s1.*", 3, False)
    assert (config["retention_age_ms"], config["retention_bytes"]) == (604_800_000, 1 << 30)
    assert config["compact"] is True
    assert "s1.*" in run("stream", "list").stdout
    shown = run("stream", "info", "s1").stdout
    assert re.search(r"retention_age_ms +7d\n", shown)
    assert re.search(r"retention_bytes +1GiB\n", shown)
    assert lines(run("stream", "delete", "s1", "-o", "json")) == [{"deleted": "s1"}]
    assert "(unknown_stream)" in run("stream", "info", "s1", code=1).stderr


def test_two_streams_cannot_have_one_name(run, stream):
    """The error is the broker's, with its code."""
    assert "(stream_exists)" in run("stream", "create", stream, code=1).stderr


def test_one_record_goes_in_and_comes_out(run, stream):
    """A value with key, headers and subject is read back as it was given."""
    [placed] = lines(
        run(
            *("publish", stream, "one espresso", "--subject", f"{stream}.paris", "--key", "t7"),
            *("--header", "lang=en", "--header", "lang=fr", "--output", "json"),
        )
    )
    [record] = lines(run("read", stream, "--output", "json"))
    assert (record["partition"], record["offset"]) == (placed["partition"], placed["offset"])
    assert (record["value"], record["key"]) == ("one espresso", "t7")
    assert record["headers"] == [["lang", "en"], ["lang", "fr"]]
    assert record["subject"] == f"{stream}.paris"
    assert "one espresso" in run("read", stream).stdout


def test_a_subject_that_the_stream_does_not_store_is_rejected(run, stream):
    """It would not reach the stream through NATS either; the message has valid subjects."""
    refused = run("publish", stream, "x", "--subject", "other", code=1)
    assert f"'other' does not match '{stream}.>' of stream '{stream}'" in refused.stderr
    assert lines(run("read", stream, "-o", "json")) == []


def test_streams_that_answer_the_same_publishes_are_named(run, stream):
    """At creation and later; streams without acks are not listed."""
    other, silent = f"{stream}-other", f"{stream}-silent"
    try:
        run("stream", "create", silent, "--subject", f"{stream}.>", "--no-pub-ack")
        assert "also acknowledged by" not in run("stream", "info", stream).stdout
        created = run("stream", "create", other, "--subject", f"{stream}.paris")
        assert f"also acknowledged by {stream};" in created.stdout
        assert f"also acknowledged by {other};" in run("stream", "info", stream).stdout
        [info] = lines(run("stream", "info", other, "-o", "json"))
        assert info["also_answering"] == [stream]
    finally:
        for name in (other, silent):
            run("stream", "delete", name, "--yes")


def test_a_repeat_with_a_message_id_is_stored_once(run, stream):
    """The second publish says that the record was stored earlier."""
    command = ("publish", stream, "x", "--subject", f"{stream}.a", "--message-id", "1")
    assert "stored earlier" not in run(*command).stdout
    assert "stored earlier" in run(*command).stdout
    assert len(lines(run("read", stream, "-o", "json"))) == 1


def test_lines_become_records(run, stream, tmp_path):
    """Standard input and files are split into records; only line feeds are lost."""
    file = tmp_path / "lines.txt"
    file.write_bytes(b"a\r\r\nb\n\nlast")
    run("publish", stream, "--lines", str(file), "--subject", f"{stream}.x")
    result = run("publish", stream, "--subject", f"{stream}.x", "-o", "json", stdin="c\nd\n")
    assert lines(result) == [{"stream": stream, "records": 2}]
    values = [record["value"] for record in lines(run("read", stream, "-o", "json"))]
    assert values == ["a\r\r", "b", "", "last", "c", "d"]


def test_values_of_one_line_survive_a_copy(run, stream):
    """``publish`` stores again what ``read --format raw`` prints, whatever the bytes."""
    values = b"\r\n\n\xff\x00\r\r\n \n"
    run("publish", stream, "--subject", f"{stream}.a", "--partition", "0", stdin=values)
    raw = run("read", stream, "--format", "raw").stdout_bytes
    assert raw == values
    run("publish", stream, "--subject", f"{stream}.a", "--partition", "1", stdin=raw)
    assert run("read", stream, "--partition", "1", "--format", "raw").stdout_bytes == values


@pytest.mark.parametrize("where", ["stdin", "file"])
def test_a_line_that_is_rejected_is_named(run, stream, tmp_path, where):
    """With its number and how many records were stored, which a reader finds."""
    text = b"one\n" + b"x" * 2_000_000 + b"\nthree\n"
    (tmp_path / "lines").write_bytes(text)
    source = {"stdin": text} if where == "stdin" else {}
    flags = () if where == "stdin" else ("--lines", str(tmp_path / "lines"))
    said = run("publish", stream, "--subject", f"{stream}.a", *flags, code=1, **source).stderr
    assert "line 2: record of 2000000 bytes" in said
    found = lines(run("read", stream, "-o", "json"))
    assert f"records stored: {len(found)} (record_too_large)" in said
    assert [record["value"] for record in found] == ["one"]


def test_lines_that_the_broker_rejects_are_named(run, stream):
    """Late and immediate rejections name the line, and reading stops there."""
    text = "".join(f"{number}\n" for number in range(5000))
    wrong = run("publish", stream, "--subject", f"{stream}..a", code=1, stdin=text).stderr
    assert "line 1: " in wrong
    assert "records stored: 0" in wrong
    assert lines(run("read", stream, "-o", "json")) == []


def test_the_line_that_does_not_fit_the_schema_is_named(run, tmp_path):
    """Not the first one of its batch, which is refused as a whole; and the message says why."""
    run("stream", "create", "checked", "--schema-validation")
    (tmp_path / "columns").write_text("id INT")
    run("stream", "schema", "set", "checked", str(tmp_path / "columns"))
    values = [f'{{"id": {number}}}' for number in range(7)]
    text = "\n".join([*values, '{"id": "x"}', *values, '{"id": "y"}'])
    wrong = run("publish", "checked", code=1, stdin=text).stderr
    assert "line 8: does not fit version 1 of the schema of stream 'checked': column 'id'" in wrong
    wrong = run("publish", "checked", "", "--key", "a", code=1).stderr
    assert "the value is empty; a record that deletes its key has none at all" in wrong
    run("publish", "checked", "--tombstone", "--key", "a")
    [record] = lines(run("read", "checked", "-o", "json"))
    assert (record["key"], record["value"]) == ("a", None)
    run("publish", "checked", "--tombstone", code=2)
    run("publish", "checked", "1", "--tombstone", "--key", "a", code=2)
    run("stream", "delete", "checked", "--yes")


def run_with_closed(stream, url, *arguments):
    """Run a command without one of its standard streams."""
    shell = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}[stream]
    command = [sys.executable, "-m", "strandline.cli", *arguments, "--server", url]
    script = f'exec "$@" {shell}'
    return subprocess.run(
        ["sh", "-c", script, "sh", *command], check=False, capture_output=True, text=True
    )


def test_a_closed_standard_stream_is_an_error_of_one_line(url, stream):
    """No traceback, and no success where the result went nowhere."""
    done = run_with_closed("stdin", url, "publish", stream, "--subject", f"{stream}.a")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: cannot read standard input: Bad file descriptor; give VALUE" in done.stderr
    done = run_with_closed("stdout", url, "stream", "list")
    assert done.returncode == 1
    assert done.stderr == "error: cannot use standard output: Bad file descriptor (unavailable)\n"
    done = run_with_closed("stderr", url, "stream", "list")
    assert (done.returncode, stream in done.stdout) == (0, True)
    assert run_with_closed("stderr", url, "read", "nothing").returncode == 1


def test_a_read_into_a_file_has_all_records(url, run, stream, tmp_path):
    """Its progress is shown at the terminal, and takes nothing of the output with it."""
    text = "".join(f"{number}\n" for number in range(300))
    run("publish", stream, "--subject", f"{stream}.a", "--partition", "0", stdin=text)
    for flags, count in ((("--format", "raw"), 300), (("-o", "json"), 300), ((), 300)):
        out, shown = on_a_terminal("read", stream, *flags, "--server", url)
        assert len(out.splitlines()) == count
        assert "reading" in shown
    assert on_a_terminal("read", stream, "--format", "raw", "--server", url)[0] == text


def test_a_file_is_one_record(run, stream, tmp_path):
    """Bytes that are no text survive, raw and as base64."""
    file = tmp_path / "value.bin"
    file.write_bytes(b"\xff\x00\n\xfe")
    run("publish", stream, "--file", str(file), "--subject", f"{stream}.x")
    [record] = lines(run("read", stream, "-o", "json"))
    assert record["value_base64"] == "/wAK/g=="
    assert run("read", stream, "--format", "raw").stdout_bytes == b"\xff\x00\n\xfe\n"


def test_places_limits_columns_and_filters(run, stream):
    """The range, count, columns and subject of a read are applied."""
    text = "".join(f"{number}\n" for number in range(20))
    run("publish", stream, "--subject", f"{stream}.a", "--partition", "0", stdin=text)
    run("publish", stream, "other", "--subject", f"{stream}.b", "--partition", "0")

    def values(*arguments):
        return [record["value"] for record in lines(run("read", stream, *arguments, "-o", "json"))]

    in_first = ("--partition", "0")
    assert values(*in_first, "--from", "5", "--to", "8") == ["5", "6", "7"]
    assert values(*in_first, "--from", "latest") == []
    assert values("--limit", "2") == ["0", "1"]
    assert values("--subject", f"{stream}.b") == ["other"]
    assert len(values("--from", "-1h")) == 21
    assert values("--to", "2020-01-01") == []
    [record] = lines(run("read", stream, "-n", "1", "--columns", "value,offset", "-o", "json"))
    assert list(record) == ["value", "offset"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--from", "77", "--partition", "0"), "offset_out_of_range"),
        (("--partition", "9"), "unknown_partition"),
        (("--columns", "colour"), "invalid_request"),
        (("--subject", "a b"), "invalid_subject"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_read_that_cannot_be_says_why(run, stream, arguments, code):
    """Each impossible read is one line with the right code."""
    result = run("read", stream, *arguments, "--output", "json", code=1)
    assert json.loads(result.stderr)["error"] == code


def test_truncating_moves_the_start(run, stream):
    """Records below the offset are deleted; one beyond the end is rejected."""
    run("publish", stream, "--subject", f"{stream}.a", "--partition", "1", stdin="a\nb\nc\n")
    [told] = lines(
        run("stream", "delete-records", stream, "--partition", "1", "--before", "2", "-o", "json")
    )
    assert told == {"stream": stream, "partition": 1, "log_start_offset": 2}
    values = [record["value"] for record in lines(run("read", stream, "-o", "json"))]
    assert values == ["c"]
    refused = run("stream", "delete-records", stream, "--before", "99", code=1)
    assert "(offset_out_of_range)" in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("append", "--records", "500", "--size", "100"),
        ("read", "--records", "500", "--size", "100"),
        ("latency", "--records", "20", "--acks", "memory"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_benchmarks_state_their_settings_and_clean_up(run, arguments):
    """A result has its settings, and the benchmark's stream is deleted."""
    [result] = lines(run("bench", *arguments, "--output", "json"))
    assert result["bench"] == arguments[0]
    assert result["records"] in (20, 500)
    assert "bench-" not in run("stream", "list").stdout
    assert f"{arguments[0]}\n" in run("bench", *arguments).stdout


def test_following_prints_what_comes(url, stream):
    """A follower prints records as they are published, until Ctrl-C."""
    follower = subprocess.Popen(
        [sys.executable, "-m", "strandline.cli", "read", stream, "--follow", "--format", "raw"],
        env={**os.environ, "STRANDLINE_SERVER": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with strandline.connect(url) as client:
        for value in (b"first", b"second"):
            client.append(stream, value, subject=f"{stream}.a")
            assert follower.stdout.readline() == value + b"\n"
    follower.send_signal(signal.SIGINT)
    assert follower.wait(20) != 0
    assert b"Traceback" not in follower.stderr.read()
    follower.stdout.close()
    follower.stderr.close()


def test_a_reader_that_leaves_ends_the_command(url, stream):
    """`strandline read | head` ends quietly."""
    with strandline.connect(url) as client, client.producer(stream) as producer:
        for number in range(20_000):
            producer.append(b"%d" % number, subject=f"{stream}.a")
    done = subprocess.run(
        f"{sys.executable} -m strandline.cli read {stream} | head -n 1",
        shell=True,
        env={**os.environ, "STRANDLINE_SERVER": url},
        capture_output=True,
        timeout=50,
        check=True,
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""


def test_long_work_is_watched_on_a_terminal(url, run, stream):
    """A bar counts on standard error, and standard output has the results alone."""
    run("publish", stream, stdin="a\nb\nc\n")
    out, shown = on_a_terminal("read", stream, "--format", "raw", "--server", url)
    assert sorted(out.split()) == ["a", "b", "c"]
    assert "reading" in shown
    assert "3/?" in shown
    out, shown = on_a_terminal("bench", "append", "--records", "500", "--output", "json", "-s", url)
    assert json.loads(out)["records"] == 500
    assert "━" in shown
    out, shown = on_a_terminal("inspect", str(url.data_dir), "--output", "json")
    assert all(json.loads(line)["file"] for line in out.splitlines())
    assert "reading" in shown
    assert "━" in shown


def test_what_is_seen_already_needs_no_bar(url, run, stream):
    """A following read, or one not on a terminal, prints no progress."""
    run("publish", stream, "x")
    assert run("read", stream).stderr == ""


@pytest.mark.parametrize("output", ["text", "json"])
def test_partitions_without_a_leader_are_named(run, stream, monkeypatch, output):
    """After what is known of the others; scripts see it by the exit code."""
    described = "strandline.cli.stream._described"
    monkeypatch.setattr(described, lambda client, name: (client.stream_info(name), [0, 3]))
    done = run("stream", "info", stream, "-o", output, code=1)
    assert stream in done.stdout
    assert f"partitions 0, 3 of stream '{stream}' have no leader" in done.stderr


def test_limits_of_a_principal_are_shown(run):
    """A limit that is not set is a dash."""
    run("quota", "set", "ann", "--connections", "3", "--publish", "2MiB")
    run("quota", "set", "bob", "--requests", "7")
    rows = [line.split() for line in run("quota", "list").stdout.splitlines()]
    assert ["ann", "2MiB", "-", "-", "3"] in rows
    assert ["bob", "-", "-", "7", "-"] in rows
    for name in ("ann", "bob"):
        run("quota", "remove", name)


def test_versions_of_a_schema_are_listed(run, stream, tmp_path):
    """Or how to set the first one."""
    assert "no schema yet" in run("stream", "schema", "list", stream).stdout
    assert run("stream", "schema", "list", stream, "-o", "json").stdout == ""
    file = tmp_path / "columns"
    for columns in ("id BIGINT", "id BIGINT, name STRING"):
        file.write_text(columns)
        run("stream", "schema", "set", stream, str(file))
    _, *rows = run("stream", "schema", "list", stream).stdout.splitlines()
    assert [row.split()[:3] for row in rows] == [["1", "json", "1"], ["2", "json", "2"]]
    title, _, *columns = run("stream", "schema", "show", stream).stdout.splitlines()
    assert title == f"schema of {stream}, version 2, json values"
    assert [row.split() for row in columns] == [
        ["1", "id", "bigint", "yes"],
        ["2", "name", "string", "yes"],
    ]
    assert "version 1," in run("stream", "schema", "show", stream, "--version", "1").stdout
    run("stream", "schema", "delete", stream, "--yes")
    limited = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 7}}}
    file.write_text(json.dumps(limited))
    run("stream", "schema", "set", stream, str(file))
    _, _, shown = run("stream", "schema", "show", stream).stdout.partition("\n\n")
    assert json.loads(shown) == limited, "what a publisher has to keep to"
    run("stream", "schema", "delete", stream, "--yes")


def test_the_lag_of_a_group_is_what_its_next_member_reads(url, run, stream):
    """Not what was deleted; and all, if the stream was created again and is shorter: it says so."""
    group, last = f"group-of-{stream}", r"\* beyond the end of the log"

    def rows():
        shown = run("group", "info", group).stdout
        found = [line.split() for line in shown.splitlines() if line.startswith(stream)]
        assert bool(re.search(last, shown)) == any("*" in row[2] for row in found)
        return [row[1:4] for row in found]

    with strandline.connect(url) as client:
        for number in range(10):
            client.append(stream, b"x", partition=number % 2)
        client.groups.commit(group, {PartitionName(stream, 0): 1, PartitionName(stream, 1): 5})
        assert rows() == [["0", "1", "4"], ["1", "5", "0"]]
        client.delete_records(stream, 3, partition=0)
        assert rows() == [["0", "1", "2"], ["1", "5", "0"]]
        client.delete_stream(stream)
        assert rows() == [["0", "1", "-"], ["1", "5", "-"]]
        client.create_stream(stream, partitions=2)
        for number in range(4):
            client.append(stream, b"y", partition=number % 2)
        assert rows() == [["0", "1", "1"], ["1", "5*", "2"]]
        document = json.loads(run("group", "info", group, "--output", "json").stdout)
        assert document["positions"] == {stream: {"0": 1, "1": 5}}
        assert document["progress"] == [
            {"stream": stream, "partition": number, "offset": offset, "lag": lag, "member": ""}
            | {"is_beyond": number == 1}
            for number, offset, lag in ((0, 1, 1), (1, 5, 2))
        ]
        with client.consumer(group, [stream]) as consumer:
            found = consumer.poll(30)
            while sum(each.records.num_rows for each in found) < 3:
                found += consumer.poll(30)
            assert sum(each.records.num_rows for each in found) == 3
            assert consumer.lag() == {PartitionName(stream, number): 0 for number in (0, 1)}
            consumer.commit()
        assert rows() == [["0", "2", "0"], ["1", "2", "0"]]
    run("group", "delete", group, "--yes")


def test_names_are_completed(url, run, stream):
    """Streams and groups by their first letters; nothing without a broker, or where none fits."""
    run("group", "reset", f"group-of-{stream}", stream, "--to", "latest")
    context = SimpleNamespace(params={"server": url})
    assert stream_names(context, stream) == [stream]
    assert group_names(context, f"group-of-{stream}") == [f"group-of-{stream}"]
    for complete in (stream_names, group_names):
        assert complete(context, "no-such") == []
        assert complete(SimpleNamespace(params={"server": "127.0.0.1:9"}), "") == []
    run("group", "delete", f"group-of-{stream}", "--yes")


SPOKEN = """
    stream create spoken --subject spoken.> --partitions 2 | publish spoken one --partition 0
    publish spoken two | stream list | stream info spoken | read spoken | read spoken --format raw
    group reset g spoken --to earliest | group list | group info g | group delete g --yes
    stream delete-records spoken --before 1 --partition 0
    acl grant ann read stream spoken | acl list | acl revoke ann read stream spoken
    token create ann | token list | quota set ann --connections 3 | quota list | quota remove ann
    bench append --records 200 | bench read --records 200 | bench latency --records 20
    encryption list | stream delete spoken --yes
"""


def test_every_command_speaks_json(run):
    """With ``--output json`` every line on standard output is a document."""
    for command in re.split(r"[|\n]", SPOKEN.strip()):
        found = lines(run(*command.split(), "--output", "json"))
        assert all(isinstance(document, dict) for document in found), command
        assert found or command.split()[-1] == "list", command


def test_every_command_says_something_to_people(run):
    """What it did, or the head of a list at least."""
    for command in re.split(r"[|\n]", SPOKEN.replace("spoken", "written").strip()):
        said = run(*command.split()).stdout.strip()
        assert said, command
        assert not said.startswith(("{", "[")), command
