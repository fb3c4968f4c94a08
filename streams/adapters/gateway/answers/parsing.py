"""Sampled tokens become pieces of an answer while they arrive, and the whole answer at the end.

    <think> I should look. </think> Let me see. <tool_call> {"name": ...} </tool_call> <|im_end|>
    ------- reasoning ------------- text ------ a call, given when it closes -------- never given

Markers count by token id (`grammar`). An answer may open with one region of thinking, or go on
with one that its prompt opened; later thinking marks are text. A call that cannot be run (bad
JSON, cut off) is given as the text it is. A call inside thinking that is still open waits: if the
thinking closes behind it, it was a draft, else it ended the thinking. Which of the two it was the
family's reader says, and it is asked at the end whether it sees the calls that were given.

Invariant: the pieces given by `feed` and `finish`, joined, are the reasoning, the text and the
calls of the final answer, whatever was sampled and however the ids were divided.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from streams.adapters.dialects.calls import Call, FinishReason, Message, Piece, ToolCall
from streams.adapters.engines.interface import Finish
from streams.adapters.gateway.answers.given import Given
from streams.adapters.gateway.answers.grammar import CALLS_MAX, Grammar, usable


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """An answer, whole."""

    reasoning: str
    text: str
    tool_calls: tuple[ToolCall, ...]
    ill_formed: bool
    """A call that cannot be run stands in the text."""
    disagreed: bool
    """The reader sees other calls in the whole answer than were given; what was given stands."""
    response_message: Message
    finish_reason: FinishReason
    reasoning_tokens: int
    """Sampled while thinking, the markers included; 0 for answers that are only read whole."""
    stop_string: str | None
    """The one of the call's that it ends before."""
    pieces: tuple[Piece, ...]
    """What was not yet given."""


class _State(Enum):
    FRESH = auto()
    """Nothing but blanks so far: thinking may begin."""
    THINKING = auto()
    UNDECIDED = auto()
    """A call was opened while thinking; everything since waits."""
    SPEAKING = auto()
    CALLING = auto()
    OVER = auto()
    """After an end token or a stop string: what follows is recorded and not given."""


