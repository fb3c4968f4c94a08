"""A GRPO loop in plain torch, from the log's samples to the engine's weights.

    subscribe() ──► whole groups ──► masked loss, ratio by recorded logprobs ──► optimizer step
                                                                                   │
    agents ◄── engine ◄── the model's folder ◄── checkpoint: model, optimizer, place in the log

    python examples/trainer/train.py --model FOLDER --log kafka --run r1 --checkpoints DIR

A checkpoint is written after each step, so a loop that was killed begins where its last weights
are: `subscribe` hands out again what those have not seen, and nothing else. There is one
optimizer step a batch and no reference model; the clip alone holds the ratio near 1.

Invariant: a folder `step-N` is whole: model, optimizer and place in the log are of one step.
"""

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers

from streams.adapters.client import Turnstream
from streams.trainer import Batch, Subscription, subscribe
from streams.trainer.converters import padded
from streams.trainer.converters.rows import Row, convertible

CONTROL_KEY = "TURNSTREAM_GATEWAY_CONTROL_KEY"
ENGINE_KEY = "TURNSTREAM_ENGINE_API_KEY"
METRICS = "metrics.jsonl"
LOAD_S = 600.0
FARTHEST = 20.0
"""Between two logprobs of a token, so that their ratio is a number of 32 bits."""

Load = Callable[[Path, int], None]
"""Puts the weights of a model's folder into the engine, under that version."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says."""

    model: Path
    checkpoints: Path
    log: str = "kafka"
    run: str | None = None
    steps: int = 0
    groups: int = 4
    group_size: int | None = None
    learning_rate: float = 1e-6
    clip: float = 0.2
    temperature: float = 1.0
    max_staleness: int = 4
    tokens_max: int = 16_384
    gateway: str | None = None
    control_key: str = ""


@dataclass(slots=True)
class Loop:
    """What one step leaves to the next."""

    options: Options
    model: Any
    optimizer: Any
    load: Load | None
    step: int = 0
    """Of the optimizer; also the version of its weights. The engine begins with 0."""


def train(options: Options, load: Load | None = None) -> None:
    """Train until so many steps are done, over all lives of the run."""
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    newest = max(options.checkpoints.glob("step-" + "[0-9]" * 8), default=None)
    folder = options.model if newest is None else newest / "model"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    library: Any = transformers
    library.utils.logging.disable_progress_bar()
    model = library.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    loop = Loop(options, model, optimizer, load)
    print(f"begins with {folder}", flush=True)
    with subscribe(
        options.log,
        run_id=options.run or None,
        batch_groups=options.groups,
        group_size=options.group_size,
        advantages="grpo",
        # Without `load` all that is sampled is of version 0, however far the weights have come.
        max_staleness=options.max_staleness if load else None,
        tokens_max=options.tokens_max,
        current_version=0,
        start="beginning",  # without a checkpoint nothing counts, whatever was committed
    ) as batches:
        if newest is not None:
            _restore(loop, batches, newest)
            _hand_over(loop, batches, newest)  # the engine may have other weights by now
        while not options.steps or loop.step < options.steps:
            batch = next(batches)
            rows, refused = convertible(batch.rows)
            for error in refused:  # or it would come again at every start
                print(f"left out: {error}", file=sys.stderr, flush=True)
            check_temperature(rows, options.temperature)
            if not rows:
                continue  # nothing in it trains; the next commit covers it
            told, statistics = _stepped(loop, batch, rows)
            batches.commit(loop.step, loop.step, statistics)
            with (options.checkpoints / METRICS).open("a", encoding="utf-8") as metrics:
                metrics.write(json.dumps(told) + "\n")  # a step done again is told again
            folder = _saved(loop, batches)
            print(" ".join(f"{name} {value:.4g}" for name, value in told.items()), flush=True)
            _hand_over(loop, batches, folder)


def _stepped(loop: Loop, batch: Batch, rows: list[Row]) -> tuple[dict[str, float], dict[str, Any]]:
    """One optimizer step; what there is to say of it, and of each sample for `inspect --step`."""
    options, model = loop.options, loop.model
    loss_sum, clipped, furthest, statistics = 0.0, 0.0, 1.0, dict[str, Any]()
    loop.optimizer.zero_grad()
    for pack in passes(rows, options.tokens_max):
        columns = {k: v.to(model.device) for k, v in padded.padded(pack).items()}
        logits = model(columns["input_ids"], attention_mask=columns["attention_mask"]).logits
        loss, ratio = policy_loss(logits / options.temperature, columns, options.clip)
        (loss / len(batch.rollouts)).backward()
        loss_sum += loss.item()
        for row, own in zip(pack, ratio.detach(), strict=True):
            at = int((own - 1).abs().argmax())
            most = float(own[at])
            furthest = max(furthest, most, key=lambda value: abs(value - 1))
            statistics[row.sample.sample_id] = {"ratio": {"value": most, "token": at + 1}}
        weights = columns["weights"][:, 1:]
        clipped += float((weights * ((ratio.detach() - 1).abs() > options.clip)).sum())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    loop.optimizer.step()
    loop.step += 1
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    told = {
        "step": loop.step,
        "reward": sum(rewards) / len(rewards),
        "loss": loss_sum / len(batch.rollouts),
        "ratio": furthest,
        "clipped": clipped / len(batch.rollouts),
        "trained": sum(rollout.outcome.trained for rollout in rollouts),
        "generated": sum(rollout.outcome.generated for rollout in rollouts),
        "staleness": max(batch.staleness, default=0),
    }
    return told, statistics


