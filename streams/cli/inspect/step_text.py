"""A training step as text: its samples in a table, and single tokens with what is around them.

step 12 of run r, epoch 0, weight version 13, trained 2026-11-16 21:37:41 UTC
64 samples of 40 rollouts, 812,004 tokens, 90,112 trained

 K  sample    session   group  reward  tokens  trained  versions  ratio
 1  0c1f2a..  s-17      g4     1       15,230  812      11-12     7.13 at 15,001
"""

import datetime
from collections.abc import Sequence

from schemas.record import UNKNOWN_VERSION
from schemas.samples import Sample
from streams.cli.inspect.step_on_log import Statistic, Step
from streams.core.drawing import Spell, escaped

TOP_MOST = 10
_AROUND = 12
_ID_CHARS = 8
_GONE = "no longer in the log"


def draw_step(step: Step, top: str | None, spell: Spell | None) -> str:
    """The whole step; with a statistic's name, the samples where it is largest."""
    names = _sorted(step, top)[:TOP_MOST] if top is not None else step.sample_ids
    lines = [*_title(step), "", *_table(step, names)]
    if top is not None:
        lines[2] = f"\nthe {len(names)} with the largest {top}"
        for name in names:
            found = step.statistics[name][top]
            sample = step.samples.get(name)
            if sample is not None and found.token is not None:
                lines += ["", draw_token(step, sample, found.token, spell)]
    return "\n".join(lines)


def draw_token(step: Step, sample: Sample, token: int, spell: Spell | None) -> str:
    """One token of a sample: what is known of it, and its neighbours."""
    number = step.sample_ids.index(sample.sample_id) + 1
    head = f"sample {number}, {sample.session_id}, token {token:,} of {sample.tokens.size:,}"
    if not 0 <= token < sample.tokens.size:
        return f"{head}: there is no such token"
    span = next((turn for turn in sample.turns if turn.start <= token < turn.end), None)
    facts = [head, f"turn {escaped(span.turn_id)}" if span is not None else "given, not sampled"]
    version = next((v for v, s, e in sample.weight_versions or () if s <= token < e), None)
    facts += [f"weight version {_shown(version)}"] if version is not None else []
    trains = _trains(sample, token)
    facts.append(f"trained, logprob {float(sample.logprobs[token]):.6g}" if trains else "untrained")
    return "\n".join([", ".join(facts), "  " + _window(sample, token, spell)])


def _title(step: Step) -> list[str]:
    when = datetime.datetime.fromtimestamp(step.trained_ms / 1000, datetime.UTC)
    samples = list(step.samples.values())
    rollouts = len({sample.session_id for sample in samples})
    tokens = sum(sample.tokens.size for sample in samples)
    trained = sum(end - start for sample in samples for start, end in sample.loss_mask)
    again = f"; also in epoch {step.rolled_back[-1]}, rolled back" if step.rolled_back else ""
    gone = len(step.sample_ids) - len(samples)
    return [
        f"step {step.step} of run {step.run_id}, epoch {step.run_epoch}, weight version "
        f"{step.weight_version}, trained {when:%Y-%m-%d %H:%M:%S} UTC{again}",
        f"{len(step.sample_ids)} samples of {rollouts} rollouts, {tokens:,} tokens, "
        f"{trained:,} trained" + (f"; {gone} samples {_GONE}" if gone else ""),
    ]


def _table(step: Step, names: Sequence[str]) -> list[str]:
    statistics = sorted({what for name in names for what in step.statistics.get(name, {})})
    heads = ["K", "sample", "session", "group", "reward", "tokens", "trained", "versions"]
    rows = [[*heads, *statistics]]
    for name in names:
        number = str(step.sample_ids.index(name) + 1)
        sample = step.samples.get(name)
        cells = [_GONE, *[""] * 5] if sample is None else _cells(sample)
        found = step.statistics.get(name, {})
        rows.append(
            [number, name[:_ID_CHARS], *cells, *[_number(found.get(s)) for s in statistics]]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cells(sample: Sample) -> list[str]:
    versions = sorted({version for version, _, _ in sample.weight_versions or ()})
    trained = sum(end - start for start, end in sample.loss_mask)
    return [
        sample.session_id,
        sample.group_id or "",
        "none" if sample.session_reward is None else f"{sample.session_reward:g}",
        f"{sample.tokens.size:,}",
        f"{trained:,}",
        "-".join(map(_shown, dict.fromkeys([*versions[:1], *versions[-1:]]))),
    ]


def _shown(version: int) -> str:
    return "?" if version == UNKNOWN_VERSION else str(version)


def _sorted(step: Step, top: str) -> list[str]:
    """Samples that have the statistic, the largest first."""
    having = [
        (found[top].value, name)
        for name, found in step.statistics.items()
        if top in found and found[top].value is not None
    ]
    return [name for _, name in sorted(having, key=lambda pair: (-(pair[0] or 0.0), pair[1]))]


def _number(found: Statistic | None) -> str:
    if found is None:
        return ""
    value = "none" if found.value is None else f"{found.value:.4g}"
    return value if found.token is None else f"{value} at {found.token:,}"


def _trains(sample: Sample, token: int) -> bool:
    return any(start <= token < end for start, end in sample.loss_mask)


def _window(sample: Sample, token: int, spell: Spell | None) -> str:
    """The token in brackets between its neighbours."""
    start, end = max(0, token - _AROUND), min(sample.tokens.size, token + _AROUND + 1)
    ids = sample.tokens[start:end].tolist()
    words = [str(one) if spell is None else spell(one) for one in ids]
    words[token - start] = f"[{words[token - start]}]"
    glue = " " if spell is None else ""
    left, right = "… " if start else "", " …" if end < sample.tokens.size else ""
    return f"{left}{glue.join(words)}{right}"
