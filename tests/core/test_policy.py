"""Which rules hold for a session, how a user writes their own, and how samples name them."""

import dataclasses
import re
from typing import Any

import pytest

from streams.core.policy import PROFILES, Policy, policy_from
from streams.core.state import Rules
from streams.errors import BadPolicy
from tests.core.life import T1, T2, T3, Run, end, opened, ran

SLIME = PROFILES["slime"]
LOSSLESS = PROFILES["lossless"]


def policy_named_by(run: Run) -> str:
    """The policy of the outcome; its samples must say the same."""
    (closed,) = run.closed
    assert {sample["policy"] for sample in run.samples} <= {closed["policy"]}
    name: str = closed["policy"]
    return name


# --- the profiles --------------------------------------------------------------------------------

TABLE = {
    "seed": ("drifted_tail", "whole_response", "only_eligible_leaf", "canonical_text", "split"),
    "slime": ("incoming_output", "whole_response", "only_assistant_child", "equal_values", "full"),
    "lossless": ("never", "whole_response", "never", "canonical_text", "full"),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_profile_is_its_row_of_the_table(name: str) -> None:
    policy = PROFILES[name]
    fields = ("realign_gate", "realign_masks", "merge", "identity", "reward_share")
    assert tuple(getattr(policy, field) for field in fields) == TABLE[name]
    assert (policy.profile, policy.label) == (name, name)


@pytest.mark.parametrize("name", TABLE)
def test_what_users_may_switch_on_is_off_in_every_profile(name: str) -> None:
    policy = PROFILES[name]
    off = ("drop_retry_orphans", "train_undelivered", "train_constrained", "train_auxiliary")
    assert [getattr(policy, field) for field in (*off, "eval_samples")] == [False] * 5
    assert (policy.train_ill_formed, policy.require_reward, policy.gaps) == (True, True, "reject")
    assert policy.fork_threshold_tokens == 1024
    assert policy.train_statuses == {"completed", "truncated", "parse_error", "timeout"}


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PROFILES["seed"].gaps = "ignore"  # type: ignore[misc]  # that it is refused is the claim


# --- own profiles --------------------------------------------------------------------------------


def test_a_name_is_that_profile() -> None:
    assert policy_from("slime") == SLIME
    assert policy_from({"profile": "slime"}) == SLIME
    assert policy_from({}) == PROFILES["seed"]


def test_a_table_changes_fields_of_a_profile() -> None:
    table = {"profile": "slime", "fork_threshold_tokens": 0, "gaps": "prefix"}
    changed = policy_from(table)
    assert changed == dataclasses.replace(SLIME, fork_threshold_tokens=0, gaps="prefix")
    assert re.fullmatch(r"slime\+[0-9a-f]{8}", changed.label)


def test_a_table_may_have_a_name_of_its_own() -> None:
    table = {"base": "lossless", "name": "mine", "train_statuses": ["completed", "error"]}
    mine = policy_from(table)
    assert mine.profile == "mine"
    assert mine.train_statuses == {"completed", "error"}
    assert dataclasses.replace(mine, profile="lossless") == dataclasses.replace(
        LOSSLESS, train_statuses=frozenset({"completed", "error"})
    )
    assert mine.label.startswith("mine")


def test_every_field_can_be_set_by_a_table() -> None:
    other: dict[str, Any] = {
        "fork_threshold_tokens": 7,
        "realign_gate": "never",
        "realign_masks": "from_divergence",
        "merge": "never",
        "identity": "equal_values",
        "reward_share": "full",
        "drop_retry_orphans": True,
        "train_undelivered": True,
        "train_constrained": True,
        "train_auxiliary": True,
        "train_ill_formed": False,
        "require_reward": False,
        "gaps": "ignore",
        "train_statuses": ["expired"],
        "eval_samples": True,
    }
    assert set(other) == {field.name for field in dataclasses.fields(Policy)} - {"profile"}
    changed = policy_from(other)
    for name, value in other.items():
        given = frozenset(value) if isinstance(value, list) else value
        assert getattr(changed, name) == given
    labels = {policy_from({name: value}).label for name, value in other.items()}
    assert len(labels) == len(other)


BAD: dict[str, tuple[Any, str]] = {
    "an unknown profile": ("seeds", "seeds"),
    "an empty name": ("", "''"),
    "an unknown base": ({"base": "mine"}, "mine"),
    "a profile that is no name": ({"profile": 1}, "1"),
    "an unknown field": ({"fork_treshold_tokens": 5}, "fork_treshold_tokens"),
    "a number as text": ({"fork_threshold_tokens": "5"}, "fork_threshold_tokens"),
    "a threshold that is a fraction": ({"fork_threshold_tokens": 0.5}, "fork_threshold_tokens"),
    "a flag as number": ({"train_undelivered": 1}, "train_undelivered"),
    "an unknown choice": ({"gaps": "accept"}, "accept"),
    "an unknown status": ({"train_statuses": ["fine"]}, "train_statuses"),
    "a status that is no list": ({"train_statuses": "completed"}, "train_statuses"),
    "a name that is taken": ({"base": "seed", "name": "slime"}, "slime"),
    "a name that is none": ({"name": "my profile+"}, "my profile+"),
    "a name that is a number": ({"name": 5}, "5"),
    "null": ({"gaps": None}, "gaps"),
}


@pytest.mark.parametrize(("given", "mentions"), BAD.values(), ids=BAD)
def test_a_bad_policy_says_what_is_wrong_with_it(given: Any, mentions: str) -> None:
    with pytest.raises(BadPolicy) as refused:
        policy_from(given)
    assert mentions in str(refused.value)


@pytest.mark.parametrize(("given", "mentions"), BAD.values(), ids=BAD)
def test_a_session_that_asks_for_a_bad_policy_does_not_start(given: Any, mentions: str) -> None:
    run = ran([opened(policy=given)])
    assert run.transcript == "1 refused invalid_field"


def test_the_same_fields_have_the_same_label_and_others_another() -> None:
    first = policy_from({"gaps": "ignore", "eval_samples": True})
    again = policy_from({"eval_samples": True, "gaps": "ignore", "merge": "only_eligible_leaf"})
    assert first.label == again.label
    assert first.label != policy_from({"gaps": "ignore"}).label
    assert policy_from({"train_statuses": ["error", "closed"]}).label == (
        policy_from({"train_statuses": ["closed", "error"]}).label
    )


# --- which policy holds --------------------------------------------------------------------------


def test_without_a_word_the_default_holds() -> None:
    assert policy_named_by(ran([T1, end(reward=1.0)])) == "seed"
    given = Rules(default_policy=LOSSLESS)
    assert policy_named_by(ran([T1, end(reward=1.0)], given)) == "lossless"


def test_a_session_may_ask_for_its_policy_when_it_opens() -> None:
    given = Rules(default_policy=LOSSLESS)
    events = [opened(policy="slime"), T1, T3, end(reward=1.0)]
    run = ran(events, given)
    assert policy_named_by(run) == "slime"
    assert [sample["reward"] for sample in run.samples] == [1.0, 1.0]
    own = opened(policy={"profile": "seed", "reward_share": "full"})
    assert policy_named_by(ran([own, T1, end(reward=1.0)])).startswith("seed+")


def test_a_forced_policy_beats_what_the_session_asks_for() -> None:
    forced = Rules(forced_policy=LOSSLESS)
    assert policy_named_by(ran([opened(policy="slime"), T1, end(reward=1.0)], forced)) == "lossless"
    late = ran([T1, opened(policy="slime"), end(reward=1.0)], forced)
    assert policy_named_by(late) == "lossless"
    assert "refused" not in late.transcript


def test_the_first_event_fixes_the_policy() -> None:
    begun_by_a_turn = ran([T1, opened(policy="slime"), T3, end(reward=1.0)])
    assert policy_named_by(begun_by_a_turn) == "seed"
    assert "2 refused invalid_field" in begun_by_a_turn.transcript
    opened_twice = ran([opened(), opened(policy="slime"), T1, end(reward=1.0)])
    assert policy_named_by(opened_twice) == "seed"
    refused_at_first = ran([opened(policy="sloppy"), opened(policy="slime"), T1, end(reward=1.0)])
    assert policy_named_by(refused_at_first) == "slime"


def test_a_late_opening_may_name_the_policy_that_holds() -> None:
    run = ran([T1, opened(policy="seed", group_id="g"), T2, end(reward=1.0)])
    assert "refused" not in run.transcript
    assert run.closed[0]["group_id"] == "g"


def test_other_rules_give_other_sample_ids() -> None:
    events = [T1, end(reward=1.0)]
    policies = [*PROFILES.values(), policy_from({"fork_threshold_tokens": 5})]
    names = {
        run.samples[0]["sample_id"]
        for run in (ran(events, Rules(default_policy=policy)) for policy in policies)
    }
    assert len(names) == len(policies)
