"""Without its packages or its model the local engine says what to do, in one line."""

import sys
from pathlib import Path

import pytest

from streams.adapters.engines.local import LocalEngine
from streams.cli.serving import open_engine
from streams.errors import BadSetting
from tests.adapters.gateway.prompts.prompt_setting import renderer


def refused(name: str) -> str:
    with pytest.raises(BadSetting) as told:
        open_engine(name, renderer())
    text = str(told.value)
    assert "\n" not in text
    return text


def test_without_pytorch_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    said = refused(f"local:{tmp_path}")
    assert said.startswith(f"--engine local:{tmp_path}: PyTorch is not installed")
    assert "turnstream[train]" in said


def test_a_path_that_is_not_there_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    missing = tmp_path / "model.gguf"
    assert refused(f"local:{missing}").endswith(f"{missing}: there is no such folder or file")
    with pytest.raises(BadSetting, match="no such folder or file"):
        LocalEngine(missing)


def test_a_path_is_needed() -> None:
    assert "give the folder of a model, or a GGUF file" in refused("local:")
