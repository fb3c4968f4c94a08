"""An answer that comes back so changed that it is another message: said by its fields alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from streams.adapters.gateway.prompts import near_misses
from streams.adapters.gateway.prompts.near_misses import FILE_NAME, differing
from tests.adapters.gateway.agents import says, user
from tests.adapters.gateway.world import World, play

ADDED = "a thought that nobody had"


def test_a_near_miss_is_said_once_by_its_fields_and_written_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "misses"

    async def story(world: World) -> None:
        agent = await world.open()
        answer = await agent.send([user("Hi")])
        changed = {"role": "assistant", "content": "Yes.", "reasoning_content": ADDED}
        for word in ("And?", "And then?"):
            await agent.send([user("Hi"), changed, user(word)])
        assert answer is not None
        assert world.gateway.metrics.counts["near_misses"] == 1
        (turn, *_) = await world.turns(agent.session_id)
        (line,) = [each for each in capsys.readouterr().err.splitlines() if "near_miss" in each]
        told = json.loads(line)
        assert (told["session"], told["turn"]) == (agent.session_id, turn.turn_id)
        assert "other reasoning_content:" in told["detail"]
        assert ADDED not in line
        (written,) = (folder / FILE_NAME).read_text().splitlines()
        assert ADDED in json.loads(written)["came"]
        assert (folder / FILE_NAME).stat().st_mode & 0o077 == 0
        await world.end(agent)

    answers = [says("Yes."), *(says("Well.") for _ in range(2))]
    play(tmp_path, story, answers, gateway_near_miss_folder=str(folder))


def test_the_file_stops_growing_and_nothing_is_written_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_misses, "FILE_BYTES_MAX", 600)

    def misses(folder: Path, **settings: Any) -> int:
        async def story(world: World) -> None:
            for number in range(4):
                agent = await world.open()
                await agent.send([user("Hi")])
                changed = {"role": "assistant", "content": "Yes.", "reasoning_content": f"{number}"}
                await agent.send([user("Hi"), changed, user("And?")])
            assert world.gateway.metrics.counts["near_misses"] == 4

        folder.mkdir()
        play(folder, story, [says("Yes.") for _ in range(8)], **settings)
        return sum(len(file.read_bytes()) for file in folder.rglob(FILE_NAME))

    asked = tmp_path / "asked"
    assert 0 < misses(asked, gateway_near_miss_folder=str(asked / "misses")) <= 600
    assert misses(tmp_path / "unasked") == 0


def test_a_history_that_an_agent_wrote_anew_is_no_near_miss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        await agent.send([user("Hi")])
        summary = {"role": "assistant", "content": "They said hello."}
        await agent.send([user("Hi"), summary, user("And?")])
        assert world.gateway.metrics.counts["unknown_answers:foreign"] == 1
        assert world.gateway.metrics.counts["near_misses"] == 0
        assert "near_miss" not in capsys.readouterr().err

    play(tmp_path, story, [says("Yes."), says("Well.")])


def test_empty_fields_and_blanks_around_a_text_are_no_difference() -> None:
    recorded = {"role": "assistant", "content": "Yes.", "tool_calls": [{"id": "a"}]}
    same = {"role": "assistant", "content": " Yes.\n", "refusal": None, "tool_calls": [{"id": "a"}]}
    assert differing(same, recorded) == []
    assert differing({**same, "tool_calls": [], "name": "x"}, recorded) == ["name", "tool_calls"]