class AnswerParser:
    """One answer on its way."""

    def __init__(
        self,
        grammar: Grammar,
        call: Call,
        *,
        mint: Callable[[int], str],
        prompt_tail_ids: Iterable[int],
    ) -> None:
        """Begin where the prompt ends.

        Args:
            grammar: what the tokens mean.
            call: its tools, its stop strings, and whether it begins the answer itself.
            mint: the id of the n-th tool call, from 0.
            prompt_tail_ids: the end of the prompt, back to its last assistant header.
        """
        self._grammar = grammar
        # A client that offers no tools cannot run one: then the markers are text like any other.
        self._tools = () if call.tool_choice == "none" else call.callable_tools
        self._tail = [int(token) for token in prompt_tail_ids]
        nothing: tuple[int | None, int | None] = (None, None)
        self._think_open, self._think_close = grammar.think or nothing
        self._call_open, self._call_close = (grammar.call if self._tools else None) or nothing
        markers = (self._think_open, self._think_close, self._call_open, self._call_close)
        self._special = grammar.stop_ids | {token for token in markers if token is not None}
        self._decoder = grammar.vocabulary.stream()
        thinks = self._opened_in_prompt()
        speaks = _State.SPEAKING if call.prefill else _State.FRESH
        self._state = _State.THINKING if thinks else speaks
        self._given = Given(call.stop, mint, blanks_lead=call.prefill and not thinks)
        self._ids: list[int] = []
        self._block: list[int] = []
        """The ids of the call under way, or of all that waits."""
        self._ill_formed = False
        self._reasoning_tokens = 0

    def feed(self, ids: Iterable[int]) -> list[Piece]:
        """More sampled ids; what they let be given."""
        more = list(ids)
        if self._grammar.whole_only:
            self._ids += more
        else:
            self._walk(more, record=True)
        return self._given.take()

    @property
    def stopped(self) -> bool:
        """A stop string of the call's was met."""
        return self._given.stopped

    def finish(self, finish: Finish) -> Parsed:
        """Nothing more comes."""
        if self._grammar.whole_only:
            self._read_whole()
        self._end()
        calls = tuple(self._given.tool_calls)
        return Parsed(
            reasoning=self._given.reasoning,
            text=self._given.text,
            tool_calls=calls,
            ill_formed=self._ill_formed,
            disagreed=not self._agreed(),
            response_message=self._given.message(),
            finish_reason="tool_calls" if calls and finish != "abort" else finish,
            reasoning_tokens=self._reasoning_tokens,
            stop_string=self._given.stop_string,
            pieces=tuple(self._given.take()),
        )

    def _walk(self, ids: Sequence[int], *, record: bool) -> None:
        start = 0
        for at, token in enumerate(ids):
            if token not in self._special:
                continue
            if record:
                # Never ahead of the walk: the reader is asked about the ids so far.
                self._ids += ids[start : at + 1]
            self._ordinary(ids[start:at])
            self._marker(token)
            start = at + 1
        if record:
            self._ids += ids[start:]
        self._ordinary(ids[start:])

    def _ordinary(self, ids: Sequence[int]) -> None:
        if not ids:
            return
        if self._state is _State.OVER:
            self._reasoning_tokens += len(ids) if self._given.thought_stopped else 0
        elif self._state in (_State.CALLING, _State.UNDECIDED):
            self._block += ids
        elif self._state is _State.THINKING:
            self._reasoning_tokens += len(ids)
            self._think(self._decoder.push(ids))
        else:
            self._speak(self._decoder.push(ids))

    def _marker(self, token: int) -> None:
        if self._state is _State.OVER:
            self._ordinary([token])
        elif token in self._grammar.stop_ids:
            self._end()
        elif self._state is _State.THINKING:
            self._marker_in_thought(token)
        elif self._state is _State.UNDECIDED:
            self._block.append(token)
            if token == self._think_close:
                self._decide()
        elif self._state is _State.CALLING:
            self._block.append(token)
            if token == self._call_close:
                self._close_call()
        else:
            self._marker_in_speech(token)

    def _marker_in_thought(self, token: int) -> None:
        if token == self._call_open:
            self._think(self._decoder.flush())
            self._open_block(_State.UNDECIDED, token)
            return
        self._reasoning_tokens += 1
        if token == self._think_close:
            self._end_thought()
        elif token != self._think_open:
            self._think(self._decoder.push([token]))

    def _marker_in_speech(self, token: int) -> None:
        if token == self._call_open:
            self._speak(self._decoder.flush())
            self._given.end_speech()
            self._open_block(_State.CALLING, token)
            return
        if token == self._think_open and self._state is _State.FRESH:
            # Bytes that are no character were said before the thought.
            self._speak(self._decoder.flush())
            if self._state is _State.FRESH:
                self._state = _State.THINKING
                self._reasoning_tokens += 1
                return
        self._ordinary([token])

    def _open_block(self, state: _State, token: int) -> None:
        if self._state is not _State.OVER:
            self._state, self._block = state, [token]

    def _close_call(self) -> None:
        block, self._block = self._block, []
        self._state = _State.SPEAKING
        calls = self._grammar.read(block, self._tools)
        if calls is None or len(self._given.calls) + len(calls) > CALLS_MAX:
            calls = None
            self._speak_broken(self._grammar.vocabulary.text(block))
        for call in calls or ():
            self._given.call(call)

    def _decide(self) -> None:
        """Whether what waits is a draft within the thinking or the calls that ended it."""
        block, self._block = self._block, []
        closed = block[-1] == self._think_close
        kept = block[:-1] if closed else block
        seen = self._grammar.see(self._ids, self._tools, self._tail)
        if seen.tool_calls if seen else not closed:
            self._end_thought()
            self._walk(kept, record=False)
            return
        self._state = _State.THINKING
        self._reasoning_tokens += len(block)
        self._think(self._decoder.push([token for token in kept if token != self._think_open]))
        if closed:
            self._end_thought()

    def _end_thought(self) -> None:
        self._state = _State.SPEAKING
        self._think(self._decoder.flush())
        self._given.end_thought()

    def _end(self) -> None:
        """What was sampled so far is all there is to give."""
        if self._state is _State.UNDECIDED:
            self._decide()
        if self._state is _State.THINKING:
            self._end_thought()
        if self._state is _State.CALLING:
            self._state = _State.SPEAKING
            self._speak_broken(self._grammar.vocabulary.text(self._block))
        if self._state is not _State.OVER:
            self._speak(self._decoder.flush())
            self._given.end_speech()
        self._state = _State.OVER

    def _read_whole(self) -> None:
        """The reader's view of a family that is not read while it streams."""
        self._state = _State.SPEAKING
        seen = self._grammar.see(self._ids, self._tools, self._tail)
        if seen is None:
            ends = (at for at, token in enumerate(self._ids) if token in self._grammar.stop_ids)
            self._speak(self._grammar.vocabulary.text(self._ids[: next(ends, None)]))
            return
        self._think(seen.reasoning_content or "")
        self._given.end_thought()
        self._speak(seen.content)
        for attempt in seen.tool_calls:
            if self._state is _State.OVER:
                break
            room = bool(self._tools) and len(self._given.calls) < CALLS_MAX
            call = usable(attempt) if room else None
            if call is None:
                self._speak_broken(f"\n{attempt.raw}")
            else:
                self._given.call(call)

    def _agreed(self) -> bool:
        """Whether the reader sees the calls that were given."""
        if self._call_open not in self._ids or self._given.stopped or self._grammar.whole_only:
            return True
        seen = self._grammar.see(self._ids, self._tools, self._tail)
        calls = [usable(attempt) for attempt in seen.tool_calls] if seen else []
        return [call for call in calls if call is not None][:CALLS_MAX] == self._given.calls

    def _think(self, text: str) -> None:
        self._given.think(text)
        if self._given.stopped:
            self._state = _State.OVER

    def _speak(self, text: str) -> None:
        if self._state is _State.OVER:
            return
        if self._state is _State.FRESH and text.strip():
            self._state = _State.SPEAKING
        self._given.speak(text)
        if self._given.stopped:
            self._state = _State.OVER

    def _speak_broken(self, text: str) -> None:
        before = self._given.text_passed
        self._speak(text)
        # Where a stop string of the client's cut it off, none of it is there to be ill-formed.
        self._ill_formed |= bool(self._tools) and self._given.text_passed > before

    def _opened_in_prompt(self) -> bool:
        """Whether the prompt ends inside of thinking."""
        for token in reversed(self._tail):
            if token == self._think_open:
                return True
            if token == self._think_close or token in self._grammar.stop_ids:
                return False
        return False
