"""What Codex does to its history, a scene each."""

from collections.abc import Sequence
from typing import Any

from streams.adapters.engines.scripted import Rule
from tests.clients.codex import Codex
from tests.clients.installing import Programs
from tests.clients.running import BASE_URL
from tests.clients.scene import Scene, Seen, call, refusals, says
from tests.clients.wire import Fault, Wire

SUMMARY_ASKED = "seamlessly continue the work"
NAMESPACE = "multi_agent_v1"


def run(command: str) -> dict[str, Any]:
    return call("exec_command", cmd=command)


def ends_a_call(event: dict[str, Any]) -> bool:
    whole = event["type"] == "response.output_item.done"
    return whole and bool(event["item"]["type"] == "function_call")


class CodexScene(Scene):
    """One session of Codex."""

    client = "Codex"

    async def play(self, programs: Programs, wire: Wire, key: str) -> None:
        await self.act(Codex(programs.codex, self.folder, wire, key))

    async def act(self, agent: Codex) -> None:
        (await agent.ask("Do the task.")).assert_ok()


class Loop(CodexScene):
    """Reasoning, text, one call, two at once."""

    def answers(self) -> Sequence[Rule]:
        return [
            says("I look. ", run("printf 'a\\n' > a.txt; ls"), thinking="Look first."),
            says("", run("cat a.txt"), run("wc -l a.txt")),
            says("It has one line.", thinking="One."),
        ]

    def check(self, seen: Seen) -> None:
        assert (self.work / "a.txt").read_text() == "a\n"
        assert len(seen.wire.exchanges) == 3
        assert seen.attached == ["root", "extend", "extend"]
        assert len(seen.outcome.samples) == 1


class Resumed(CodexScene):
    """`exec resume` goes on from the same tokens; the key stands in the path."""

    async def play(self, programs: Programs, wire: Wire, key: str) -> None:
        agent = Codex(programs.codex, self.folder, wire, "none", base_url=f"{BASE_URL}/s/{key}")
        for prompt in ("Do the task.", "And another.", "Thanks."):
            (await agent.ask(prompt)).assert_ok()

    def answers(self) -> Sequence[Rule]:
        return [
            says("", run("echo one"), thinking="One."),
            says("One is done."),
            says("", run("echo two")),
            says("Two as well.", thinking="Two."),
            says("You are welcome."),
        ]

    def check(self, seen: Seen) -> None:
        assert len({one.headers["thread-id"] for one in seen.wire.calls}) == 1
        assert seen.attached == ["root", *["extend"] * 4]
        assert len(seen.outcome.samples) == 1


class Subagent(CodexScene):
    """A spawned agent has a history of its own; its end comes to the parent as a user's words."""

    def answers(self) -> Sequence[Rule]:
        wait = call("exec_command", cmd="sleep 4; echo waited", yield_time_ms=20_000)
        return [
            says("", call(f"{NAMESPACE}__spawn_agent", message="SAY ONE"), contains="Do the task."),
            says("", wait, contains="Do the task.", thinking="Wait."),
            says("The agent is done.", contains="Do the task."),
            says("", run("echo one"), contains="SAY ONE", thinking="One."),
            says("ONE it is.", contains="SAY ONE"),
        ]

    def check(self, seen: Seen) -> None:
        assert len({one.headers["thread-id"] for one in seen.wire.calls}) == 2
        assert "subagent_notification" in seen.wire.calls[-1].body.decode()
        assert sorted(seen.attached) == [*["extend"] * 3, *["root"] * 2]
        assert len(seen.outcome.samples) == 2
        assert sum(name == "subagent" for name in seen.classes()) == 2


