"""A tool loop with the ids and spellings that the history tests share."""

from streams.adapters.dialects.calls import Message
from tests.adapters.gateway.prompts.prompt_setting import STOP, Session, call, result, said, user
from tests.drift.next_prompts import OPENING

NEXT = user("Go on.")
ONE = f"One.{STOP}"


def calling(number: int) -> str:
    arguments = f'{{"command": "ls {number}"}}'
    return f'<tool_call>\n{{"name":"bash","arguments":{arguments}}}\n</tool_call>{STOP}'


def called(number: int) -> Message:
    return said("", "", call(f"t{number}.0", command=f"ls {number}"))


def loop(session: Session, turns: int) -> list[Message]:
    """An agent that calls its tool that many times; the request that comes next."""
    request = list(OPENING)
    for number in range(1, turns + 1):
        session.turn(request, calling(number), called(number))
        request += [called(number), result(f"t{number}.0", f"result {number}")]
    return request
