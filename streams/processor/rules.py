"""The rules that the settings ask for: the same for every processor, and for whoever looks on."""

import dataclasses

from streams.core.limits import DEFAULT_LIMITS
from streams.core.policy import PROFILES
from streams.core.state import Rules
from streams.settings import Settings

_SHARE_OF_A_MESSAGE = 0.89
"""What tokens, turns and payload of a sample may take; names and framing need the rest."""


def rules_from(settings: Settings) -> Rules:
    """The rules of a processor under these settings."""
    fits = int(settings.message_bytes_max * _SHARE_OF_A_MESSAGE)
    return Rules(
        default_policy=PROFILES[settings.profile],
        limits=dataclasses.replace(
            DEFAULT_LIMITS,
            sample_bytes=min(DEFAULT_LIMITS.sample_bytes, fits),
            record_bytes=min(DEFAULT_LIMITS.record_bytes, fits),
        ),
        trace_share=settings.traced_share,
        turn_age_ms_max=int(settings.hard_limit_s * 1000),
    )
