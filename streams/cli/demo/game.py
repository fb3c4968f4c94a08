"""What `turnstream demo` plays: a game for a model, a script in the model's place, a tokenizer.

The agent thinks of a number, the model guesses. The agent is one of those that know nothing of
Turnstream: a base URL, a key, OpenAI's wire format. It also does two things that agents do and
that break naive recording: when it is in the second game it drops the oldest guess from what it
sends, and after a game it asks for a title, which is nobody's policy.

Invariant: nothing is fetched; the same script and the same tokenizer every time.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from streams.adapters.client import AsyncSession
from streams.adapters.engines.scripted.script import END_TOKEN, Rule, Script

NUMBER = 42
GUESSES = 3
RULES = "I think of a number from 1 to 100. Guess it; you have three guesses."
TITLE = "Name this game in two words."

_BEGIN_TOKEN = "<|im_start|>"
_TEMPLATE = (
    f"{{% for m in messages %}}{_BEGIN_TOKEN}{{{{ m.role }}}}\n{{{{ m.content }}}}{END_TOKEN}\n"
    f"{{% endfor %}}{{% if add_generation_prompt %}}{_BEGIN_TOKEN}assistant\n{{% endif %}}"
)
_VOCABULARY = 400

# Pieces are encoded each by itself: so a model samples, and so no tokenizer spells.
SCRIPT = Script(
    answers=(
        Rule(pieces=("Half", " of it", ": ", "5", "0.")),
        Rule(text="Lower: 40."),
        Rule(pieces=("Be", "tween", " them: ", "4", "2.")),
        Rule(text="Number guessing"),
        Rule(text="Half of it: 50."),
        Rule(text="Higher: 60."),
        Rule(text="Higher: 70."),
        Rule(text="Number guessing"),
    )
)

Say = Callable[[str], None]
Message = dict[str, str]


def write_tokenizer(folder: Path) -> Tokenizer:
    """A small tokenizer with a chat template, as a model's folder has them."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=_VOCABULARY,
        show_progress=False,
        special_tokens=[_BEGIN_TOKEN, END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    said = ["".join(rule.pieces or (rule.text or "",)) for rule in SCRIPT.answers]
    roles = ["system", "user", "assistant"]
    backend.train_from_iterator([RULES, TITLE, *said, *roles] * 2, trainer)
    whole: Any = PreTrainedTokenizerFast
    whole(tokenizer_object=backend, chat_template=_TEMPLATE, eos_token=END_TOKEN).save_pretrained(
        folder
    )
    return backend


async def play(http: httpx.AsyncClient, session: AsyncSession, *, forgets: bool, say: Say) -> float:
    """One game; its reward."""
    messages: list[Message] = [{"role": "user", "content": RULES}]
    say(f"agent  {RULES}")
    reward = 0.0
    for guess_number in range(1, GUESSES + 1):
        if forgets and guess_number == GUESSES:
            say("       (the agent drops the oldest guess from what it sends)")
            del messages[1:3]
        answer = await _ask(http, session, messages)
        messages.append({"role": "assistant", "content": answer})
        guess = int(re.findall(r"\d+", answer)[-1])
        reply = "Too high." if guess > NUMBER else "Too low." if guess < NUMBER else "Right!"
        say(f"model  {answer:<20} agent  {reply}")
        if guess == NUMBER:
            reward = 1.0
            break
        messages.append({"role": "user", "content": reply})
    title = [{"role": "user", "content": TITLE}]
    # Many harnesses tell such calls by a header of their own; where none does, their shape tells.
    await _ask(http, session, title, {"x-turnstream-request-class": "auxiliary"})
    return reward


async def _ask(
    http: httpx.AsyncClient,
    session: AsyncSession,
    messages: list[Message],
    headers: dict[str, str] | None = None,
) -> str:
    """A call of the model, as any client of that wire format makes it."""
    response = await http.post(
        f"{session.base_url}/chat/completions",
        headers={"authorization": f"Bearer {session.key}", **(headers or {})},
        json={"model": "any", "messages": messages},
    )
    response.raise_for_status()
    text: str = response.json()["choices"][0]["message"]["content"]
    return text
