"""What Claude Code does to its history, a scene each."""

from collections.abc import Sequence
from typing import Any

from streams.adapters.engines.scripted import Rule
from tests.clients.claude_code import ClaudeCode
from tests.clients.installing import Programs
from tests.clients.running import BASE_URL
from tests.clients.scene import Scene, Seen, call, refusals, says
from tests.clients.wire import Fault, Wire

SUMMARY_ASKED = "followed by a <summary> block"
SUMMARY = "<analysis>Short.</analysis>\n<summary>Much was counted.</summary>"
SMALL = ["--bare", "--tools", "Bash", "--system-prompt", "You are an agent."]


def bash(command: str) -> dict[str, Any]:
    return call("Bash", description="Run it", command=command)


def echoes(seen: Seen, tool: str) -> list[dict[str, Any]]:
    """The arguments of a tool's calls as the last request has them."""
    messages = seen.wire.calls[-1].request["messages"]
    blocks = [b for m in messages if m["role"] == "assistant" for b in m["content"]]
    return [b["input"] for b in blocks if b["type"] == "tool_use" and b["name"] == tool]


class ClaudeScene(Scene):
    """One session of Claude Code."""

    client = "Claude Code"

    async def play(self, programs: Programs, wire: Wire, key: str) -> None:
        await self.act(ClaudeCode(programs.claude, self.folder, wire, key))

    async def act(self, agent: ClaudeCode) -> None:
        (await agent.ask("Do the task.")).assert_ok()


class Loop(ClaudeScene):
    """Write, Edit and Bash come back as the client spells them; thinking comes back as it was."""

    def answers(self) -> Sequence[Rule]:
        path = str(self.work / "a.txt")
        edit = call("Edit", file_path=path, old_string="beta", new_string="gamma  \ndelta")
        shown = {"description": "Show it", "timeout": 5000.0, "command": "cat a.txt"}
        return [
            says(
                "I write the file. ",
                call("Write", content="alpha  \nbeta\t\n", file_path=path),
                thinking="First the file.",
            ),
            says("", edit, thinking="Now a word of it."),
            says("  ", call("Bash", **shown), thinking="Did it work?"),
            says("All done.", thinking="It did."),
        ]

    def check(self, seen: Seen) -> None:
        assert (self.work / "a.txt").read_text() == "alpha\ngamma\ndelta\n"
        (write,), (edit,), (shown,) = (echoes(seen, name) for name in ("Write", "Edit", "Bash"))
        assert list(write) == ["file_path", "content"]
        assert write["content"] == "alpha\nbeta\n"
        assert (edit["replace_all"], edit["new_string"]) == (False, "gamma\ndelta")
        assert list(shown) == ["command", "description", "timeout"]
        assert type(shown["timeout"]) is int
        messages = seen.wire.calls[-1].request["messages"]
        blocks = [b for m in messages if m["role"] == "assistant" for b in m["content"]]
        thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
        assert thoughts == ["First the file.", "Now a word of it.", "Did it work?"]
        assert len(seen.wire.exchanges) == 4
        assert seen.attached == ["root", "extend", "extend", "extend"]
        assert len(seen.outcome.samples) == 1


class Resumed(ClaudeScene):
    """`--resume` goes on from the same tokens; the key stands in the path."""

    async def play(self, programs: Programs, wire: Wire, key: str) -> None:
        agent = ClaudeCode(programs.claude, self.folder, wire, "none")
        for prompt in ("Do the task.", "And another.", "Thanks."):
            (await agent.ask(prompt, base_url=f"{BASE_URL}/s/{key}")).assert_ok()

    def answers(self) -> Sequence[Rule]:
        return [
            says("", bash("echo one"), thinking="One."),
            says("One is done."),
            says("", bash("echo two")),
            says("Two as well.", thinking="Two."),
            says("You are welcome."),
        ]

    def check(self, seen: Seen) -> None:
        sessions = {one.headers["X-Claude-Code-Session-Id"] for one in seen.wire.calls}
        assert len(sessions) == 1
        assert seen.attached == ["root", *["extend"] * 4]
        assert len(seen.outcome.samples) == 1


class SystemInTheMiddle(ClaudeScene):
    """A change of directory is told by a system message between the turns."""

    def answers(self) -> Sequence[Rule]:
        return [
            says("", bash("mkdir sub && cd sub && pwd")),
            says("", bash("pwd"), thinking="Where am I?"),
            says("In sub."),
        ]

    def check(self, seen: Seen) -> None:
        messages = seen.wire.calls[-1].request["messages"]
        roles = [message["role"] for message in messages]
        assert roles == ["user", "system", "assistant", "user", "system", "assistant", "user"]
        assert seen.attached == ["root", "extend", "extend"]
        assert len(seen.outcome.samples) == 1


class ToolSearch(ClaudeScene):
    """A tool that is found by search makes the list of tools grow, and the prompt not."""

    def answers(self) -> Sequence[Rule]:
        path = str(self.work / "a.ipynb")
        return [
            says("", call("ToolSearch", query="select:NotebookEdit,WebFetch", max_results=5)),
            says("", call("NotebookEdit", notebook_path=path, new_source="1")),
            says("There is none.", thinking="No such file."),
        ]

    def check(self, seen: Seen) -> None:
        first, *_, last = (one.request["tools"] for one in seen.wire.calls)
        new = {tool["name"] for tool in last} - {tool["name"] for tool in first}
        assert new == {"NotebookEdit", "WebFetch"}
        assert "tool_reference" in seen.wire.calls[1].body.decode()
        assert seen.attached == ["root", "extend", "extend"]
        assert len(seen.outcome.samples) == 1


