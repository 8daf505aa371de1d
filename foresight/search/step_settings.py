"""What a plan may set of a model that generates text: parameters of its configuration, which its steps go by.

Rules:
 1. Values that are as at present are not written.
 2. Memory is said in tokens. `kv_tokens` of 0 leaves what the configuration says of it.
 3. Texts in a step are a quarter, half, twice and four times the present ones, and so are its tokens, of which
    there are more. Memory is a quarter, half and twice of what there is, and never more than all texts could fill.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...engine.backends.generation.settings import GenerationSettings
from ...engine.config.model import ModelConfig
from ...engine.profiles.generation import GenerationProfile
from ..planned_steps import memory_tokens

_TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)
_MEMORY = (0.25, 0.5, 2.0)
_NAMES = ("max_running", "max_tokens_per_step", "kv_tokens")


@dataclass(frozen=True, slots=True)
class StepSetting:
    """Of one model, for each instance.

    Attributes:
        max_running: texts in a step.
        max_tokens_per_step: more go in pieces.
        kv_tokens: of memory; 0 for what the configuration says.
    """

    max_running: int
    max_tokens_per_step: int
    kv_tokens: int = 0

    def __str__(self) -> str:
        memory = f", memory of {self.kv_tokens} tokens" if self.kv_tokens else ""
        return f"{self.max_running} texts and {self.max_tokens_per_step} tokens a step{memory}"

    def differences(self, other: StepSetting) -> int:
        """In how many values it differs."""
        return sum(getattr(self, name) != getattr(other, name) for name in _NAMES)


def present_steps(config: ModelConfig) -> StepSetting | None:
    """What a configuration says; None if the model generates no text."""
    if config.backend != "generation" or not config.decoupled:
        return None
    limits = GenerationSettings(config).limits(1)
    return StepSetting(limits.most_running, limits.most_tokens)


def step_settings(config: ModelConfig, profile: GenerationProfile, present: StepSetting) -> Iterator[StepSetting]:
    """What is worth trying (rule 3), the present one first."""
    size, tokens = GenerationSettings(config).block_tokens, memory_tokens(profile, config)
    yield present
    widths = sorted({max(1, round(present.max_running * times)) for times in _TIMES})
    budgets = sorted({max(2, round(present.max_tokens_per_step * times)) for times in _TIMES})
    for width, budget in itertools.product(widths, budgets):
        if budget <= width:
            continue
        most = width * profile.context
        memories = {max(size, round(tokens * times)) for times in _MEMORY}
        for memory in (0, *sorted(each for each in memories if each <= most)):
            found = StepSetting(width, budget, memory)
            if found != present:
                yield found


def set_steps(message: Any, new: StepSetting, old: StepSetting) -> None:
    """Write a setting into a configuration's message (rule 1)."""
    for name in _NAMES:
        value = getattr(new, name)
        if value != getattr(old, name):
            message.parameters[name].string_value = str(value)
            if name == "kv_tokens":
                message.parameters.pop("kv_bytes", None)