class Compaction(CodexScene):
    """The request for a summary has no tools; nothing but the summary survives it."""

    async def act(self, agent: Codex) -> None:
        (await agent.ask("Do the task.", window=20_000)).assert_ok()

    def answers(self) -> Sequence[Rule]:
        return [
            says("Summed up.", contains=SUMMARY_ASKED),
            says("", run("echo short"), thinking="A little."),
            says("", run("seq 1 4000"), thinking="A lot."),
            says("", run("echo more"), thinking="More."),
            says("That was a lot."),
        ]

    def check(self, seen: Seen) -> None:
        asked = [one for one in seen.wire.calls if not one.request["tools"]]
        assert len(asked) == 1
        assert [name for name in seen.classes() if name] == ["compaction"]
        assert seen.named_in(seen.wire.calls[-1]) == set()
        assert seen.attached == ["root", "extend", "extend", "fork", "root"]


class BrokenStream(CodexScene):
    """The stream breaks after the first of two calls; the client keeps it and goes on."""

    gap_ms = 150.0
    """Between the parts of the answer: the second call is still being sampled at the break."""

    def answers(self) -> Sequence[Rule]:
        two = run("echo first"), run("echo second")
        return [
            says("", *two, thinking="Two.", gap_ms=self.gap_ms),
            says("Only the first."),
        ]

    async def act(self, agent: Codex) -> None:
        agent.wire.faults.append(Fault(on=lambda _: True, cut=ends_a_call))
        (await agent.ask("Do the task.")).assert_ok()

    def check(self, seen: Seen) -> None:
        first, second = seen.wire.calls
        assert (first.fault, first.ended) == ("cut", False)
        assert seen.turn_of(first) in seen.named_in(second)
        assert "echo second" not in second.body.decode()
        assert seen.attached[-1] == "extend"
        assert len(seen.outcome.samples) == 1


class BrokenLate(BrokenStream):
    """The same, when the gateway has sent all of it and knows of no break."""

    gap_ms = 0.0


class CutBeforeTheEnd(CodexScene):
    """Every item arrives and the end does not: the client goes on all the same."""

    def answers(self) -> Sequence[Rule]:
        return [says("", run("echo one"), thinking="One."), says("One it is.")]

    async def act(self, agent: Codex) -> None:
        agent.wire.faults.append(Fault(on=lambda _: True, cut=ends_a_call))
        (await agent.ask("Do the task.")).assert_ok()

    def check(self, seen: Seen) -> None:
        first, second = seen.wire.calls
        assert (first.fault, first.ended) == ("cut", False)
        assert seen.turn_of(first) in seen.named_in(second)
        assert seen.attached == ["root", "extend"]
        assert len(seen.outcome.samples) == 1


class Refused(CodexScene):
    """A 429 and a 503 in the middle: the same body comes again, and nothing is sampled twice."""

    def answers(self) -> Sequence[Rule]:
        return [says("", run("echo one")), says("One it is.", thinking="One.")]

    async def act(self, agent: Codex) -> None:
        agent.wire.faults += refusals()
        (await agent.ask("Do the task.")).assert_ok()

    def check(self, seen: Seen) -> None:
        assert [one.status for one in seen.wire.calls] == [200, 429, 503, 200]
        assert seen.attached == ["root", "extend"]
        assert len(seen.outcome.samples) == 1


class Overflow(CodexScene):
    """`context_length_exceeded` ends the turn; the next one begins with a compaction."""

    async def act(self, agent: Codex) -> None:
        assert (await agent.ask("Do the task.", window=30_000)).code == 1
        (await agent.ask("Go on.", window=30_000)).assert_ok()

    def answers(self) -> Sequence[Rule]:
        return [
            says("Summed up.", contains=SUMMARY_ASKED),
            says("", run("seq 1 4000"), run("seq 1 4000"), thinking="A lot."),
            says("I go on."),
        ]

    def check(self, seen: Seen) -> None:
        first, refused, asked, last = seen.wire.calls
        assert refused.events[-1]["response"]["error"]["code"] == "context_length_exceeded"
        assert not asked.request["tools"]
        assert last.request["tools"] == first.request["tools"]
        assert seen.attached == ["root", "fork", "root"]


SCENES = (
    Loop,
    Resumed,
    Subagent,
    Compaction,
    Overflow,
    BrokenStream,
    BrokenLate,
    CutBeforeTheEnd,
    Refused,
)