class TwoSubagents(ClaudeScene):
    """Two agents at once, each in a history of its own."""

    def answers(self) -> Sequence[Rule]:
        one, two = (
            call("Agent", description=f"Say {n}", prompt=f"SAY {n}", run_in_background=False)
            for n in ("ONE", "TWO")
        )
        return [
            says("", one, two, thinking="Two at once.", contains="Do the task."),
            says("Both are done.", contains="Do the task."),
            *(
                rule
                for n in ("ONE", "TWO")
                for rule in (
                    says("", bash(f"sleep 1; echo {n}"), thinking=n, contains=f"SAY {n}"),
                    says(f"{n} it is.", contains=f"SAY {n}"),
                )
            ),
        ]

    def check(self, seen: Seen) -> None:
        agents: dict[str, list[float]] = {}
        for one in seen.wire.calls:
            agent = one.headers.get("x-claude-code-agent-id", "")
            agents.setdefault(agent, []).append(one.began_s)
        assert len(agents) == 3
        (begins_1, ends_1), (begins_2, ends_2) = (t for agent, t in agents.items() if agent)
        assert max(begins_1, begins_2) < min(ends_1, ends_2)
        assert sorted(seen.attached) == [*["extend"] * 3, *["root"] * 3]
        assert len(seen.outcome.samples) == 3
        classes = [str(name) for name in seen.classes()]
        assert sorted(classes) == [*["main"] * 2, *["subagent"] * 4]


class Compaction(ClaudeScene):
    """A full context is summed up, and the last turn goes on below the summary."""

    async def act(self, agent: ClaudeCode) -> None:
        (await agent.ask("Do the task.", *SMALL, window=WINDOW)).assert_ok()

    def answers(self) -> Sequence[Rule]:
        return [
            says(SUMMARY, contains=SUMMARY_ASKED),
            says("", bash("seq 1 4000"), thinking="A lot."),
            says("", bash("echo more"), thinking="And more."),
            says("That was a lot."),
        ]

    def check(self, seen: Seen) -> None:
        assert seen.classes() == ["main", "main", "compaction", "main"]
        *_, before, asked, after = seen.wire.calls
        kept = seen.turn_of(before)
        assert kept not in seen.named_in(asked)
        assert kept in seen.named_in(after)
        assert seen.attached == ["root", "extend", "extend", "root"]
        assert len(seen.outcome.samples) == 3


class CutInsideABlock(ClaudeScene):
    """The client throws away what it has and asks again: the first answer is nobody's."""

    gap_ms = 100.0
    """Between the parts of an answer: it is still being sampled at the break."""

    def answers(self) -> Sequence[Rule]:
        return [
            says("", bash("echo one"), thinking="One."),
            says("This is a long answer that never ends, " * 3, gap_ms=self.gap_ms),
            says("", bash("echo two"), thinking="Once more."),
            says("Done."),
        ]

    async def act(self, agent: ClaudeCode) -> None:
        agent.wire.faults.append(Fault(on=lambda one: one.number == 1, cut=in_a_text))
        (await agent.ask("Do the task.")).assert_ok()

    def check(self, seen: Seen) -> None:
        _, cut, again, last = seen.wire.calls
        assert (cut.fault, cut.ended) == ("cut", False)
        assert cut.request == again.request
        assert seen.turn_of(again) in seen.named_in(last)
        assert len(seen.outcome.samples) == 1


class CutInsideABlockLate(CutInsideABlock):
    """The same, when the gateway has sent all of it and knows of no break."""

    gap_ms = 0.0


class CutBeforeTheEnd(ClaudeScene):
    """Every block arrives and the end does not: the client goes on all the same.

    If it has had the time to begin its tools; broken off at once, it asks again.
    """

    def answers(self) -> Sequence[Rule]:
        return [says("", bash("echo one"), thinking="One."), says("One it is.")]

    async def act(self, agent: ClaudeCode) -> None:
        fault = Fault(on=lambda _: True, cut=ends_the_second_block, pause_s=1.5)
        agent.wire.faults.append(fault)
        (await agent.ask("Do the task.")).assert_ok()

    def check(self, seen: Seen) -> None:
        first, second = seen.wire.calls
        assert (first.fault, first.ended) == ("cut", False)
        assert seen.turn_of(first) in seen.named_in(second)
        assert seen.attached == ["root", "extend"]
        assert len(seen.outcome.samples) == 1


class Refused(ClaudeScene):
    """A 429 and a 503 in the middle: the same body comes again, and nothing is sampled twice."""

    def answers(self) -> Sequence[Rule]:
        return [says("", bash("echo one")), says("One it is.", thinking="One.")]

    async def act(self, agent: ClaudeCode) -> None:
        agent.wire.faults += refusals()
        (await agent.ask("Do the task.")).assert_ok()

    def check(self, seen: Seen) -> None:
        assert [one.status for one in seen.wire.calls] == [200, 429, 503, 200]
        assert seen.attached == ["root", "extend"]
        assert len(seen.outcome.samples) == 1


def in_a_text(event: dict[str, Any]) -> bool:
    return bool(event.get("delta", {}).get("type") == "text_delta")


def ends_the_second_block(event: dict[str, Any]) -> bool:
    return event["type"] == "content_block_stop" and bool(event["index"] == 1)


WINDOW = 32_768
SCENES = (
    Loop,
    Resumed,
    SystemInTheMiddle,
    ToolSearch,
    TwoSubagents,
    Compaction,
    CutInsideABlock,
    CutInsideABlockLate,
    CutBeforeTheEnd,
    Refused,
)
