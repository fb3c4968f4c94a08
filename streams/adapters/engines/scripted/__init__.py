"""An engine that answers from a script: for demonstrations, tests and benchmarks."""

from pathlib import Path

from streams.adapters.engines.scripted.engine import ScriptedEngine
from streams.adapters.engines.scripted.journal import Sampled
from streams.adapters.engines.scripted.script import DEMO, BadScript, Failure, Rule, Script

__all__ = [
    "DEMO",
    "TOKENIZER",
    "BadScript",
    "Failure",
    "Rule",
    "Sampled",
    "Script",
    "ScriptedEngine",
]

TOKENIZER = Path(__file__).parent / "tokenizer"
"""A small tokenizer with Qwen3's markers and template, for whoever has none; see
`tools/make-tokenizer`."""
