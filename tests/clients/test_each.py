"""Each client alone, a scene at a time: what it keeps of an answer trains, all of it."""

from pathlib import Path

import pytest

from tests.clients import claude_scenes, codex_scenes
from tests.clients.accounts import Account
from tests.clients.installing import Programs
from tests.clients.scene import Scene
from tests.clients.theatre import played_embedded

SCENES = [*claude_scenes.SCENES, *codex_scenes.SCENES]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: f"{scene.client}-{scene.__name__}")
def test_what_the_client_keeps_trains(
    scene: type[Scene], tmp_path: Path, clients: Programs, accounts: dict[str, Account]
) -> None:
    for name, told in played_embedded([scene(tmp_path)], tmp_path, clients).items():
        accounts.setdefault(name, Account()).add(told)
