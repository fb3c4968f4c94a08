"""The thread in which a model computes: answers side by side, a step of each in turn.

    waiting ──► running ──► a chunk of the prompt, or one token ──► told
                   ▲
             new weights, between two rounds

New weights take the place of the old between two rounds, and no answer is stopped for them. Each
that is under way has its cache dropped, and everything so far, its prompt and its own tokens, is
read again with the new weights before its next token. So a token's logprob is of the weights it
is said to be of, given all tokens before it, as one pass of those weights would have it; that
costs one more reading of what is under way.

Invariant: every job is told one end; nobody but this thread touches the model.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from streams.adapters.engines.interface import EngineError, Finish, Tokens
from streams.adapters.engines.local_model import Cache, LocalModel, Weights
from streams.adapters.engines.local_sampling import Drawing
from streams.adapters.engines.local_stops import Stops

CHUNK = 256
"""Tokens of a prompt that are read at once: within a second or so of a small model. Meanwhile no
other answer gets a token, and no abort is heeded."""
CLOSED = "the engine is closed"

Tell = Callable[[Tokens | EngineError], None]


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One answer."""

    ids: list[int]
    """The prompt, then what was sampled."""
    drawing: Drawing
    stops: Stops
    tokens_max: int
    tell: Tell
    """Called in the thread."""
    echo: bool = False
    cache: Cache | None = None
    read: int = 0
    """How many of the ids the cache has."""
    sampled: int = 0
    stopped: str | None = None
    """Why, if somebody wants it to stop."""

    def stop(self, why: str) -> None:
        self.stopped = self.stopped or why

    def forget(self) -> None:
        """What was read was read with other weights."""
        self.cache, self.read = None, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Other weights."""

    weights: Weights
    version: int
    label: str | None
    done: Callable[[EngineError | None], None]


class Worker:
    """A model and the thread that it computes in."""

    def __init__(
        self, model: LocalModel, version: int, *, running_max: int, waiting_max: int
    ) -> None:
        """So many answers side by side, each with its cache; so many more wait."""
        self._model = model
        self._version = version
        self._label: str | None = None
        self._running_max, self._waiting_max = running_max, waiting_max
        self._running: list[Job] = []
        self._waiting: deque[Job] = deque()
        self._updates: deque[Update] = deque()
        self._closed = False
        self._wake = threading.Condition()
        # A daemon: a process that ends does not wait for a pass over a long prompt.
        self._thread = threading.Thread(target=self._work, name="local engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    def submit(self, job: Job) -> None:
        """Begin it, or let it wait.

        Raises:
            EngineError: too many wait, or the engine is closed.
        """
        with self._wake:
            if self._closed:
                raise EngineError(CLOSED)
            if len(self._waiting) >= self._waiting_max:
                raise EngineError(f"{self._waiting_max} answers wait already")
            self._waiting.append(job)
            self._wake.notify()

    def update(self, update: Update) -> None:
        """Take other weights before the next step; `done` is called in the thread."""
        with self._wake:
            if self._closed:
                raise EngineError(CLOSED)
            self._updates.append(update)
            self._wake.notify()

    def close(self, patience_s: float) -> None:
        """Stop everything; returns when the thread has ended, or after that time."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(patience_s)

    def _work(self) -> None:
        while self._next_round():
            while self._updates:
                self._replace(self._updates.popleft())
            for job in list(self._running):
                if not self._goes_on(job):
                    self._running.remove(job)
        for job in [*self._running, *self._waiting]:
            job.tell(Tokens(finish="abort", stop_reason=CLOSED))
        for update in self._updates:
            update.done(EngineError(CLOSED))

    def _next_round(self) -> bool:
        """Wait for something to do and let in who waits; whether the engine is still open."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._closed or self._updates or self._running or self._waiting
            )
            for job in [job for job in self._waiting if job.stopped]:
                self._waiting.remove(job)
                job.tell(Tokens(finish="abort", stop_reason=job.stopped))
            while self._waiting and len(self._running) < self._running_max:
                self._running.append(self._waiting.popleft())
            return not self._closed

    def _replace(self, update: Update) -> None:
        try:
            misfit = self._model.misfit(update.weights)
            if misfit is None:
                self._model.replace(update.weights)
        except Exception as error:
            misfit = f"{type(error).__name__}: {error}"
        if misfit is not None:
            update.done(EngineError(f"weights {update.version}: {misfit}", retryable=False))
            return
        self._version, self._label = update.version, update.label
        for job in self._running:
            job.forget()
        update.done(None)

    def _goes_on(self, job: Job) -> bool:
        """One step, and what came of it told; whether another follows."""
        try:
            tokens = self._step(job)
        except EngineError as error:
            job.tell(error)
            return False
        except Exception as error:
            # Out of memory, say: it costs this answer alone.
            job.tell(EngineError(f"{type(error).__name__}: {error}"))
            return False
        if tokens is None:
            return True
        job.tell(tokens)
        return tokens.finish is None

    def _step(self, job: Job) -> Tokens | None:
        """A token or the end; None: some more of the prompt was read."""
        if job.stopped:
            return Tokens(finish="abort", stop_reason=job.stopped)
        if job.sampled >= job.tokens_max:
            return Tokens(finish="length")
        chunk = job.ids[job.read : job.read + CHUNK]
        scores, job.cache = self._model.read(chunk, job.cache)
        job.read += len(chunk)
        if job.read < len(job.ids):
            return None
        prompt = tuple(job.ids) if job.echo and not job.sampled else None
        token, logprob = job.drawing.draw(scores)
        job.ids.append(token)
        job.sampled += 1
        reason = job.stops.met(token)
        finish: Finish | None = "stop" if reason is not None else None
        if finish is None and job.sampled >= job.tokens_max:
            finish = "length"
        return Tokens(
            ids=(token,),
            logprobs=(logprob,),
            weight_version=self._version,
            weight_label=self._label,
            finish=finish,
            stop_reason=reason,
            prompt_ids=prompt,
        )
