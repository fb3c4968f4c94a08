"""The engine that computes a model itself, in this process, for tests and small experiments.

    generate ──► a job ──► the model's thread ──► Tokens, one at a time, as they are sampled

Any causal language model that transformers knows, in float32 on the processor, without batching.
Answers take turns token by token; what is too much waits, and what is too much of that is
refused. The event loop stays free: all that computes is in one thread of its own.

Weights may be replaced at any time. Answers under way go on in place: their tokens so far stay,
and from the next one on they are of the new version (what becomes of caches: `local_worker`).

Invariant: logprobs are of the distribution sampled from; each token carries the version of the
weights that scored it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from streams.adapters.engines.interface import EngineError, Generation, Tokens
from streams.adapters.engines.local_model import LocalModel, Weights, weights_at
from streams.adapters.engines.local_sampling import Drawing
from streams.adapters.engines.local_stops import Stops
from streams.adapters.engines.local_worker import Job, Tell, Update, Worker

RUNNING_MAX = 8
"""Answers side by side: each holds a cache, and all share the same processors."""
WAITING_MAX = 256
"""One more is refused, to be tried again."""
_CLOSE_S = 10.0


class LocalEngine:
    """Samples from a model in memory."""

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer | None = None,
        *,
        version: int = 0,
        seed: int | None = None,
        running_max: int = RUNNING_MAX,
    ) -> None:
        """Load the model; that takes some seconds.

        Args:
            path: a folder with a model and its config.json, or a GGUF file.
            tokenizer: the model's own, to see stop strings with.
            version: of the weights that are there.
            seed: of calls that bring none; None: each run differs.
            running_max: answers side by side; others wait.

        Raises:
            BadSetting: PyTorch is missing, or there is no such model.
        """
        self._path = path
        self._tokenizer = tokenizer
        self._model = LocalModel(path)
        self._seeds = np.random.SeedSequence(seed)
        self._jobs: dict[str, Job] = {}
        self._worker = Worker(
            self._model, version, running_max=running_max, waiting_max=WAITING_MAX
        )

    @property
    def name(self) -> str:
        return f"local model {self._path}"

    @property
    def logprobs(self) -> Literal["processed", "raw"]:
        return "processed"

    @property
    def forces_calls(self) -> bool:
        return False

    async def generate(self, generation: Generation) -> AsyncGenerator[Tokens, None]:
        """Sample, a token at a time; closing the iterator early aborts.

        Raises:
            EngineError: the call is not for this model, too many wait, or the model fails.
        """
        came: asyncio.Queue[Tokens | EngineError] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(what: Tokens | EngineError) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(came.put_nowait, what)

        job = self._job(generation, tell)
        self._worker.submit(job)
        self._jobs[generation.request_id] = job
        try:
            while True:
                what = await came.get()
                if isinstance(what, EngineError):
                    raise EngineError(f"{self.name}: {what}", retryable=what.retryable)
                yield what
                if what.finish is not None:
                    return
        finally:
            job.stop("the caller has gone")
            if self._jobs.get(generation.request_id) is job:
                del self._jobs[generation.request_id]

    async def abort(self, request_id: str) -> None:
        """Stop a generation: it ends with finish `abort`."""
        if request_id in self._jobs:
            self._jobs[request_id].stop("aborted by the caller")

    async def replace_weights(
        self, weights: Weights | Path, version: int, label: str | None = None
    ) -> None:
        """Sample from other weights; returns when the next token is of them.

        They are copied: tensors may change again afterwards. A folder or file is loaded beside
        the model that runs, and then copied.

        Raises:
            BadSetting: there is no such model.
            EngineError: they are another model's; nothing has changed.
        """
        if isinstance(weights, Path):
            weights = await asyncio.to_thread(weights_at, weights)
        loop = asyncio.get_running_loop()
        replaced: asyncio.Future[EngineError | None] = loop.create_future()

        def settle(error: EngineError | None) -> None:
            if not replaced.done():
                replaced.set_result(error)

        def done(error: EngineError | None) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, error)

        self._worker.update(Update(weights=weights, version=version, label=label, done=done))
        error = await replaced
        if error is not None:
            raise EngineError(f"{self.name}: {error}", retryable=error.retryable)

    async def require_ready(self) -> None:
        """Return if its thread is there.

        Raises:
            EngineError: it has ended.
        """
        if not self._worker.alive:
            raise EngineError(f"{self.name}: its thread has ended")

    async def close(self) -> None:
        """End the thread, and with it what is under way."""
        await asyncio.to_thread(self._worker.close, _CLOSE_S)

    def _job(self, generation: Generation, tell: Tell) -> Job:
        sampling, ids = generation.sampling, generation.input_ids
        refused = self._refused(generation)
        if refused is not None:
            raise EngineError(f"{self.name}: {refused}", retryable=False)
        window = self._model.window
        prompt = ids.tolist()
        return Job(
            ids=prompt,
            drawing=Drawing(sampling, prompt, np.random.default_rng(self._seeds.spawn(1)[0])),
            stops=Stops({*sampling.stop_ids, *self._model.ends}, sampling.stop, self._tokenizer),
            tokens_max=min(sampling.max_new_tokens, (window or 2**31) - len(prompt)),
            tell=tell,
            echo=generation.echo,
        )

    def _refused(self, generation: Generation) -> str | None:
        """Why this model cannot answer, if so."""
        ids, model = generation.input_ids, self._model
        if generation.sampling.json_schema is not None:
            return "it cannot hold an answer to a JSON schema"
        if not ids.size:
            return "the prompt is empty"
        if not 0 <= int(ids.min()) <= int(ids.max()) < model.vocabulary:
            return (
                f"the prompt has id {int(ids.max())}, the model {model.vocabulary} tokens:"
                " the tokenizer is not the model's own"
            )
        if model.window is not None and ids.size >= model.window:
            return f"a prompt of {ids.size} tokens does not fit into its window of {model.window}"
        return None
