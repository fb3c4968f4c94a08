"""Settings: read by name, refused by name, complete in their table."""

import dataclasses
import re
from typing import Any

import pytest

from streams.cli.settings_table import settings_table
from streams.errors import BadSetting
from streams.settings import Settings, settings_from


def test_every_setting_can_be_set_by_the_variable_of_its_name() -> None:
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        value = field.default
        if isinstance(value, int | float):
            changed[field.name] = value
    texts = {f"TURNSTREAM_{name.upper()}": str(value) for name, value in changed.items()}
    assert settings_from(texts) == Settings()
    assert settings_from({"TURNSTREAM_PARTITIONS": "4"}) == Settings(partitions=4)
    assert settings_from({"TURNSTREAM_REPLICATION": "2"}).replication == 2
    assert settings_from({"TURNSTREAM_GATEWAY_ROUTED_EXPERTS": "true"}).gateway_routed_experts
    assert settings_from({"TURNSTREAM_TOPIC_PREFIX": "a.b"}).turns_topic == "a.b.turns"
    assert settings_from({"TURNSTREAM_SSL_CAFILE": __file__}).ssl_cafile == __file__


def test_an_empty_variable_counts_as_unset() -> None:
    assert settings_from({"TURNSTREAM_PARTITIONS": "", "OTHER": "x"}) == Settings()


REFUSED = {
    "a word for a number": ({"PARTITIONS": "many"}, "PARTITIONS=many: give a whole number"),
    "a part for a whole number": ({"PARTITIONS": "1.5"}, "PARTITIONS=1.5: give a whole number"),
    "no partitions": ({"PARTITIONS": "0"}, "PARTITIONS=0: give a number from 1"),
    "more partitions than useful": ({"PARTITIONS": "10001"}, "PARTITIONS=10001: the most is"),
    "no time at all": ({"PUBLISH_TIMEOUT_S": "0"}, "PUBLISH_TIMEOUT_S=0.0: give a number"),
    "a time without end": ({"REQUEST_TIMEOUT_S": "inf"}, "REQUEST_TIMEOUT_S=inf: give a number"),
    "no number": ({"REQUEST_TIMEOUT_S": "nan"}, "REQUEST_TIMEOUT_S=nan: give a number"),
    "nothing kept": ({"RETENTION_TURNS_HOURS": "0"}, "RETENTION_TURNS_HOURS=0.0: give a number"),
    "less than nothing": ({"RETENTION_TURNS_HOURS": "-2"}, "RETENTION_TURNS_HOURS=-2.0: give"),
    "neither yes nor no": (
        {"GATEWAY_ROUTED_EXPERTS": "maybe"},
        "GATEWAY_ROUTED_EXPERTS=maybe: give true or false",
    ),
    "a misspelt name": ({"PARTITONS": "4"}, "PARTITONS: no such setting"),
    "an unknown protocol": ({"SECURITY_PROTOCOL": "TLS"}, "SECURITY_PROTOCOL=TLS: give one of"),
    "an unknown codec": ({"COMPRESSION": "zip"}, "COMPRESSION=zip: give one of none, gzip"),
    "no lag at all": ({"ADMISSION_LAG_MAX": "0"}, "ADMISSION_LAG_MAX=0: give a number from 1"),
    "a group without a name": ({"TRAINER_GROUP": " "}, "TRAINER_GROUP= : give the name of"),
    "an unknown profile": ({"PROFILE": "sead"}, "PROFILE=sead: give one of seed"),
    "a server without its port": ({"BOOTSTRAP_SERVERS": "a:1,b"}, "BOOTSTRAP_SERVERS=b: give"),
    "a prefix that is no name": ({"TOPIC_PREFIX": "a b"}, "TOPIC_PREFIX=a b: letters"),
    "a file that is not there": ({"SSL_CAFILE": "none.pem"}, "SSL_CAFILE=none.pem: there is no"),
    "a user without a password": (
        {"SECURITY_PROTOCOL": "SASL_SSL", "SASL_USERNAME": "u"},
        "SASL_PASSWORD=: SASL_SSL needs it",
    ),
    "more in sync than copies": (
        {"REPLICATION": "1", "MIN_INSYNC": "2"},
        "MIN_INSYNC=2: more than the copies",
    ),
    "a batch no broker takes": (
        {"MESSAGE_BYTES_MAX": "1000"},
        "PRODUCER_BATCH_BYTES=1048576: at most TURNSTREAM_MESSAGE_BYTES_MAX=1000",
    ),
    "a heartbeat too slow for its timeout": (
        {"PROCESSOR_HEARTBEAT_INTERVAL_S": "4"},
        "PROCESSOR_HEARTBEAT_INTERVAL_S=4.0: at most a third of",
    ),
    "more than all traces": ({"TRACE_SHARE": "1.1"}, "TRACE_SHARE=1.1: give a part"),
    "an unknown sink": ({"SINKS": "jsonl,x"}, "SINKS=jsonl,x: give some of jsonl, trackio"),
    "no port": ({"METRICS_PORT": "65536"}, "METRICS_PORT=65536: the most is 65535"),
}


@pytest.mark.parametrize(("given", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_by_the_name_of_its_variable(
    given: dict[str, str], text: str
) -> None:
    with pytest.raises(BadSetting, match="TURNSTREAM_" + re.escape(text)) as refused:
        settings_from({f"TURNSTREAM_{name}": value for name, value in given.items()})
    assert "\n" not in str(refused.value)


def test_a_password_is_never_shown() -> None:
    secret = Settings(sasl_password="hunter2")
    assert "hunter2" not in repr(secret)


def test_the_table_has_every_setting_with_its_default_and_its_reason() -> None:
    rows = settings_table().splitlines()[2:]
    fields = dataclasses.fields(Settings)
    assert len(rows) == len(fields)
    for row, field in zip(rows, fields, strict=True):
        variable, default, reason = (part.strip() for part in row.strip("|").split(" | "))
        assert variable == f"`TURNSTREAM_{field.name.upper()}`"
        assert default == ("" if field.default is None else f"`{field.default}`")
        assert len(reason) > 10


def test_a_number_says_its_unit_last() -> None:
    units = ("_s", "_ms", "_hours", "_bytes", "_bytes_max", "_events", "_tokens", "_turns_max")
    counts = {"partitions", "replication", "min_insync", "metrics_port", "trace_share"}
    counts |= {"gateway_port", "gateway_concurrency", "gateway_sessions_held", "admission_lag_max"}
    counts |= {"gateway_weight_version", "gateway_sessions_open_max", "sink_trackio_traces"}
    counts |= {"gateway_json_objects_max", "gateway_json_values_max", "gateway_connections_max"}
    counts |= {"gateway_session_calls_max", "gateway_messages_max"}
    hints = {
        f.name
        for f in dataclasses.fields(Settings)
        if "int" in str(f.type) or "float" in str(f.type)
    }
    assert {name for name in hints - counts if not name.endswith(units)} == set()


def test_the_changelog_has_the_name_that_faust_gives_it() -> None:
    assert Settings().changelog_topic == "turnstream-processor-rows-changelog"
