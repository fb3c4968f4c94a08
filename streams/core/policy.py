"""Every rule that may differ between users, as data: one frozen `Policy`, three profiles.

    profile    realign if                merge                    identity        reward
    seed       drifted tail < threshold  only eligible short leaf canonical text  split evenly
    slime      incoming output < thr.    only assistant child     equal values    full on each
    lossless   never                     never                    canonical text  full on each

Invariant: a sample names the rules it was made by. `label` is the profile's name, plus eight
hex digits when any field differs from that profile, so changed rules give other sample ids.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from schemas.events import EndStatus
from streams.errors import BadPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How turns attach, what trains, and how the reward is shared."""

    profile: str
    fork_threshold_tokens: int = 1024
    """Exclusive; 0 or less switches realign and merge off."""
    realign_gate: Literal["drifted_tail", "incoming_output", "never"] = "drifted_tail"
    realign_masks: Literal["whole_response", "from_divergence"] = "whole_response"
    merge: Literal["only_eligible_leaf", "only_assistant_child", "never"] = "only_eligible_leaf"
    identity: Literal["canonical_text", "equal_values"] = "canonical_text"
    reward_share: Literal["split", "full"] = "split"
    drop_retry_orphans: bool = False
    """The same request sent twice and only one copy continued: leave the other out."""
    train_undelivered: bool = False
    train_constrained: bool = False
    train_auxiliary: bool = False
    train_ill_formed: bool = True
    require_reward: bool = True
    """Without one: an outcome, no sample. Off: samples whose reward is null."""
    gaps: Literal["reject", "prefix", "ignore"] = "reject"
    train_statuses: frozenset[EndStatus] = frozenset(
        ("completed", "truncated", "parse_error", "timeout")
    )
    eval_samples: bool = False

    @property
    def label(self) -> str:
        """The name samples carry: the profile, and a digest of what differs from it."""
        base = PROFILES.get(self.profile, PROFILES["seed"])
        changed = [
            [field.name, _plain(getattr(self, field.name))]
            for field in dataclasses.fields(self)
            if field.name != "profile" and getattr(self, field.name) != getattr(base, field.name)
        ]
        if not changed:
            return self.profile
        digest = blake2b(msgspec.json.encode(changed), digest_size=4).hexdigest()
        return f"{self.profile}+{digest}"


PROFILES: dict[str, Policy] = {
    "seed": Policy(profile="seed"),
    "slime": Policy(
        profile="slime",
        realign_gate="incoming_output",
        merge="only_assistant_child",
        identity="equal_values",
        reward_share="full",
    ),
    "lossless": Policy(
        profile="lossless", realign_gate="never", merge="never", reward_share="full"
    ),
}
DEFAULT_PROFILE = "seed"
_NAME_CHARS_MAX = 200
"""Of a profile of one's own: samples and outcomes carry it."""


def policy_from(given: str | Mapping[str, Any]) -> Policy:
    """A profile by name, or a table: `profile` (or `base` and a new `name`) and changed fields.

    Raises `BadPolicy` naming what is wrong and what would be right.
    """
    if isinstance(given, str):
        return _profile(given)
    fields = dict(given)
    if "base" in fields and "profile" in fields:
        raise BadPolicy("give `base` or `profile`, not both")
    base = _profile(fields.pop("base", fields.pop("profile", DEFAULT_PROFILE)))
    if "name" in fields:
        base = dataclasses.replace(base, profile=_own_name(fields.pop("name")))
    changes = {name: _value(name, value) for name, value in fields.items()}
    return dataclasses.replace(base, **changes)


def _profile(name: Any) -> Policy:
    if not isinstance(name, str) or name not in PROFILES:
        detail = f"no profile {name!r:.80}; there are {', '.join(PROFILES)}"
        raise BadPolicy(detail)
    return PROFILES[name]


def _own_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or name in PROFILES:
        detail = f"a profile of your own needs a name of letters that is not taken: {name!r:.80}"
        raise BadPolicy(detail)
    if len(name) > _NAME_CHARS_MAX:
        detail = f"the name of a profile has {len(name)} letters of at most {_NAME_CHARS_MAX}"
        raise BadPolicy(detail)
    return name


def _value(name: str, value: Any) -> Any:
    kinds = get_type_hints(Policy)
    if name not in kinds or name == "profile":
        choices = ", ".join(sorted(set(kinds) - {"profile"}))
        detail = f"a policy has no field {name!r:.80}; it has {choices}"
        raise BadPolicy(detail)
    try:
        return msgspec.convert(value, kinds[name])
    except msgspec.ValidationError as error:
        values = get_args(kinds[name])
        hint = f"; one of {values}" if values and isinstance(values[0], str) else ""
        detail = f"policy field `{name}`: {error}{hint}"
        raise BadPolicy(detail) from None


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value
