"""Settings from a file, the environment and flags."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.config import BrokerConfig
from strandline.errors import InvalidConfigError
from strandline.process.settings import (
    flat_settings,
    load_settings,
    read_environment,
    read_settings_file,
)
from strandline.process.yaml_file import FILE_BYTES_MAX


@pytest.fixture
def write(tmp_path):
    def write(text):
        file = tmp_path / "strandline.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def test_nothing_given_is_the_defaults():
    """Without file, variables and flags every default holds."""
    assert load_settings(None, {}, {}) == BrokerConfig()


def test_flags_beat_the_environment_and_the_environment_beats_the_file(write):
    """The later source wins key by key, and leaves its neighbours alone."""
    file = write("host: a\nnats: {port: 1, ingest_port: 2, servers: ['nats://x']}\n")
    environ = {"STRANDLINE_NATS__PORT": "11", "STRANDLINE_NATS__INGEST_PORT": "12", "HOME": "/"}
    config = load_settings(file, environ, {"nats": {"port": 21, "ingest_port": None}})
    assert config.host == "a"
    assert (config.nats.port, config.nats.ingest_port) == (21, 12)
    assert config.nats.servers == ["nats://x"]


def test_a_list_in_the_environment_is_split_at_commas():
    """Several NATS servers fit into one variable."""
    environ = {"STRANDLINE_NATS__SERVERS": "nats://a:4222, nats://b:4222"}
    assert load_settings(None, environ, {}).nats.servers == ["nats://a:4222", "nats://b:4222"]


def test_the_default_file_at_the_root_is_the_defaults():
    """strandline.yaml names every key and changes nothing."""
    file = Path(__file__).parents[3] / "strandline.yaml"
    assert load_settings(file, {}, {}) == BrokerConfig()

    def keys(values, prefix=""):
        for key, value in values.items():
            if isinstance(value, dict):
                yield from keys(value, f"{prefix}{key}.")
            else:
                yield prefix + key

    assert set(keys(read_settings_file(file))) == set(flat_settings(BrokerConfig()))


def test_every_key_has_a_variable():
    """Each key can be set from the environment, by its default's text."""
    for key, default in flat_settings(BrokerConfig()).items():
        text = ",".join(default) if isinstance(default, list) else str(default)
        name = "STRANDLINE_" + key.upper().replace(".", "__")
        assert load_settings(None, {name: text}, {}) == BrokerConfig(), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hots: x", "unknown configuration key 'hots'; did you mean 'host'"),
        ("nats: {prot: 1}", "unknown configuration key 'nats.prot'; did you mean 'nats.port'"),
        ("nats: 5", "nats is 5; it must be keys and values"),
        ("flight_port: many", "flight_port is 'many'; it must be a whole number"),
        ("log_level: loud", "log_level"),
        ("- a\n- b", "must hold keys and values, such as"),
        ("host: [", "is not valid YAML: line 1"),
        ("host: a\nhost: b", "'host' is given twice, again on line 2"),
        ("? [a]\n: b", "is not valid YAML"),
        ("host: !!python/object:os.system x", "is not valid YAML"),
        (b"\xff\xfe\x00", "cannot read "),
        ("host: a\0b", "is not valid YAML: character 8: special characters are not allowed"),
        ("[" * 5000, "is not valid YAML"),
        ("x" * (FILE_BYTES_MAX + 1), "settings have at most"),
    ],
)
def test_a_wrong_file_is_rejected_by_name(write, text, message):
    """The error has the file and its fault."""
    file = write(text)
    with pytest.raises(InvalidConfigError, match=message) as caught:
        load_settings(file, {}, {})
    assert str(file) in caught.value.message


def test_a_missing_file_is_rejected(tmp_path):
    """A configuration file that was named must exist."""
    with pytest.raises(InvalidConfigError, match="cannot read"):
        load_settings(tmp_path / "none.yaml", {}, {})


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("STRANDLINE_HOTS", "x", "did you mean 'host'"),
        ("STRANDLINE_NATS__PROT", "1", "did you mean 'nats.port'"),
        ("STRANDLINE_NATS", "1", "nats is a section"),
        ("STRANDLINE_HOST__NAME", "1", "host is not a section"),
        ("STRANDLINE_NATS__PORT", "many", "nats.port is 'many'; it must be a whole number"),
        ("STRANDLINE_", "x", "unknown configuration key"),
    ],
)
def test_a_wrong_variable_is_rejected_by_name(variable, text, message):
    """The error names the variable."""
    with pytest.raises(InvalidConfigError, match=message) as caught:
        read_environment({variable: text})
    assert variable in caught.value.message


def test_variables_of_the_cli_and_of_kubernetes_are_not_settings():
    """Unrelated environment variables do not stop the broker."""
    environ = {
        "STRANDLINE_SERVER": "h:1",
        "STRANDLINE_CONFIG": "f",
        "STRANDLINE_SERVICE_HOST": "10.0.0.1",
        "STRANDLINE_SERVICE_PORT_FLIGHT": "9293",
        "STRANDLINE_PORT": "tcp://10.0.0.1:9293",
        "STRANDLINE_PORT_9293_TCP_ADDR": "10.0.0.1",
    }
    assert read_environment(environ) == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"flight_port": 65_536}, "flight_port is 65536; a port is 0 to 65535"),
        ({"flight_port": -1}, "flight_port is -1"),
        ({"http_port": -2}, "a port is -1 to 65535"),
        ({"http_port": 9293}, "http_port and flight_port are both 9293"),
        ({"host": ""}, "host is empty"),
        ({"data_dir": ""}, "data_dir is empty"),
        ({"limits": {"commit_records": 0}}, "limits.commit_records is 0; it must be at least 1"),
        ({"journal": {"file_bytes": 10**40}}, "is 10{40}; it must be at most"),
        ({"limits": {"record_bytes": 1 << 30}}, r"more than limits.batch_bytes, 1"),
        ({"flihgt_port": 1}, "flags: unknown configuration key 'flihgt_port'"),
    ],
)
def test_impossible_values_are_rejected(values, message):
    """Ranges and contradictions are caught before anything is opened."""
    with pytest.raises(InvalidConfigError, match=message):
        load_settings(None, {}, values)


def test_free_ports_do_not_collide():
    """Any number of listeners may ask for a free port."""
    ports = {"flight_port": 0, "http_port": 0, "nats": {"port": 0, "ingest_port": 0}}
    assert load_settings(None, {}, ports).flight_port == 0


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_settings_or_a_typed_error(tmp_path_factory, content):
    """No bytes in a configuration file raise anything but InvalidConfigError."""
    file = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    file.write_bytes(content)
    with suppress(InvalidConfigError):
        load_settings(file, {}, {})


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["host", "nats", "port", "limits", "record_bytes", "flight_port"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*BrokerConfig.__struct_fields__, "other"]), PLAIN))
def test_any_values_are_settings_or_a_typed_error(values):
    """No nesting or type of values raises anything but InvalidConfigError."""
    with suppress(InvalidConfigError):
        load_settings(None, {}, values)


@given(st.text(alphabet="ABHOST_NATSPRL", max_size=20), st.text(max_size=20))
def test_any_variable_is_a_setting_or_a_typed_error(name, text):
    """No variable raises anything but InvalidConfigError."""
    with suppress(InvalidConfigError):
        load_settings(None, {f"STRANDLINE_{name}": text}, {})
