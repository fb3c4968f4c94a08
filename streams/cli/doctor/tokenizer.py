"""Whether a tokenizer and its template can carry sessions without changing what was sampled.

The renderer tries a template when it loads it; here its results become words.
"""

from pathlib import Path

from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.rendering.serving_template import serving
from streams.cli.doctor.finding import Finding, failed, note, ok
from streams.cli.doctor.template import first_break, template_findings
from streams.cli.serving import open_renderer
from streams.errors import BadSetting


def findings(*, tokenizer: Path | None, log: str | None, engine: str | None) -> list[Finding]:
    """Of the folder that was named."""
    if tokenizer is None:
        return [note("tokenizer", "not tried", "pass --tokenizer FOLDER, the model's own")]
    try:
        renderer = open_renderer(tokenizer)
    except BadSetting as error:
        change = "name a folder with tokenizer.json, tokenizer_config.json and a chat template"
        return [failed("tokenizer", str(error), change)]
    return [
        ok("tokenizer", f"{tokenizer}, {renderer.backend.get_vocab_size():,} tokens"),
        ok("template", f"prints; fingerprint {renderer.fingerprint}"),
        _appending(renderer),
        _system(renderer),
        _reasoning(renderer),
        _control_tokens(renderer),
        _ends(renderer),
        *template_findings(renderer, tokenizer),
    ]


def serving_template(folder: Path) -> str:
    """The template that prints histories as they are trained on.

    Raises:
        BadSetting: there is no tokenizer, or no such template is known.
    """
    renderer = open_renderer(folder)
    found = serving(renderer)
    if found is None:
        what = "no template is known that prints histories as they are trained on"
        raise BadSetting(f"{folder}: {what}; take one that only appends")
    return found.text


def _appending(renderer: Renderer) -> Finding:
    ways = [f"bridge of {renderer.family}"] if renderer.family else []
    if renderer.suffix_tested == "tested":
        ways.append("suffix, tested")
    if ways:
        return ok("next turns", f"only new messages are rendered: {', '.join(ways)}")
    seen = first_break(renderer)
    return failed(
        "next turns",
        "every prompt is rendered anew, and sampled tokens may change: "
        + "; ".join(filter(None, (renderer.suffix_tested, seen))),
        "give the model a template that prints a message without looking back; "
        "with this one a turn that breaks trains by itself, in a sample of its own",
    )


def _system(renderer: Renderer) -> Finding:
    name = "system message"
    if renderer.system_in_place:
        return ok(name, "in the middle of a conversation printed where it stands")
    return note(name, "in the middle of a conversation printed as a user's, marked <system>")


def _reasoning(renderer: Renderer) -> Finding:
    if renderer.composes:
        return ok("reasoning", "stays in the history")
    return note("reasoning", "the template decides what of it stays when a history is new here")


def _control_tokens(renderer: Renderer) -> Finding:
    if renderer.guards:
        return ok("control tokens", "spelled in a message they stay text")
    return note(
        "control tokens",
        "spelled in a message they become control tokens",
        "do not let strangers write into prompts of this model",
    )


def _ends(renderer: Renderer) -> Finding:
    if renderer.stop_ids:
        shown = ", ".join(renderer.decode([token]) for token in renderer.stop_ids)
        return ok("end of an answer", shown)
    return failed(
        "end of an answer", "no token ends one", "name eos_token in tokenizer_config.json"
    )
