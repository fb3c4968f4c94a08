"""Two rollouts of one group: an agent with one tool and the openai SDK, each with its reward.

    turnstream up --engine scripted:examples/rollout-script.json     or a model, by another --engine
    python examples/rollout.py URL CONTROL_KEY                       as `turnstream up` prints them

The agent knows nothing of Turnstream; it gets a base URL and a key. The task is a folder with a
fault in it, and the reward is whether its test passes at the end.
"""

import json
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import openai

from streams.adapters.client import Turnstream

ROLLOUTS = 2
TASK = "add(1, 2) gives -1. Find out why, mend it and run test.py."
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test.py": "from calc import add\n\nassert add(1, 2) == 3\nprint('passed')\n",
}
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def run(command: str, folder: Path) -> str:
    """What a command prints, and its exit code if it fails."""
    words = ["bash", "-c", command]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    failed = f"exit code {done.returncode}\n" if done.returncode else ""
    return f"{failed}{done.stdout}{done.stderr}".strip()


def agent(client: Any, folder: Path) -> None:
    """Call the model and its tool until it has no more calls to make."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You mend code with bash."},
        {"role": "user", "content": TASK},
    ]
    print(f"user   {TASK}")
    while True:
        reply = client.chat.completions.create(model="any", messages=messages, tools=[BASH])
        answer = reply.choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        if answer.content:
            print(f"model  {answer.content}")
        if not answer.tool_calls:
            return
        for call in answer.tool_calls:
            command = json.loads(call.function.arguments)["command"]
            result = run(command, folder)
            print(f"model  calls bash: {command}\ntool   {result.replace(chr(10), ' | ')}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def rollout(gateway: Turnstream, **fields: Any) -> None:
    """One session, in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in FILES.items():
            (folder / file).write_text(text)
        with gateway.session(**fields) as session:
            with openai.OpenAI(base_url=session.base_url, api_key=session.key) as client:
                agent(client, folder)
            reward = float(run("python3 test.py", folder) == "passed")
            session.reward(reward)
    print(f"reward {reward:g}, session {session.session_id}")


def main() -> None:
    """One group."""
    url, control_key = sys.argv[1:]
    group = {"run_id": "r1", "group_id": f"calc-{uuid.uuid4().hex[:8]}", "group_size": ROLLOUTS}
    gateway = Turnstream(url, control_key)
    for index in range(ROLLOUTS):
        rollout(gateway, rollout_index=index, **group)


if __name__ == "__main__":
    main()
