"""`turnstream inspect`: a session drawn as text, and the story of one token."""

import sys
from pathlib import Path
from typing import BinaryIO

import click
from tokenizers import Tokenizer

from streams.cli.offline import run_file
from streams.cli.policy_options import chosen_rules, policy_options
from streams.core.drawing import Spell, draw_session, visible
from streams.core.effects import Effects
from streams.core.limits import DEFAULT_LIMITS
from streams.core.policy import PROFILES
from streams.core.provenance import tell_token
from streams.core.tree import Tree


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--session", "session_id", metavar="ID", help="Only this session of the file.")
@policy_options
@click.option("--token", type=click.IntRange(min=0), metavar="N", help="Tell the story of token N.")
@click.option(
    "--sample",
    "index",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="The sample that --token counts in, from 1.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="A tokenizer.json, or a folder with one: show tokens as text instead of ids.",
)
def inspect(
    file: BinaryIO,
    session_id: str | None,
    profile: str | None,
    fork_threshold: int | None,
    default_reward: float | None,
    token: int | None,
    index: int,
    tokenizer: Path | None,
) -> None:
    """Draw the sessions of FILE: turns, tree, samples, ledger.

    Trained tokens stand in [brackets]; blanks in messages are visible (space ·, newline ⏎,
    tab ⇥). --token N says which turn gave a token, under which weights, and what masked it.
    """
    rules = chosen_rules(profile, fork_threshold, default_reward)
    spell = _spelling(tokenizer) if tokenizer is not None else None
    drawn = refused = 0
    told = False
    for session, effects, letters in run_file(file, rules, session_id=session_id):
        refused += len(letters)
        for letter in letters:
            place = f"line {letter.line}" if letter.line else f"session {letter.session_id}"
            click.echo(visible(f"{place}: {letter.code}: {letter.detail}", most=None), err=True)
        if effects.outcome is None:
            continue
        drawn += 1
        # A session that its first event closed never had a turn.
        tree = session.tree if session is not None else Tree(PROFILES["seed"], DEFAULT_LIMITS)
        if token is None:
            _echo(draw_session(tree, effects.outcome, effects.samples, spell) + "\n")
        else:
            told = told or _tell(tree, effects, index, token)
    if not drawn:
        wanted = f"session {session_id}" if session_id else "any session"
        raise click.UsageError(f"{file.name} does not hold {wanted}")
    sys.exit(1 if refused or (token is not None and not told) else 0)


def _tell(tree: Tree, effects: Effects, index: int, token: int) -> bool:
    """Print the story of a token; whether there is such a token."""
    assert effects.outcome is not None, "only closed sessions have a story"
    samples = effects.samples
    if index > len(samples):
        _echo(f"session {effects.outcome.session_id} gave {len(samples)} samples")
        return False
    sample = samples[index - 1]
    if token >= sample.tokens.size:
        _echo(f"sample {index} has {sample.tokens.size} tokens, from 0")
        return False
    _echo(tell_token(tree, effects.outcome, samples, sample, token))
    return True


def _echo(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()


def _spelling(path: Path) -> Spell:
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise click.UsageError(f"--tokenizer {path}: {error}") from None
    return lambda token: (
        visible(tokenizer.decode([token], skip_special_tokens=False)) or f"<{token}>"
    )
