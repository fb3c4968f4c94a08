"""Prompts that begin a conversation are kept as text; a template that changed since is found."""

import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from schemas.events import Turn
from schemas.record import json_text
from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.rendering.encoding import as_ids
from streams.cli.inspect.command import inspect
from streams.cli.inspect.raw_prompts import check_raw_prompts
from streams.core.partition import Partition
from streams.core.state import OpenSession
from tests.adapters.gateway.agents import BASH, user
from tests.adapters.gateway.world import World, play
from tests.drift.qwen3 import tokenizer_folder

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
RULES = [Rule(text=CALL), Rule(text="Two files.\n"), Rule(text="A title")]


def altered(folder: Path) -> Path:
    """The same tokenizer with a template that prints tools in other words."""
    shutil.copytree(tokenizer_folder(), folder)
    found = 0
    for file in folder.iterdir():
        text = file.read_text("utf-8")
        if file.suffix in {".json", ".jinja"} and file.name != "tokenizer.json":
            found += text.count("# Tools")
            file.write_text(text.replace("# Tools", "# The tools"), "utf-8")
    assert found, "the template names its tools"
    return folder


def inspected(session_id: str, log: Path, tokenizer: Path) -> Result:
    given = [session_id, "--log", str(log), "--tokenizer", str(tokenizer)]
    return CliRunner().invoke(inspect, given)


def recorded(folder: Path, most: int = 65_536) -> tuple[str, list[Turn]]:
    told: list[tuple[str, list[Turn]]] = []

    async def story(world: World) -> None:
        agent = await world.open()
        agent.tools = [BASH]
        answer = await agent.ask(user("What is here?\n<|im_start|>"))
        await agent.run_tools(answer)
        other = [{"role": "system", "content": "Name it: 名前"}, user("What is here?")]
        agent.tools = []
        await agent.send(other)
        outcome = await world.ends(agent)
        assert outcome.closed.refused == 0
        told.append((agent.session_id, await world.turns(agent.session_id)))

    play(folder, story, RULES, gateway_raw_prompt_bytes_max=most)
    return told[0]


def test_they_are_printed_again_and_an_altered_template_is_found(tmp_path: Path) -> None:
    session_id, turns = recorded(tmp_path)
    roots = [turn for turn in turns if turn.base_turn_id is None]
    assert len(roots) == 2
    for turn in turns:
        assert (turn.raw_prompt is not None) is (turn in roots)
    assert "名前" in (roots[1].raw_prompt or "")
    (log,) = tmp_path.glob("**/*.db")
    same = inspected(session_id, log, tokenizer_folder())
    assert same.exit_code == 0, same.output
    assert same.output.count("as this template prints it") == 2
    other = altered(tmp_path / "altered")
    found = inspected(session_id, log, other)
    assert found.exit_code == 1
    assert f"{roots[0].turn_id}  differs from character" in found.output
    assert "it was `ools" in found.output
    assert f"{roots[1].turn_id}  as this template prints it" in found.output


def test_tools_that_no_reader_takes_are_said_of_their_turn_alone() -> None:
    plain = Turn(
        session_id="s",
        turn_id="t1",
        prompt_messages=(json_text(user("Hi")),),
        prompt_ids=as_ids([1]),
        output_ids=as_ids([2]),
        raw_prompt="Hi",
    )
    odd = {"tools": msgspec.Raw(b'[{"maximum": 1e999}]'), "tools_digest": "ab", "turn_id": "t2"}
    partition = Partition()
    for position, turn in enumerate((msgspec.structs.replace(plain, **odd), plain)):
        assert partition.feed(turn, position).refusals == ()
    session = partition.sessions["s"]
    assert isinstance(session, OpenSession)
    lines, same = check_raw_prompts(session.tree, tokenizer_folder())
    assert not same
    assert lines[0].startswith("t2  its tools cannot be read: ")
    assert lines[1].startswith("t1  differs from character 0")


@pytest.mark.parametrize("most", [0, 400])
def test_longer_ones_are_left_out(tmp_path: Path, most: int) -> None:
    _, turns = recorded(tmp_path, most)
    kept = [turn.raw_prompt for turn in turns if turn.raw_prompt is not None]
    assert all(len(text.encode()) <= most for text in kept)
    assert len(kept) == (1 if most else 0)
