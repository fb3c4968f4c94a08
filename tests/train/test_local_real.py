"""The local engine with a real model: its file, its words, and the command that serves it."""

import asyncio
from pathlib import Path

import numpy as np
import openai
import torch

from schemas.events import Turn
from streams.adapters.engines.interface import Generation, Sampling
from streams.adapters.engines.local_model import weights_at
from tests.adapters.engines.calls import heard
from tests.cli.up_process import up
from tests.train.real import Real


def test_a_gguf_file_is_loaded_as_the_model_it_holds(real: Real) -> None:
    loaded = weights_at(real.gguf)
    assert loaded.keys() == real.weights[0].keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in real.weights[0].items())


def test_a_stop_string_ends_an_answer(real: Real) -> None:
    prompt = real.renderer.full([{"role": "user", "content": "Tell me a long story."}], ())
    sampling = Sampling(temperature=0.0, max_new_tokens=60, stop=("never said", "e"))
    call = Generation(
        request_id="r", routing_key="s", input_ids=np.asarray(prompt, np.int32), sampling=sampling
    )
    came = asyncio.run(heard(real.engine, call))
    assert (came.finish, came.stop_reason) == ("stop", "e")
    said = real.renderer.decode(list(came.ids))
    assert "e" in said
    assert "e" not in real.renderer.decode(list(came.ids[:-1]))


def test_up_serves_a_models_folder(real: Real, tmp_path: Path) -> None:
    model = ("--engine", f"local:{real.folder}", "--tokenizer", real.folder)
    with up(tmp_path, *model) as running:
        assert f"local model {real.folder}" in running.running.said
        with openai.OpenAI(base_url=running.base_url, api_key=running.key, max_retries=0) as client:
            answer = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hello!"}], max_tokens=8
            )
        assert answer.choices[0].message.content
        assert running.running.stop() == 0
    (turn,) = [event for event in running.events(running.session_id) if isinstance(event, Turn)]
    assert turn.weight_versions == [(0, len(turn.output_ids))]
    assert turn.logprobs is not None
    ids = [*turn.prompt_ids.tolist(), *turn.output_ids.tolist()]
    scored = real.rescorer.logprobs(real.weights[0], ids, 1.0)[len(turn.prompt_ids) :]
    assert np.abs(turn.logprobs - np.asarray(scored)).max() <= 1e-4
