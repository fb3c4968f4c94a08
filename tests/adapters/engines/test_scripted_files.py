"""Scripts as files: read as they are written, refused with the file and the rule named."""

import json
from pathlib import Path
from typing import Any

import pytest

from streams.adapters.engines.scripted import BadScript, Failure, Rule, Script, ScriptedEngine
from streams.adapters.engines.scripted.script import read_script
from tests.adapters.engines.calls import tokenizer

BAD = {
    "no answer": {},
    "two answers": {"text": "a", "ids": [1]},
    "no chunk": {"text": "a", "chunks": []},
    "an empty chunk": {"text": "a", "chunks": [0]},
    "logprobs that do not fit": {"ids": [1, 2], "logprobs": [-1.0]},
    "an unknown field": {"txt": "a"},
    "a negative count": {"text": "a", "length": -1},
}


@pytest.mark.parametrize("rule", BAD.values(), ids=BAD)
def test_a_script_that_cannot_be_played_is_refused(rule: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"answers": [{"text": "fine"}, rule]}))
    with pytest.raises(BadScript, match=r"script\.json.*answers\[?"):
        read_script(path)


def test_a_script_with_text_needs_a_tokenizer() -> None:
    with pytest.raises(BadScript, match="tokenizer"):
        ScriptedEngine(Script(answers=(Rule(text="a"),)))
    with pytest.raises(BadScript, match="<eot>"):
        ScriptedEngine(Script(answers=(Rule(text="a"),), end_token="<eot>"), tokenizer())
    ScriptedEngine(Script(answers=(Rule(ids=(1,)),), end_token="<eot>"), tokenizer())


def test_a_script_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(
        '{"answers": [{"ids": [1, 2], "fail": {"after": 1}}], "otherwise": {"ids": []}}'
    )
    script = read_script(path)
    assert script.answers == (Rule(ids=(1, 2), fail=Failure(after=1)),)
    assert script.otherwise == Rule(ids=())
    with pytest.raises(BadScript, match=r"none\.json"):
        read_script(tmp_path / "none.json")
