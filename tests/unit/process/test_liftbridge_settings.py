"""Liftbridge's flags and files as our settings."""

import pytest

from strandline.errors import InvalidConfigError
from strandline.process.liftbridge_settings import (
    duration_ms,
    read_liftbridge_file,
    settings_in_environment,
    translated,
)
from strandline.process.settings import load_settings
from strandline.servers.grpc.address import advertised_host


def settings_of(values):
    """Return the settings that a broker would get."""
    return load_settings(None, {}, translated(values))


def test_keys_may_be_nested_and_dotted_at_once(tmp_path):
    """As the files of Liftbridge's users, and the launcher of gufo_liftbridge, have them."""
    file = tmp_path / "l.yaml"
    file.write_text(
        "listen: 127.0.0.1:9999\ncursors:\n  stream.partitions: 3\n  stream.auto.pause.time: 0\n"
        "streams:\n  retention:\n    max.age: 1h30m\n    max:\n      bytes: 10\n"
    )
    config = settings_of(read_liftbridge_file(file))
    assert (config.grpc.host, config.grpc.port) == ("127.0.0.1", 9999)
    assert config.grpc.cursor_partitions == 3
    assert config.grpc.streams.retention_age_ms == 5_400_000
    assert config.grpc.streams.retention_bytes == 10


def test_without_settings_it_is_what_liftbridge_is():
    """Port 9292, a week of retention, no cursors; but on loopback only."""
    config = settings_of({})
    assert (config.host, config.grpc.port, config.grpc.cursor_partitions) == ("127.0.0.1", 9292, 0)
    assert config.grpc.streams.retention_age_ms == 7 * 24 * 3_600_000


def test_every_setting_that_has_a_counterpart_reaches_it():
    """Names, levels, lists, flags and durations."""
    config = settings_of(
        {
            "host": "10.0.0.1",
            "port": 1,
            "data.dir": "d",
            "logging.level": "warn",
            "nats.servers": ["nats://a", "nats://b"],
            "streams.retention.max.messages": 5,
            "streams.cleaner.interval": "2s",
            "streams.segment.max.bytes": 1 << 20,
            "streams.segment.max.age": "1m",
            "streams.compact.enabled": True,
            "streams.auto.pause.time": "250ms",
            "streams.auto.pause.disable.if.subscribers": True,
            "streams.concurrency.control": "true",
            "clustering.namespace": "n",
            "clustering.min.insync.replicas": 1,
            "clustering.replication.max.bytes": 4096,
            "activity.stream.enabled": True,
            "groups.consumer.timeout": "20s",
            "groups.coordinator.timeout": "30s",
            "telemetry.enabled": True,
            "clustering.raft.snapshot.retain": 2,
        }
    )
    grpc, streams = config.grpc, config.grpc.streams
    assert (grpc.host, grpc.advertised_host, grpc.port) == ("10.0.0.1", "10.0.0.1", 1)
    assert config.host == "127.0.0.1", "the other listeners stay on this machine"
    assert (config.data_dir, config.log_level) == ("d", "warning")
    assert config.nats.servers == ["nats://a", "nats://b"]
    assert (streams.retention_records, config.cleaner_interval_ms) == (5, 2000)
    assert (streams.segment_bytes, streams.segment_age_ms) == (1 << 20, 60_000)
    assert (streams.compact, streams.auto_pause_ms, streams.auto_pause_if_read) == (
        True,
        250,
        False,
    )
    assert (streams.optimistic_concurrency, grpc.namespace, streams.min_isr) == (True, "n", 1)
    assert (config.limits.record_bytes, grpc.activity) == (4096, True)
    assert (grpc.consumer_timeout_ms, grpc.coordinator_timeout_ms) == (20_000, 30_000)


@pytest.mark.parametrize(
    ("values", "bound", "told"),
    [
        ({}, ("127.0.0.1", 9292), ("127.0.0.1", 9292)),
        ({"port": 7}, ("127.0.0.1", 7), ("127.0.0.1", 7)),
        ({"host": "h", "port": 7}, ("h", 7), ("h", 7)),
        ({"listen": "0.0.0.0:5"}, ("0.0.0.0", 5), ("localhost", 5)),
        ({"listen": "0.0.0.0:5", "port": 7}, ("0.0.0.0", 5), ("localhost", 5)),
        ({"listen": "0.0.0.0:5", "host": "h", "port": 7}, ("0.0.0.0", 5), ("h", 7)),
        ({"listen": "[::1]:5", "host": "h"}, ("::1", 5), ("h", 9292)),
    ],
)
def test_what_is_bound_and_what_clients_are_told(values, bound, told):
    """As in Liftbridge, ``listen`` is bound, ``host`` and ``port`` are advertised, or else both."""
    config = settings_of(values)
    assert (config.grpc.host or config.host, config.grpc.port) == bound
    assert (advertised_host(config), config.grpc.advertised_port or config.grpc.port) == told