def check_temperature(rows: Iterable[Row], temperature: float) -> None:
    """Stop before a step whose every ratio would be off."""
    for sample in (row.sample for row in rows):
        for said in (turn.sampling.temperature for turn in sample.turns if turn.sampling):
            if said in (None, temperature):
                continue
            sys.exit(
                f"{sample.session_id}: sampled at temperature {said:g}, and --temperature is "
                f"{temperature:g}: give the one that the sessions sample with"
            )


def passes(rows: Iterable[Row], tokens_max: int) -> Iterator[list[Row]]:
    """Rows by length, as many at a time as have no more tokens with their padding."""
    some: list[Row] = []
    for row in sorted(rows, key=lambda row: row.sample.tokens.size):
        if some and (len(some) + 1) * row.sample.tokens.size > tokens_max:
            yield some
            some = []
        some.append(row)
    yield some


def policy_loss(logits: Any, columns: dict[str, Any], clip: float) -> tuple[Any, Any]:
    """The loss, summed over rollouts, each of which counts once; and every token's ratio.

    The logits at one place score the token at the next. Where nothing trains, `weights` is 0 and
    the ratio is put at 1, so that no large number meets a zero. Beyond `FARTHEST` it stays where
    it is: an infinite one would make all weights NaN, by an advantage of 0 or by the clip's.
    """
    ids, weights = columns["input_ids"][:, 1:], columns["weights"][:, 1:]
    new = logits[:, :-1].log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    apart = torch.where(columns["loss_mask"][:, 1:], new - columns["logprobs"][:, 1:], 0.0)
    ratio, advantages = apart.clamp(-FARTHEST, FARTHEST).exp(), columns["advantages"][:, 1:]
    held = ratio.clamp(1 - clip, 1 + clip)
    return -(weights * torch.minimum(ratio * advantages, held * advantages)).sum(), ratio


def _saved(loop: Loop, batches: Subscription) -> Path:
    """Write a checkpoint, whole or not at all, and keep the one before it."""
    place = loop.options.checkpoints / f"step-{loop.step:08}"
    part = place.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    loop.model.save_pretrained(part / "model")
    torch.save(loop.optimizer.state_dict(), part / "optimizer.pt")
    state = {"step": loop.step, "turnstream": batches.state_dict()}
    (part / "state.json").write_text(json.dumps(state), encoding="utf-8")
    part.rename(place)
    for old in sorted(place.parent.glob("step-" + "[0-9]" * 8))[:-2]:
        shutil.rmtree(old)
    return place


def _restore(loop: Loop, batches: Subscription, place: Path) -> None:
    state = json.loads((place / "state.json").read_text("utf-8"))
    loop.step = state["step"]
    loop.optimizer.load_state_dict(torch.load(place / "optimizer.pt", weights_only=True))
    batches.load_state_dict(state["turnstream"])


def _hand_over(loop: Loop, batches: Subscription, place: Path) -> None:
    """Give the engine the weights of a checkpoint, while the gateways hold new calls back."""
    if loop.load is None:
        return
    run, url = loop.options.run or None, loop.options.gateway
    gateway = Turnstream(url, loop.options.control_key) if url else None
    if gateway:
        gateway.pause(run)
    loop.load(place / "model", loop.step)
    if gateway:
        gateway.resume(loop.step, run, run_epoch=batches.run_epoch, cache_flushed=True)


def into_sglang(urls: str, api_key: str = "") -> Load:
    """Have SGLang read the folder, which it has to see under the same path; others: your own."""

    def load(folder: Path, version: int) -> None:
        asked = {
            "model_path": str(folder.resolve()),
            "weight_version": str(version),
            "abort_all_requests": True,  # the gateways go on with them, from what was sampled
        }
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        for url in urls.split(","):
            address = f"{url}/update_weights_from_disk"
            httpx.post(address, json=asked, headers=headers, timeout=LOAD_S).raise_for_status()

    return load


def main() -> None:
    """Read the command line and train; Ctrl-C and SIGTERM end it, the next start goes on."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", type=Path, required=True, help="the folder that the engine was started with")
    add("--checkpoints", type=Path, required=True, help="where they are written and looked for")
    add("--log", help="kafka, kafka://host:port or a file; else as `subscribe` finds it")
    add("--run", help="only sessions of this run")
    add("--steps", type=int, default=0, help="stop after so many; 0: never")
    add("--groups", type=int, default=4, help="of a batch")
    add("--group-size", type=int, help="for sessions that name none")
    add("--learning-rate", type=float, default=1e-6)
    add("--clip", type=float, default=0.2, help="how far from 1 a ratio still counts")
    add("--temperature", type=float, default=1.0, help="that the sessions sample with")
    add(
        "--max-staleness",
        type=int,
        default=4,
        help="versions; older rollouts are left out, if weights are loaded",
    )
    add("--tokens-max", type=int, default=16_384, help="of one pass forward and back")
    add("--gateway", help=f"its URL, to pause calls while weights change; key: {CONTROL_KEY}")
    add(
        "--sglang",
        help=f"URLs of the engine with commas between, to load weights; key: {ENGINE_KEY}",
    )
    words = vars(parser.parse_args())
    for name in ("clip", "temperature", "learning_rate", "groups", "tokens_max"):
        if words[name] <= 0:
            parser.error(f"--{name.replace('_', '-')}: give a number above 0")
    if not (words["model"] / "config.json").is_file():
        parser.error(f"--model: {words['model']} is no folder of a model: it has no config.json")
    if words["gateway"] and words["sglang"] and not os.environ.get(CONTROL_KEY):
        parser.error(f"{CONTROL_KEY}: needed to pause calls while weights are loaded")
    urls, key = words.pop("sglang"), os.environ.get(ENGINE_KEY, "")
    words["control_key"] = os.environ.get(CONTROL_KEY, "")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(KeyboardInterrupt):
        train(Options(**words), into_sglang(urls, key) if urls else None)


if __name__ == "__main__":
    main()
