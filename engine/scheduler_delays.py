"""What the environment asks of schedulers, for tests (`scheduling.held` says what it does)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBER = re.compile(r"\s*([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class SchedulerDelays:
    """How many requests schedulers wait for: queued, and in the backlog of sequences; 0 for none."""

    queued: int = 0
    backlog: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SchedulerDelays:
        """What the environment says; what is no number there counts as 0."""

        def number(name: str) -> int:
            match = _NUMBER.match(environment.get(name, ""))
            return int(match[1]) if match else 0

        return cls(number("TRITONSERVER_DELAY_SCHEDULER"), number("TRITONSERVER_BACKLOG_DELAY_SCHEDULER"))