def test_keys_are_read_in_any_case(tmp_path):
    """Keys are read in any case, as in Liftbridge."""
    file = tmp_path / "l.yaml"
    file.write_text("Listen: 127.0.0.1:9999\nSTREAMS:\n  Retention.Max.Bytes: 10\n")
    config = settings_of(read_liftbridge_file(file))
    assert (config.grpc.port, config.grpc.streams.retention_bytes) == (9999, 10)


def test_variables_make_settings():
    """Underscores stand for dots; unknown ones are named, Kubernetes' own are ignored."""
    found, unknown = settings_in_environment(
        {
            "LIFTBRIDGE_DATA_DIR": "d",
            "LIFTBRIDGE_NATS.SERVERS": "nats://a",
            "LIFTBRIDGE_CLUSTERING_MIN_INSYNC_REPLICAS": "2",
            "LIFTBRIDGE_ENCRYPTION_KEY": "secret",
            "LIFTBRIDGE_PORT": "tcp://10.0.0.1:9292",
            "LIFTBRIDGE_SERVICE_HOST": "10.0.0.1",
            "HOME": "/",
        }
    )
    assert found == {
        "data.dir": "d",
        "nats.servers": "nats://a",
        "clustering.min.insync.replicas": "2",
    }
    assert unknown == ["LIFTBRIDGE_PORT", "LIFTBRIDGE_SERVICE_HOST"]


def test_small_segments_are_as_small_as_ours_can_be():
    """A file that asks for less starts all the same, as a client that does is answered."""
    config = settings_of({"streams.segment.max.bytes": 1024})
    assert config.grpc.streams.segment_bytes == 64 << 10


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nats.embedded": True, "nats.servers": "nats://a"}, "contradict each other"),
        ({"lisen": "x"}, 'Unknown configuration setting "lisen"'),
        ({"listen": "nowhere"}, "not host:port"),
        ({"clustering.raft.bootstrap.peers": ["a"]}, "docs/cluster.md"),
        ({"nats.embedded.config": "f"}, "nats-server"),
        ({"nats.user": "u"}, "nats.servers"),
        ({"tls.client.auth.enabled": True}, "go together"),
        ({"tls.client.authz.enabled": True}, "policy files are not read"),
        ({"groups.consumer.timeout": "15"}, "groups.consumer.timeout: '15' is not a duration"),
        ({"port": "x"}, "port: 'x' is not a whole number"),
        (
            {"streams.compact.enabled": "maybe"},
            "streams.compact.enabled: must be true or false, got 'maybe'",
        ),
        ({"nats.embedded": "x"}, "nats.embedded: must be true or false, got 'x'"),
        ({"tls.client.auth.enabled": 2}, "tls.client.auth.enabled: must be true or false, got 2"),
        ({"logging.level": "loud"}, "is not a log level"),
    ],
)
def test_what_cannot_be_honoured_is_rejected(values, message):
    """The error has the key and an alternative."""
    with pytest.raises(InvalidConfigError) as caught:
        settings_of(values)
    assert message in caught.value.message


def test_what_is_off_need_not_be_there():
    """Defaults of features that we lack are accepted."""
    settings_of({"tls.client.authz.enabled": False})


def test_streams_are_encrypted_by_default_if_the_file_says_so():
    """Whether there is a key is found out when one is created."""
    assert settings_of({"streams.encryption": True}).grpc.streams.encryption
    assert not settings_of({"streams.encryption": False}).grpc.streams.encryption


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [(0, 0), ("15s", 15_000), ("168h", 604_800_000), ("1h30m", 5_400_000), ("1.5s", 1500)],
)
def test_durations_are_written_as_in_go(text, milliseconds):
    """Numbers with units, one after the other; a bare 0."""
    assert duration_ms(text) == milliseconds
