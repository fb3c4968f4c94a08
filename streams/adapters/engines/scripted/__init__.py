"""An engine that answers from a script: for demonstrations, tests and benchmarks."""

from streams.adapters.engines.scripted.engine import ScriptedEngine
from streams.adapters.engines.scripted.journal import Sampled
from streams.adapters.engines.scripted.script import DEMO, BadScript, Failure, Rule, Script

__all__ = ["DEMO", "BadScript", "Failure", "Rule", "Sampled", "Script", "ScriptedEngine"]
