"""The mock engine, a process: the n-th request of a session gets the n-th answer of the script.

    POST /generate   ids and logprobs in one piece, as SGLang gives them; the request is kept
    POST /chat/...   a message with its ids, logprobs and the prompt's ids, as vLLM gives them
    POST anything    the answer of /generate; the request is not kept
    GET  /journal    what each session asked since the last look: count, digests of its prompts

It samples nothing and reads no request while the load runs, so it is the least an engine costs.

Invariant: digests are of the ids as they were received, taken after the load.
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from benchmarks.gateway_child import serve_until_told
from benchmarks.gateway_http import Serving, header
from benchmarks.gateway_script import Answer, Script

SESSION_HEADER = "x-session"
CHAT = "/chat/v1"
PROMPT_ID = 10_000


class Asked(msgspec.Struct):
    input_ids: list[int]


class Said(msgspec.Struct):
    """What a session asked, by session."""

    answered: dict[str, int]
    prompts: dict[str, list[str]]
    """The digest of each prompt, as a turn event has it."""


class Mock:
    """Answers, counts and keeps."""

    def __init__(self, answers: list[Answer], prompt_tokens: Sequence[int] = ()) -> None:
        """Every answer is written once, here."""
        self._answers = [answer_body(answer) for answer in answers]
        sizes = prompt_tokens or [0] * len(answers)
        self._chat_answers = list(map(chat_answer_body, answers, sizes))
        self._counts: dict[str, int] = defaultdict(int)
        self._kept: dict[str, list[bytes]] = defaultdict(list)

    def answer(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"GET /"):
            return self._journal() if head.startswith(b"GET /journal") else b"{}"
        session = header(head, SESSION_HEADER.encode())
        number = self._counts[session]
        self._counts[session] = number + 1
        if head.startswith(b"POST /generate"):
            self._kept[session].append(body)
        if head.startswith(b"POST /chat/"):
            return self._chat_answers[number % len(self._chat_answers)]
        return self._answers[number % len(self._answers)]

    def _journal(self) -> bytes:
        prompts = {session: list(map(digest, bodies)) for session, bodies in self._kept.items()}
        said = msgspec.json.encode(Said(dict(self._counts), prompts))
        self._counts.clear()
        self._kept.clear()
        return said


def answer_body(answer: Answer) -> bytes:
    triples = [
        [logprob, token, None] for logprob, token in zip(answer.logprobs, answer.ids, strict=True)
    ]
    meta = {
        "finish_reason": {"type": "stop"},
        "output_token_logprobs": triples,
        "weight_version": "1",
    }
    return msgspec.json.encode({"text": "", "output_ids": answer.ids, "meta_info": meta})


def chat_answer_body(answer: Answer, prompt_tokens: int) -> bytes:
    """What a chat API says that was asked for token ids and logprobs."""
    function = {"name": "search", "arguments": msgspec.json.encode(answer.arguments).decode()}
    message = {
        "role": "assistant",
        "content": answer.text,
        "reasoning_content": answer.reasoning,
        "tool_calls": [{"id": "call-0", "type": "function", "function": function}],
    }
    logprobs: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(answer.ids, answer.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": logprobs},
        "finish_reason": "tool_calls",
        "token_ids": answer.ids,
    }
    # Which ids they are does not matter, how many there are does.
    prompt_ids = [PROMPT_ID + number % 1000 for number in range(prompt_tokens)]
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(answer.ids)}
    whole = {"id": "chatcmpl-0", "object": "chat.completion", "choices": [choice], "usage": usage}
    return msgspec.json.encode({**whole, "prompt_token_ids": prompt_ids})


def digest(body: bytes) -> str:
    """The digest of a request's ids, as a turn event has it."""
    ids = np.asarray(msgspec.json.decode(body, type=Asked).input_ids, "<i4")
    return blake2b(ids.tobytes(), digest_size=16).hexdigest()


async def main() -> None:
    script = Script.load(Path(sys.argv[1]))
    mock = Mock(script.answers, script.prompt_tokens)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Serving(mock.answer), "127.0.0.1", 0)
    await serve_until_told(server.sockets[0].getsockname()[1])
    server.close()


if __name__ == "__main__":
    uvloop.run(main())
