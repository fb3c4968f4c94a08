"""The core gives the oracle's samples for random sessions, whatever happens in them."""

from collections import Counter

import pytest
from hypothesis import given, settings

from tests.harness import linearized
from tests.oracle.agreement import difference
from tests.oracle.classes import CLASSES, classes
from tests.oracle.seed_and_slime import PROFILES, samples
from tests.oracle.sessions import Session, fixed_sessions, sessions

SESSIONS = 3000
SHARE_MIN = 0.03


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=SESSIONS, deadline=None, derandomize=True, database=None)
@given(session=sessions())
def test_the_core_gives_the_samples_of_the_oracle(profile: str, session: Session) -> None:
    want = samples(session.events, profile=profile, fork_threshold=session.fork_threshold)
    result = linearized(session.events, profile=profile, fork_threshold=session.fork_threshold)
    assert result.dead_letters == []
    assert len(result.closed) == 1
    assert difference(want, result.samples) is None


def test_the_random_sessions_contain_every_class(capsys: pytest.CaptureFixture[str]) -> None:
    seen: Counter[str] = Counter()
    for session in fixed_sessions(SESSIONS, seed=3):
        seen.update(classes(session.events, fork_threshold=session.fork_threshold))
    shares = {name: seen[name] / SESSIONS for name in CLASSES}
    with capsys.disabled():
        print(f"\nhow often each class occurs in {SESSIONS} random sessions:")
        for name, share in shares.items():
            print(f"  {share:6.1%}  {name}")
    assert set(seen) == set(CLASSES)
    assert {name: share for name, share in shares.items() if share < SHARE_MIN} == {}
