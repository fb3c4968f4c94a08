"""What a chat template does by itself, in words: where it breaks, and what to serve with.

    template alone   whether it only ever appends; else at which turn and token it does not
    tool calls       whether arguments come out as models write them
    date             whether prompts change at midnight
    serving          the template whose histories are those of the training

Invariant: what is only a danger to others than the gateway is a note, never a failure.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.rendering.serving_template import Serving, serving
from streams.adapters.gateway.rendering.trials import Break, Trial, arguments, dated, grown
from streams.cli.doctor.finding import Finding, note, ok

_KEPT = "nothing for the gateway: it goes on from recorded tokens; whoever prints whole histories"
_GIVEN = "the gateway gives them as objects"


def template_findings(renderer: Renderer, folder: Path) -> list[Finding]:
    """The rows of a template; none where a family's renderer stands in for one."""
    text = renderer.template_text
    if text is None:
        return [note("template alone", f"none: prompts are those of {renderer.family}")]
    trial = grown(renderer, renderer.printing(text))
    return [
        _alone(renderer, trial),
        _calls(renderer, text),
        *_date(renderer, text),
        _serving(serving(renderer), trial, folder),
    ]


def where(found: Break) -> str:
    """A break, for people."""
    place = f"token {found.token - found.prompt} of its answer"
    if found.inside == "prompt":
        place = f"token {found.token} of its {found.prompt} prompt tokens"
    return (
        f"{found.after}: the prompt of turn {found.turn} leaves turn {found.turn - 1} at {place}:"
        f" {_shown(found.old)} becomes {_shown(found.new)}"
    )


def first_break(renderer: Renderer) -> str:
    """Where the template first breaks, if it does."""
    if renderer.template_text is None:
        return ""
    broken = grown(renderer, renderer.printing(renderer.template_text)).broken
    return where(broken[0]) if broken else ""


def _alone(renderer: Renderer, trial: Trial) -> Finding:
    name = "template alone"
    tried = len(trial.held) + len(trial.broken)
    refused = [f"{step}: {words}" for step, words in trial.refused.items()]
    if trial.appends:
        if not refused:
            return ok(name, f"only ever appends, in {tried} of {tried} ways to go on")
        return note(name, f"only ever appends, but refuses {'; '.join(refused)}")
    if not trial.broken:
        return note(name, f"refuses {'; '.join(refused)}")
    what = f"breaks in {len(trial.broken)} of {tried} ways to go on; {where(trial.broken[0])}"
    if renderer.appends:
        return note(name, what, f"{_KEPT} loses them, see serving")
    return note(name, what)


def _calls(renderer: Renderer, text: str) -> Finding:
    name = "tool calls"
    found = arguments(renderer, text)
    if found is None:
        change = "for agents with tools: a template that prints them"
        return note(name, "are not printed", change)
    if found.python:
        what = f"arguments are printed as Python spells them ({', '.join(found.python)}), not JSON"
        change = (
            f"{_KEPT} has other tokens than were sampled: print arguments with `tojson`, "
            "or take a later template of the model"
        )
        return note(name, what, change)
    if found.strings == "the same":
        return ok(name, "arguments are printed as they are written, as objects and as text")
    return ok(name, f"{_GIVEN}; as text, as clients send them, they would be {found.strings}")


def _date(renderer: Renderer, text: str) -> list[Finding]:
    found = dated(renderer, text)
    if found is None:
        return []
    what = f"today's is printed: from token {found.token} of {found.prompt} on, prompts differ"
    kept = "sessions keep what they recorded" if renderer.appends else "sessions break at midnight"
    change = f"{kept}; for equal prompts on all days write a fixed date into the template"
    return [note("date", f"{what} from day to day", change)]


def _serving(found: Serving | None, trial: Trial, folder: Path) -> Finding:
    name = "serving"
    if found is None:
        if trial.appends:
            return note(name, "histories may be printed otherwise than they were trained on")
        return note(
            name,
            "no template is known that prints histories as they are trained on",
            "take one that only appends, for training and for serving: then they are the same",
        )
    if found.switches:
        switches = json.dumps(dict(found.switches))
        change = f"give chat_template_kwargs {switches} with every request"
        return note(name, "by itself the template drops reasoning that training keeps", change)
    if found.changed is not None:
        change = (
            f"turnstream doctor --tokenizer {folder} --serving-template > chat_template.jinja; "
            "then start SGLang or vLLM with --chat-template chat_template.jinja"
        )
        what = "by itself the template drops reasoning that training keeps"
        return note(name, f"{what}; with `{found.changed}` fixed it does not", change)
    return ok(name, "the template as it is prints what training sees")


def _shown(pieces: Sequence[str]) -> str:
    return json.dumps("".join(pieces), ensure_ascii=False)
