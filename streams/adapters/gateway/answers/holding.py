r"""What of a text may be given to the client already: no stop string, no blanks at its ends.

    pushed   "Let me look.\n"   "<tool"            stop = ("<tools>",)
    given    "Let me look."      ""                 the newline and "<tool" may have to go

Clients that echo a text trim it, some of them, so what is given and recorded has no blanks at
its ends; blanks inside come out as soon as something follows them. A stop string is cut off with
everything after it. The one that is complete first counts, as it does in an engine, which looks
after every token; of two that are complete at once, the longer.

Invariant: the same text pushed in other parts gives the same whole, and nothing is taken back.
"""


class Outlet:
    """One text on its way to the client."""

    def __init__(self, stop: tuple[str, ...], *, blanks_lead: bool = False) -> None:
        """Whether the text goes on from something, so that blanks at its start belong to it."""
        self._stop = tuple(text for text in stop if text)
        self._reach = max((len(text) for text in self._stop), default=1) - 1
        """How much of a stop string can stand at the end without being complete."""
        self._held = ""
        """The longest end of the text that a stop string may begin with."""
        self._blank = ""
        """Blanks before it, given once something follows."""
        self._started = blanks_lead
        self._given: list[str] = []
        self.passed = 0
        """How many characters stand before a stop string, given, held and blank ones."""
        self.stop_string: str | None = None
        """The one that was met."""

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    def push(self, text: str) -> str:
        """More of the text; what can be given of it."""
        if self.stopped or not text:
            return ""
        pending = self._held + text
        self.passed += len(text)
        met = self._stop_in(pending) if self._stop else None
        if met is not None:
            cut, self.stop_string = met
            self.passed -= len(pending) - cut
            self._held = ""
            return self._give(pending[:cut])
        kept = len(pending) - self._unsure(pending)
        self._held = pending[kept:]
        return self._give(pending[:kept])

    def break_off(self) -> str:
        """Something else stands here: what was held is no part of a stop string."""
        held, self._held = self._held, ""
        return self._give(held)

    @property
    def whole(self) -> str:
        """All that was given."""
        return "".join(self._given)

    def _stop_in(self, pending: str) -> tuple[int, str] | None:
        """Where the stop string starts that is complete first, and which; None if none is."""
        found = [(pending.find(text), text) for text in self._stop]
        ends = [(start + len(text), start, text) for start, text in found if start >= 0]
        return min(ends)[1:] if ends else None

    def _unsure(self, pending: str) -> int:
        """How many characters at the end may belong to a stop string."""
        for size in range(min(self._reach, len(pending)), 0, -1):
            end = pending[-size:]
            if any(text.startswith(end) for text in self._stop):
                return size
        return 0

    def _give(self, text: str) -> str:
        if not text:
            return ""
        body = (self._blank + text).rstrip()
        self._blank = (self._blank + text)[len(body) :]
        if not self._started:
            body = body.lstrip()
            self._started = bool(body)
        if body:
            self._given.append(body)
        return body
