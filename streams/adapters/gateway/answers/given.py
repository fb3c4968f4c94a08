"""What the client was given of an answer so far, and what of it is ready to be given now.

Invariant: `reasoning`, `text` and `calls` are the pieces ever taken and those ready, joined.
"""

from collections.abc import Callable

from streams.adapters.dialects.calls import Message, Piece, Reasoning, Text, ToolCall
from streams.adapters.gateway.answers.grammar import ReadCall
from streams.adapters.gateway.answers.holding import Outlet


class Given:
    """One answer, as far as it goes."""

    def __init__(
        self, stop: tuple[str, ...], mint: Callable[[int], str], *, blanks_lead: bool
    ) -> None:
        """Whether the text goes on from something, so that blanks at its start belong to it."""
        self._mint = mint
        self._thought = Outlet(stop)
        self._said = Outlet(stop, blanks_lead=blanks_lead)
        self._ready: list[Piece] = []
        self.calls: list[ReadCall] = []
        self.tool_calls: list[ToolCall] = []

    @property
    def reasoning(self) -> str:
        return self._thought.whole

    @property
    def text(self) -> str:
        return self._said.whole

    @property
    def stopped(self) -> bool:
        """A stop string was met: the answer ends before it."""
        return self._thought.stopped or self._said.stopped

    @property
    def stop_string(self) -> str | None:
        """The one that was met."""
        return self._thought.stop_string or self._said.stop_string

    @property
    def thought_stopped(self) -> bool:
        """It was met while thinking, so that whatever follows is thinking too."""
        return self._thought.stopped

    @property
    def text_passed(self) -> int:
        """Characters of text before any stop string, those that wait included."""
        return self._said.passed

    def think(self, text: str) -> None:
        self._add(Reasoning(self._thought.push(text)))

    def end_thought(self) -> None:
        self._add(Reasoning(self._thought.break_off()))

    def speak(self, text: str) -> None:
        self._add(Text(self._said.push(text)))

    def end_speech(self) -> None:
        """Something else comes, or nothing; blanks wait on."""
        self._add(Text(self._said.break_off()))

    def call(self, call: ReadCall) -> None:
        index = len(self.calls)
        given = ToolCall(index, self._mint(index), call.name, call.arguments)
        self.calls.append(call)
        self.tool_calls.append(given)
        self._ready.append(given)

    def take(self) -> list[Piece]:
        """What is ready; it is given then."""
        ready, self._ready = self._ready, []
        return ready

    def message(self) -> Message:
        """The answer as it is recorded and rendered again."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": given.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.values},
                }
                for given, call in zip(self.tool_calls, self.calls, strict=True)
            ]
        return message

    def _add(self, piece: Reasoning | Text) -> None:
        """Behind the last piece, or as one with it."""
        if not piece.text:
            return
        last = self._ready[-1] if self._ready else None
        if isinstance(last, Reasoning | Text) and type(last) is type(piece):
            self._ready[-1] = type(piece)(last.text + piece.text)
        else:
            self._ready.append(piece)
