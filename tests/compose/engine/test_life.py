"""The life of one deployment under 20 agents: scaled, killed, restarted, replaced, begun anew.

All tests of this file are about one deployment, in their order. After each, every session that an
agent ended is held against the log.
"""

import time
from collections.abc import Iterator

import pytest

from tests.compose.engine.agents import Load, judged
from tests.compose.engine.daemon import Docker
from tests.compose.engine.deployment import Deployment, deployed

GATEWAYS = ("gateway-1", "gateway-2")
SERVING = ("processor", *GATEWAYS, "router", "kafka")
SINKS = ("sink-jsonl", "sink-trackio")
JAVA_ENDED_BY_SIGTERM = 143


@pytest.fixture(scope="module")
def life(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two gateways and a worker, up."""
    with deployed(docker, tmp_path_factory.mktemp("life")) as deployment:
        configured(deployment)
        deployment.up()
        yield deployment


def configured(deployment: Deployment, processors: int = 1, profiles: str = "gateway") -> None:
    deployment.set(
        **deployment.gateway_variables, PROCESSORS=str(processors), COMPOSE_PROFILES=profiles
    )


def ids(deployment: Deployment, *services: str) -> set[str]:
    return {container.id for container in deployment.containers(*services)}


def test_workers_are_scaled_under_load_and_no_later_command_undoes_it(
    life: Deployment, figures: dict[str, object]
) -> None:
    with Load(life) as load:
        load.until_turns(40)
        configured(life, processors=3)
        figures["1 to 3"] = f"{life.up():.0f} s"
        three = ids(life, "processor")
        assert len(three) == life.scale("processor") == 3
        load.until_turns(40)
        configured(life, processors=3, profiles="gateway,sinks")
        figures["sinks on"] = f"{life.up():.0f} s"
        assert ids(life, "processor") == three
        assert [life.scale(sink) for sink in SINKS] == [1, 1]
        # The words of one command win for that command.
        life.up("--scale", "processor=2")
        assert life.scale("processor") == 2
        load.until_turns(40)
        configured(life, profiles="gateway,sinks")
        figures["2 to 1"] = f"{life.up():.0f} s"
        assert life.scale("processor") == 1
        load.until_turns(40)
        report = load.done()
    figures |= judged(life, report).figures()


@pytest.mark.usefixtures("own_engine")
def test_each_container_is_killed_in_turn(life: Deployment, figures: dict[str, object]) -> None:
    configured(life, processors=3)
    life.up()
    with Load(life) as load:
        for service in SERVING:
            load.until_turns(20)
            took_s = life.kill(life.containers(service)[0])
            figures[service] = f"{took_s:.0f} s"
        load.until_turns(40)
        report = load.done()
    figures |= judged(life, report).figures()


def test_each_service_is_restarted_in_turn(life: Deployment, figures: dict[str, object]) -> None:
    with Load(life) as load:
        for service in SERVING:
            load.until_turns(20)
            began_s = time.monotonic()
            life.compose("restart", service)
            life.until_well(service)
            figures[service] = f"{time.monotonic() - began_s:.0f} s"
        load.until_turns(40)
        report = load.done()
    figures |= judged(life, report).figures()


def test_a_new_image_replaces_the_old_one_under_load(
    life: Deployment, figures: dict[str, object]
) -> None:
    before = {c.service: c.image for c in life.containers()}
    kept = ids(life, "kafka", "router")
    module = life.checkout / "streams/__init__.py"
    module.write_text(module.read_text("utf-8") + "# another version\n", "utf-8")
    with Load(life) as load:
        load.until_turns(40)
        figures["built and replaced"] = f"{life.up('--build'):.0f} s"
        after = {c.service: c.image for c in life.containers()}
        ours = {"processor", "gateway-check", "topics", *GATEWAYS}
        assert {name for name in after if after[name] != before[name]} >= ours
        assert len({after[name] for name in ours}) == 1
        assert ids(life, "kafka", "router") == kept
        load.until_turns(40)
        report = load.done()
    figures |= judged(life, report).figures()
    # One build makes one image: a second one of the same is none.
    image = life.docker("image", "inspect", "--format", "{{.Id}}", "turnstream")
    life.compose("build")
    assert life.docker("image", "inspect", "--format", "{{.Id}}", "turnstream") == image
    assert {image.strip()} == {after[name] for name in ours}


def test_sessions_that_were_open_go_on_on_the_old_volume(
    life: Deployment, figures: dict[str, object]
) -> None:
    with Load(life) as load:
        load.until_turns(40)
        began_s = time.monotonic()
        life.compose("stop")
        figures["stop"] = f"{time.monotonic() - began_s:.0f} s"
        codes = {c.name: c.exit_code for c in life.containers() if c.service != "kafka"}
        assert set(codes.values()) == {0}, codes
        assert life.container("kafka").exit_code in {0, JAVA_ENDED_BY_SIGTERM}
        figures["down"] = f"{life.down():.0f} s"
        assert life.containers() == []
        figures["up"] = f"{life.up():.0f} s"
        load.until_turns(40)
        report = load.done()
    figures |= judged(life, report).figures()


def test_without_a_broker_nobody_is_healthy_and_all_go_on_by_themselves(
    life: Deployment, figures: dict[str, object]
) -> None:
    configured(life, processors=1, profiles="gateway,sinks")
    life.up()
    checks = {
        "processor": ("turnstream", "health"),
        "gateway-1": ("turnstream", "health", "--gateway"),
        "sink-jsonl": ("turnstream", "health"),
    }

    def said(service: str) -> tuple[int, str]:
        done = life.tried("exec", "-T", service, *checks[service])
        return done.returncode, done.stdout + done.stderr

    assert {service: said(service)[0] for service in checks} == dict.fromkeys(checks, 0)
    with Load(life) as load:
        load.until_turns(40)
        life.compose("stop", "kafka")
        took_s = life.until(lambda: all(said(name)[0] for name in checks), "all say so")
        figures["all say so"] = f"{took_s:.0f} s"
        assert "no answer from the broker for" in said("processor")[1]
        assert "no answer from the log for" in said("sink-jsonl")[1]
        life.compose("start", "kafka")
        figures["all well"] = f"{life.until_well():.0f} s"
        assert {service: said(service)[0] for service in checks} == dict.fromkeys(checks, 0)
        load.until_turns(40)
        report = load.done()
    figures |= judged(life, report).figures()


AWAY_S = 20.0


def test_of_a_gateway_that_is_away_the_router_says_no_line_a_second(life: Deployment) -> None:
    life.compose("stop", "gateway-2")
    try:
        began_s = time.time()
        time.sleep(AWAY_S)
        lines = life.compose("logs", "--no-color", "--since", f"{began_s:.0f}", "router")
        assert len(lines.splitlines()) <= 3, lines
        # It is said, all the same.
        assert "gateway-2" in life.compose("logs", "--no-color", "router")
    finally:
        life.compose("start", "gateway-2")
        life.until_well("gateway-2")
