"""What every turn of a gateway works with: made once by the server, shared by all."""

import dataclasses

from streams.adapters.engines.interface import Engine
from streams.adapters.gateway.access.minted import Minter
from streams.adapters.gateway.answers.grammar import Grammar
from streams.adapters.gateway.metrics import Metrics
from streams.adapters.gateway.prompts.near_misses import UnknownAnswers
from streams.adapters.gateway.publishing import Publisher
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.sampling.limits import FairGate, LoopTurns
from streams.adapters.gateway.sampling.weights import Weights
from streams.adapters.gateway.sessions.served import Sessions
from streams.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every turn of a gateway works with."""

    settings: Settings
    engine: Engine
    renderer: Renderer
    grammar: Grammar
    minter: Minter
    sessions: Sessions
    publisher: Publisher
    gate: FairGate
    loop_turns: LoopTurns
    weights: Weights
    metrics: Metrics
    unknown_answers: UnknownAnswers
