"""Where settings come from, which source wins, and what a mistake in each of them says."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from braidmq.base.config import BY_KEY, OTHER_VARIABLES, SETTINGS, Config, Listen, Origin, load_config
from braidmq.base.errors import BraidError

SOURCES = ("file", "environment", "flag")
SAMPLES = {
    "data_dir": ("/a", "/b", "/c"),
    "listen": ("flymq://127.0.0.1:1", "flymq://127.0.0.1:2", "flymq://127.0.0.1:3"),
    "durability": ("none", "os", "fsync"),
    "ready_file": ("/a", "/b", "/c"),
    "node_id": ("a", "b", "c"),
    "segment_bytes": ("1MiB", "2MiB", "3MiB"),
    "segment_age_s": ("1h", "2h", "3h"),
    "retention_bytes": ("1GB", "2GB", "0"),
    "retention_age_s": ("1d", "2d", "0"),
    "retention_interval_s": ("1s", "2s", "3s"),
    "checkpoint_interval_s": ("1s", "2s", "3s"),
    "auto_create_topics": ("true", "false", "true"),
    "default_partitions": ("1", "2", "4"),
    "max_topics": ("1", "2", "3"),
    "max_connections": ("1", "2", "3"),
    "idle_timeout_s": ("1s", "2s", "0"),
    "tls_cert_file": ("/a", "/b", "/c"),
    "tls_key_file": ("/a", "/b", "/c"),
    "tls_ca_file": ("/a", "/b", "/c"),
    "tls_identity": ("none", "san-dns", "san-uri"),
    "auth_enabled": ("true", "false", "true"),
    "auth_allow_anonymous": ("true", "false", "true"),
    "auth_default_public": ("true", "false", "true"),
    "auth_admin_username": ("a", "b", "c"),
    "auth_admin_password_file": ("/a", "/b", "/c"),
    "audit_enabled": ("true", "false", "true"),
    "audit_retention_days": ("1", "2", "3"),
    "audit_retention_bytes": ("1GB", "2GB", "3GB"),
    "quota_bytes_per_s": ("1MB", "2MB", "0"),
    "quota_requests_per_s": ("1", "2", "0"),
    "transaction_timeout_s": ("1s", "2s", "3s"),
    "stage_timeout_s": ("1s", "2s", "3s"),
    "delay_max_s": ("1h", "2h", "3h"),
    "ttl_s": ("1h", "2h", "3h"),
    "dlq_attempts": ("1", "2", "5"),
    "dlq_retry_s": ("100ms", "2s", "3s"),
    "schema_strict": ("true", "false", "true"),
    "encryption_enabled": ("true", "false", "true"),
    "encryption_key_file": ("/a", "/b", "/c"),
    "blipmq_api_keys": ("a=1", "b=2", "c=3"),
    "blipmq_payload_bytes_max": ("1KiB", "2KiB", "3KiB"),
    "blipmq_subscriber_capacity": ("1", "2", "3"),
    "blipmq_overflow": ("drop_new", "block", "drop_oldest"),
    "blipmq_block_timeout_ms": ("1", "2ms", "3s"),
    "blipmq_max_inflight": ("1", "2", "3"),
    "blipmq_ack_timeout_ms": ("1", "2ms", "3s"),
    "blipmq_max_attempts": ("1", "2", "3"),
    "blipmq_durable_capacity": ("1", "2", "3"),
    "blipmq_durable_expiry_s": ("1h", "2h", "3h"),
    "blipmq_keepalive_s": ("1s", "2s", "0"),
    "blipmq_auth_timeout_s": ("1s", "2s", "3s"),
    "blipmq_max_batch": ("1", "2", "3"),
    "blipmq_max_batch_bytes": ("1KiB", "2KiB", "3KiB"),
    "blipmq_flush_interval_ms": ("2", "3ms", "0"),
    "blipmq_default_ttl_ms": ("1", "2s", "0"),
    "blipmq_timestamp_unit": ("ms", "us", "ns"),
    "blipmq_strict_topics": ("true", "false", "true"),
    "blipmq_framings": ("legacy", "binary1", "flatbuffers,legacy"),
    "blipmq_dedup_window_ms": ("1", "2s", "0"),
    "blipmq_write_stall_s": ("1s", "2s", "3s"),
    "blipmq_drain_timeout_s": ("1s", "2s", "3s"),
    "blipmq_federation": ("blipmq://a:1", "blipmq://k@b:2", "blipmqs://c:3"),
    "fq_node_id": ("10.0.0.1", "10.0.0.2", "10.0.0.3"),
    "fq_payload_bytes_max": ("1MiB", "2MiB", "3MiB"),
    "fq_backlog": ("1", "2", "3"),
    "fq_consumers_max": ("1", "2", "3"),
    "fq_key_grace_s": ("1s", "2s", "3s"),
    "fq_upstreams": ("fq://a:1?exchange=x", "fq://b:1?exchange=x", "fqs://c:1?exchange=x"),
    "fq_http": ("false", "true", "false"),
    "fq_web_root": ("/a", "/b", "/c"),
    "cluster_listen": ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"),
    "cluster_advertise": ("a:1", "b:2", "c:3"),
    "client_advertise": ("a:1", "b:2", "c:3"),
    "cluster_id": ("a", "b", "c"),
    "join_token_file": ("/a", "/b", "/c"),
    "peers": ("a:1", "b:2", "c:3"),
    "quorum": ("local", "managed", "auto"),
    "quorum_endpoints": ("http://a:1", "https://b:2", "http://c:3"),
    "quorum_prefix": ("a/", "b/", "c/"),
    "quorum_user": ("a", "b", "c"),
    "quorum_password_file": ("/a", "/b", "/c"),
    "quorum_tls_ca_file": ("/a", "/b", "/c"),
    "quorum_tls_cert_file": ("/a", "/b", "/c"),
    "quorum_tls_key_file": ("/a", "/b", "/c"),
    "etcd_client_listen": ("a:1", "b:2", "c:3"),
    "etcd_peer_listen": ("a:1", "b:2", "c:3"),
    "cluster_tls_cert_file": ("/a", "/b", "/c"),
    "cluster_tls_key_file": ("/a", "/b", "/c"),
    "cluster_tls_ca_file": ("/a", "/b", "/c"),
    "session_timeout_s": ("1s", "2s", "3s"),
    "gossip": ("false", "true", "false"),
    "discovery": ("true", "false", "true"),
    "replication_factor": ("1", "2", "4"),
    "min_insync": ("1", "3", "4"),
    "replica_lag_s": ("1s", "2s", "3s"),
    "catch_up_bytes_per_s": ("1MiB", "2MiB", "3MiB"),
    "placement": ("rack-aware", "least-loaded", "rack-aware"),
    "rack": ("a", "b", "c"),
    "auto_rebalance": ("true", "false", "true"),
    "follower_reads": ("true", "false", "true"),
    "rebalance_interval_s": ("1s", "2s", "3s"),
    "rebalance_threshold": ("0.1", "0.3", "0.4"),
    "admin_enabled": ("false", "true", "false"),
    "admin_listen": ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"),
    "admin_hosts": ("a.example", "b.example", "*"),
    "metrics_enabled": ("false", "true", "false"),
    "metrics_listen": ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"),
    "health_enabled": ("false", "true", "false"),
    "health_listen": ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"),
    "tracing_enabled": ("false", "true", "false"),
    "log_level": ("debug", "warn", "error"),
    "log_format": ("text", "json", "text"),
}


def code_of(caught: pytest.ExceptionInfo[BraidError]) -> str:
    return caught.value.code


@pytest.mark.parametrize("key", list(BY_KEY))
def test_every_setting_obeys_the_order_of_sources(key: str, tmp_path: Path) -> None:
    setting = BY_KEY[key]
    texts = dict(zip(SOURCES, SAMPLES[key], strict=True))
    for given in itertools.chain.from_iterable(itertools.combinations(SOURCES, n) for n in range(len(SOURCES) + 1)):
        file = None
        if "file" in given:
            file = str(tmp_path / "braid.toml")
            Path(file).write_text(f'{key} = "{texts["file"]}"\n')
        environ = {setting.env: texts["environment"]} if "environment" in given else {}
        flags = {key: texts["flag"]} if "flag" in given else {}
        config = load_config(flags, environ, file)
        winner = given[-1] if given else "default"
        expected = setting.kind.read(texts[winner]) if given else setting.default()
        assert getattr(config, setting.key) == expected
        name = {"default": "", "file": file, "environment": setting.env, "flag": setting.flag}[winner]
        assert config.origins[key] == Origin(winner, name or "")  # type: ignore[arg-type]


def test_samples_cover_every_setting() -> None:
    assert set(SAMPLES) == set(BY_KEY)


def test_defaults_are_what_the_kinds_accept() -> None:
    for setting in SETTINGS:
        default = setting.default()
        if default is not None:
            assert setting.kind.read(default) == default, setting.key


def test_defaults_that_other_parts_promise() -> None:
    config = load_config({}, {})
    assert config == Config()
    assert list(map(str, config.listen)) == ["flymq://127.0.0.1:9092", "blipmq://127.0.0.1:7878", "fq://127.0.0.1:8765"]
    assert (config.durability, config.data_dir, config.default_partitions) == ("fsync", "./data", 3)
    assert (config.segment_bytes, config.segment_age_s) == (256 * 1024 * 1024, 86400)
    assert (config.retention_bytes, config.retention_age_s) == (1_000_000_000, 604800)
    assert config.node_id and config.warnings == ()


def test_typed_values_of_both_file_formats(tmp_path: Path) -> None:
    toml = tmp_path / "braid.toml"
    urls = ["flymq://[::1]:0", "flymq://:9092?dialect=v126"]
    toml.write_text(f"listen = {json.dumps(urls)}\nauto_create_topics = false\nidle_timeout_s = 1.5\n")
    as_json = tmp_path / "braid.json"
    as_json.write_text(
        json.dumps(
            {"listen": ["flymq://[::1]:0", "flymq://:9092?dialect=v126"], "auto_create_topics": False, "idle_timeout_s": 1.5}
        )
    )
    first, second = load_config({}, {}, str(toml)), load_config({}, {}, str(as_json))
    assert first == second
    assert first.listen == (Listen("flymq", "::1", 0, "auto"), Listen("flymq", "0.0.0.0", 9092, "v126"))
    assert first.auto_create_topics is False and first.idle_timeout_s == 1.5


def test_braid_config_names_the_file_and_a_flag_names_another(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('node_id = "one"')
    two.write_text('node_id = "two"')
    assert load_config({}, {"BRAID_CONFIG": str(one)}).node_id == "one"
    assert load_config({}, {"BRAID_CONFIG": str(one)}, str(two)).node_id == "two"


def test_a_flag_of_none_was_not_given() -> None:
    config = load_config({"idle_timeout_s": 7, "segment_age_s": "2h", "node_id": None}, {"BRAID_NODE_ID": "env"})
    assert (config.idle_timeout_s, config.segment_age_s, config.node_id) == (7, 7200, "env")


def test_an_empty_variable_is_not_set() -> None:
    assert load_config({}, {"BRAID_DATA_DIR": "", "FLYMQ_BIND_ADDR": ""}) == Config()


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("data-dir", "data_dir"), ("segment_byte", "segment_bytes"), ("retention_age", "retention_age_s"), ("bind_adr", "bind_addr")],
)
def test_an_unknown_key_in_a_file_names_the_nearest(wrong: str, nearest: str, tmp_path: Path) -> None:
    file = tmp_path / "braid.toml"
    file.write_text(f'"{wrong}" = "x"\n')
    with pytest.raises(BraidError) as caught:
        load_config({}, {}, str(file))
    assert code_of(caught) == "CONFIG_UNKNOWN_KEY"
    assert str(file) in caught.value.text and f"did you mean `{nearest}`?" in caught.value.text


def test_an_unknown_key_far_from_all_gets_no_guess(tmp_path: Path) -> None:
    file = tmp_path / "braid.json"
    file.write_text('{"zzzzqqqq": 1}')
    with pytest.raises(BraidError) as caught:
        load_config({}, {}, str(file))
    assert "did you mean" not in caught.value.text


def test_an_unknown_variable_is_an_error_with_the_nearest() -> None:
    with pytest.raises(BraidError) as caught:
        load_config({}, {"BRAID_DURABILTY": "os"})
    assert code_of(caught) == "CONFIG_UNKNOWN_KEY" and "`BRAID_DURABILITY`" in caught.value.text


def test_an_unknown_flag_is_an_error() -> None:
    with pytest.raises(BraidError) as caught:
        load_config({"durabilty": "os"}, {})
    assert code_of(caught) == "CONFIG_UNKNOWN_KEY" and "`durability`" in caught.value.text


def test_variables_of_other_programs_are_left_alone() -> None:
    assert (
        load_config(
            {}, dict.fromkeys(OTHER_VARIABLES, "") | {"HOME": "/", "BRAID_CLIENT_TIMEOUT_S": "1", "FLYMQ_SOMETHING_NEW": "1"}
        ).warnings
        == ()
    )


@pytest.mark.parametrize("source", SOURCES)
def test_a_bad_value_names_setting_and_origin(source: str, tmp_path: Path) -> None:
    file = tmp_path / "braid.toml"
    file.write_text("segment_bytes = 1\n" if source == "file" else "")
    environ = {"BRAID_SEGMENT_BYTES": "1"} if source == "environment" else {}
    flags = {"segment_bytes": "1"} if source == "flag" else {}
    with pytest.raises(BraidError) as caught:
        load_config(flags, environ, str(file))
    assert code_of(caught) == "CONFIG_INVALID_VALUE"
    origin = {"file": str(file), "environment": "BRAID_SEGMENT_BYTES", "flag": "--segment-bytes"}[source]
    assert "`segment_bytes`" in caught.value.text and origin in caught.value.text and "4KiB to 2GiB" in caught.value.text


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.toml", "x = = 1"), ("a.json", "{"), ("a.json", "[1]"), ("a.toml", "\xff".encode("latin-1")), ("missing/a.toml", None)],
)
def test_an_unreadable_file_says_so(name: str, content: str | bytes | None, tmp_path: Path) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BraidError) as caught:
        load_config({}, {}, str(file))
    assert code_of(caught) == "CONFIG_UNREADABLE" and str(file) in caught.value.text


# --- the node id of fq


def test_a_node_id_of_fq_is_given_or_made_from_the_name_of_the_node() -> None:
    assert Config(fq_node_id="10.1.2.3").fq_node == bytes((10, 1, 2, 3))
    one, other = Config(node_id="one").fq_node, Config(node_id="other").fq_node
    assert one != other and one == Config(node_id="one").fq_node
    assert len(one) == 4 and one[0] not in (0, 127)


# --- TLS


def test_a_tls_listener_needs_certificate_and_key() -> None:
    with pytest.raises(BraidError) as caught:
        load_config({"listen": "flymqs://127.0.0.1:0", "tls_cert_file": "/c"}, {})
    assert code_of(caught) == "CONFIG_INVALID_VALUE" and "tls_key_file" in caught.value.text
    config = load_config({"listen": "flymqs://127.0.0.1:0", "tls_cert_file": "/c", "tls_key_file": "/k"}, {})
    assert config.listen[0].tls and config.warnings == ()


@pytest.mark.parametrize("scheme", ["blipmqs", "fqs"])
def test_any_tls_listener_uses_the_certificate(scheme: str) -> None:
    listen = ["flymq://127.0.0.1:0", f"{scheme}://127.0.0.1:0"]
    assert load_config({"listen": listen, "tls_cert_file": "/c", "tls_key_file": "/k"}, {}).warnings == ()
    with pytest.raises(BraidError) as caught:
        load_config({"listen": listen}, {})
    assert f"{scheme}://127.0.0.1:0 needs both" in caught.value.text


def test_a_certificate_without_a_tls_listener_is_worth_a_warning() -> None:
    (warning,) = load_config({"tls_cert_file": "/c"}, {}).warnings
    assert "not encrypted" in warning


# --- the published FlyMQ server's names


def test_flymq_variables_that_map() -> None:
    config = load_config(
        {},
        {
            "FLYMQ_BIND_ADDR": ":9092",
            "FLYMQ_DATA_DIR": "/d",
            "FLYMQ_NODE_ID": "n",
            "FLYMQ_RETENTION_BYTES": "0",
            "FLYMQ_SEGMENT_BYTES": "67108864",
            "FLYMQ_DEFAULT_PARTITIONS": "6",
            "FLYMQ_LOG_LEVEL": "DEBUG",
            "FLYMQ_LOG_JSON": "TRUE",
        },
    )
    assert config.listen == (Listen("flymq", "0.0.0.0", 9092, "auto"),)
    assert (config.data_dir, config.node_id, config.retention_bytes, config.segment_bytes) == ("/d", "n", 0, 64 * 1024 * 1024)
    assert (config.default_partitions, config.log_level, config.log_format) == (6, "debug", "json")
    assert config.origins["listen"] == Origin("environment", "FLYMQ_BIND_ADDR")


@pytest.mark.parametrize(("acks", "level"), [("all", "quorum"), ("leader", "fsync"), ("none", "none"), ("Leader", "fsync")])
def test_flymq_acks(acks: str, level: str) -> None:
    assert load_config({}, {"FLYMQ_ACKS": acks}).durability == level


def test_flymq_acks_of_another_word_is_an_error() -> None:
    with pytest.raises(BraidError) as caught:
        load_config({}, {"FLYMQ_ACKS": "some"})
    assert code_of(caught) == "CONFIG_INVALID_VALUE" and "FLYMQ_ACKS" in caught.value.text


def test_our_variable_wins_over_the_alias() -> None:
    assert load_config({}, {"FLYMQ_DATA_DIR": "/theirs", "BRAID_DATA_DIR": "/ours"}).data_dir == "/ours"


def test_a_flymq_file(tmp_path: Path) -> None:
    file = tmp_path / "flymq.json"
    document = {
        "bind_addr": "127.0.0.1:7000",
        "data_dir": "/d",
        "cluster_addr": "",
        "peers": [],
        "log_json": False,
        "security": {"tls_enabled": True, "tls_cert_file": "/c", "tls_key_file": "/k", "tls_ca_file": ""},
        "auth": {"enabled": False, "user_file": "/u"},
        "schema": {"enabled": False},
        "partition": {"default_partitions": 2},
        "performance": {"acks": "none"},
    }
    file.write_text(json.dumps(document))
    config = load_config({}, {}, str(file))
    assert config.listen == (Listen("flymqs", "127.0.0.1", 7000, "auto"),)
    assert (config.data_dir, config.tls_cert_file, config.tls_key_file, config.tls_ca_file) == ("/d", "/c", "/k", None)
    assert (config.default_partitions, config.durability, config.log_format) == (2, "none", "text")
    assert len(config.warnings) == 1 and "auth.user_file" in config.warnings[0]


def test_our_key_wins_over_the_alias_in_one_file_whatever_their_order(tmp_path: Path) -> None:
    for number, keys in enumerate((("bind_addr", "listen"), ("listen", "bind_addr"))):
        values = {"bind_addr": ":1", "listen": "flymq://127.0.0.1:2"}
        file = tmp_path / f"{number}.toml"
        file.write_text("".join(f'{key} = "{values[key]}"\n' for key in keys))
        assert load_config({}, {}, str(file)).listen[0].port == 2


def test_flymq_tls_switch() -> None:
    files = {"FLYMQ_TLS_CERT_FILE": "/c", "FLYMQ_TLS_KEY_FILE": "/k"}
    switched = load_config({}, {"FLYMQ_TLS_ENABLED": "true", **files})
    assert [listen.scheme for listen in switched.listen] == ["flymqs", "blipmq", "fq"], "the switch is about FlyMQ"
    explicit = load_config({"listen": "flymq://127.0.0.1:0"}, {"FLYMQ_TLS_ENABLED": "1", **files})
    assert not explicit.listen[0].tls and any("FLYMQ_TLS_ENABLED" in warning for warning in explicit.warnings)
    other = load_config({"listen": ["flymqs://127.0.0.1:0", "fq://127.0.0.1:0"]}, {"FLYMQ_TLS_ENABLED": "1", **files})
    assert not other.listen[1].tls and not other.warnings
    with pytest.raises(BraidError):
        load_config({}, {"FLYMQ_TLS_ENABLED": "true"})


def test_flymq_features_this_version_lacks_warn_only_when_asked_for() -> None:
    asked = load_config({}, {"FLYMQ_AUTH_USER_FILE": "/u", "FLYMQ_GRPC_TLS_CERT_FILE": "/x"})
    assert asked == Config() and len(asked.warnings) == 2
    assert all(re.search(r"FLYMQ_\w+ is ignored", warning) for warning in asked.warnings)
    assert load_config({}, {"FLYMQ_AUTH_ENABLED": "false", "FLYMQ_CLUSTER_ADDR": ""}).warnings == ()


def test_flymq_cluster_settings_map(tmp_path: Path) -> None:
    file = tmp_path / "flymq.json"
    document = {
        "cluster_addr": ":9093", "peers": ["a:9093"], "advertise_cluster": "me:9093",
        "discovery": {"enabled": True, "cluster_id": "c"},
        "partition": {"distribution_strategy": "rack-aware", "default_replication_factor": 2, "auto_rebalance_enabled": True},
    }  # fmt: skip
    file.write_text(json.dumps(document))
    config = load_config({}, {"FLYMQ_PEERS": "b:9093,c:1", "FLYMQ_AUTO_REBALANCE_INTERVAL": "60"}, str(file))
    assert (config.cluster_listen, config.cluster_advertise, config.cluster_id) == ("0.0.0.0:9093", "me:9093", "c")
    assert config.peers == ("a:9093", "b:9093", "c:1"), "the variable adds to the file"
    assert (config.placement, config.replication_factor, config.auto_rebalance) == ("rack-aware", 2, True)
    assert config.rebalance_interval_s == 60 and config.discovery and config.quorum_driver == "managed" and not config.warnings
    alone = load_config({}, {"FLYMQ_CLUSTER_ADDR": ""}, str(file))
    assert alone.cluster_listen is None and alone.quorum_driver == "local", "an empty variable means that the broker stays alone"
    assert alone.warnings == ("peers is ignored: without cluster_listen this broker stays alone",)


def test_a_broker_stays_alone_unless_it_is_told_otherwise() -> None:
    assert load_config({}, {}).quorum_driver == "local"
    alone = load_config({"peers": "a:1"}, {})
    assert alone.quorum_driver == "local" and alone.warnings[0].startswith("--peers is ignored")
    cluster = {"cluster_listen": "127.0.0.1:0"}
    assert load_config(cluster, {}).quorum_driver == "managed"
    external = load_config({**cluster, "quorum_endpoints": "https://e1:2379, e2:2379"}, {})
    assert external.quorum_driver == "etcd" and external.quorum_endpoints == ("https://e1:2379", "http://e2:2379")


@pytest.mark.parametrize(
    "flags",
    [
        {"cluster_listen": "nowhere"},
        {"cluster_listen": "127.0.0.1:1", "quorum": "etcd"},
        {"cluster_listen": "127.0.0.1:1", "cluster_tls_cert_file": "/c", "cluster_tls_key_file": "/k"},
        {"rebalance_threshold": "1.5"},
        {"rebalance_threshold": "x"},
        {"peers": "a"},
        {"quorum_endpoints": "ftp://a:1"},
        {"cluster_id": "x" * 65},
    ],
)
def test_cluster_settings_that_make_no_sense_are_refused(flags: dict[str, object]) -> None:
    with pytest.raises(BraidError) as caught:
        load_config(flags, {})
    assert code_of(caught) == "CONFIG_INVALID_VALUE"


def test_flymq_encryption_maps_and_its_key_is_no_setting(tmp_path: Path) -> None:
    key = "0f" * 32
    config = load_config({}, {"FLYMQ_ENCRYPTION_ENABLED": "True", "FLYMQ_ENCRYPTION_KEY": key, "BRAID_ENCRYPTION_KEYS": key})
    assert config.encryption_enabled and config.warnings == () and key not in repr(config)
    assert not load_config({}, {"FLYMQ_ENCRYPTION_ENABLED": "false"}).encryption_enabled
    file = tmp_path / "flymq.json"
    file.write_text(json.dumps({"security": {"encryption_enabled": True}}))
    assert load_config({}, {}, str(file)).encryption_enabled
    file.write_text(json.dumps({"security": {"encryption_enabled": True, "encryption_key": key}}))
    with pytest.raises(BraidError, match=r"CONFIG_UNKNOWN_KEY.*security\.encryption_key") as caught:
        load_config({}, {}, str(file))
    assert key not in str(caught.value)


def test_flymq_authentication_maps(tmp_path: Path) -> None:
    names = {"FLYMQ_AUTH_ENABLED": "TRUE", "FLYMQ_AUTH_DEFAULT_PUBLIC": "no", "FLYMQ_AUTH_ADMIN_USERNAME": "root"}
    config = load_config({}, names)
    assert (config.auth_enabled, config.auth_default_public, config.auth_admin_username) == (True, False, "root")
    assert config.warnings == () and config.origins["auth_enabled"] == Origin("environment", "FLYMQ_AUTH_ENABLED")
    file = tmp_path / "flymq.json"
    document = {"auth": {"enabled": True, "allow_anonymous": True}, "audit": {"enabled": False, "retention_days": 7}}
    file.write_text(json.dumps(document))
    config = load_config({}, {}, str(file))
    assert config.auth_enabled and config.auth_allow_anonymous
    assert (config.audit_enabled, config.audit_retention_days) == (False, 7)


def test_the_administrators_password_is_no_setting(tmp_path: Path) -> None:
    secret = "correct horse"
    config = load_config({}, {"BRAID_AUTH_ADMIN_PASSWORD": secret, "FLYMQ_AUTH_ADMIN_PASSWORD": secret})
    assert config == Config() and config.warnings == () and secret not in repr(config)
    with pytest.raises(BraidError, match="CONFIG_UNKNOWN_KEY"):
        load_config({"auth_admin_password": secret}, {})
    file = tmp_path / "flymq.json"
    file.write_text(json.dumps({"auth": {"admin_password": secret}}))
    (warning,) = load_config({}, {}, str(file)).warnings
    assert "auth.admin_password" in warning and "BRAID_AUTH_ADMIN_PASSWORD" in warning and secret not in warning


def test_only_a_duration_loses_its_unit_as_a_flag() -> None:
    assert BY_KEY["retention_age_s"].flag == "--retention-age"
    assert BY_KEY["quota_bytes_per_s"].flag == "--quota-bytes-per-s"
