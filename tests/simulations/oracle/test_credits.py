"""The second credit of a GPU instance is used late, neither early nor never."""

from __future__ import annotations

import pytest

from trireme.engine.job import SealReason
from trireme.engine.scheduling.forecast import LEAD_S
from trireme.simulations.events import (
    DONE,
    BatchSealed,
    ExecutionEnded,
    InstanceAttached,
    InstanceDetached,
    RequestQueued,
)
from trireme.simulations.history import Recorder
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.oracle.credits import CreditsLate
from trireme.simulations.oracle.observed import Dispatched, ToldGone, ToldIdle, ToldPaused, ToldSettled, Waits
from trireme.simulations.plan import ModelPlan

MS = 1_000_000
OPENS_MS = 30 - LEAD_S * 1e3
"""When the second batch of 10 ms that began at 20 ms may get company."""


def sealed(at_ms: float, batch: int, *, spare: bool = True) -> list[object]:
    """A batch of one request is sent to the instance, which has a credit left if it had none in use."""
    at_ns = round(at_ms * MS)
    records: list[object] = [
        Dispatched(at_ns / 1e9, "m", 1, (batch,), SealReason.IDLE),
        BatchSealed(at_ns, batch, "m", 1, "m_0", "instance idle", (batch,), 1),
    ]
    return [*records, ToldIdle("m", 1, True)] if spare else records


def ended(at_ms: int, batch: int) -> list[object]:
    return [ExecutionEnded(at_ms * MS, batch, DONE), ToldSettled(at_ms / 1e3, "m", (batch,), ()), ToldIdle("m", 1)]


def waits(at_ms: float) -> Waits:
    return Waits(at_ms / 1e3, "m", at_ms / 1e3)


def queued(request: int) -> RequestQueued:
    return RequestQueued(0, request, "m", 1, 0, -1)


UP = [InstanceAttached(0, "m", "m_0"), ToldIdle("m", 1)]
SECOND = [*UP, *sealed(0, 1), *ended(10, 1), *sealed(20, 2)]
"""An instance that has taken 10 ms for a batch, and has executed another one since 20 ms."""

GOOD: dict[str, list[object]] = {
    "late": [*SECOND, queued(3), 27, ToldIdle("m", 1), *sealed(OPENS_MS, 3, spare=False), 29],
    "a batch that cannot grow": [*SECOND, *sealed(21, 3, spare=False), 29],
    "unknown before a batch is over": [*UP, *sealed(0, 1), queued(2), 50],
    "nothing waits": [*SECOND, 29, 50],
    "idle when it holds nothing": [*SECOND, queued(3), *ended(25, 2), waits(25), 25],
    "one that leaves": [*SECOND, ToldPaused("m", 1), queued(3), 29],
    "one that has gone": [*SECOND, InstanceDetached(21 * MS, "m", "m_0"), ToldGone("m", 1), queued(3), 29],
}

BAD: dict[str, tuple[str, list[object]]] = {
    "early": ("was idle at 0.027 s", [*SECOND, ToldIdle("m", 1), waits(27)]),
    "early, with a batch": ("was idle at 0.022 s", [*SECOND, ToldIdle("m", 1), *sealed(22, 3, spare=False)]),
    "never": ("wait at 0.029 s", [*SECOND, queued(3), 29]),
    "lost": ("has a credit left", [*UP, *sealed(0, 1, spare=False), 1]),
}


def complaints(records: list[object]) -> list[str]:
    found: list[str] = []
    state = WorldState([ModelPlan("m", dynamic=True).config()], {"m": 2})
    rule = CreditsLate(lambda violation: found.append(violation.text), state)
    recorder = Recorder(_Now())
    recorder.listen(rule.handlers())
    recorder.listen(state.handlers())
    for record in records:
        if isinstance(record, int):
            rule.instant_over(record * MS)
            state.instant_over()
        else:
            recorder.tell(record)
    return found


class _Now:
    def now_ns(self) -> int:
        return 0


@pytest.mark.parametrize("records", GOOD.values(), ids=GOOD)
def test_late_credits_pass(records: list[object]) -> None:
    assert complaints(records) == []


@pytest.mark.parametrize(("text", "records"), BAD.values(), ids=BAD)
def test_a_credit_that_is_used_early_or_never_is_complained_of(text: str, records: list[object]) -> None:
    assert text in complaints(records)[0]
