"""How the share of a canary grows, and goes back by itself.

Rules:
 1. A rollout waits until its target can serve (it is loaded and warmed up). Only then does its first step begin.
 2. A step is over when it has taken its time and the comparison with the others says that the target is fine. With
    too few requests to say so it goes on, however long that takes, and says so once when its time is over. (A step in
    which the target gets all is over when it has taken its time: the others have no requests to compare with.)
 3. A target that is worse, in whatever step, goes back: from that moment its share is what it was before the rollout.
    So does one that cannot serve any more. A rollout that went back does not begin again by itself.
 4. While none of the others can serve there is nothing to compare with: the step goes on, and neither its time nor what
    is answered meanwhile counts.
 5. After its last step the target keeps that step's share. What an operator decides (`stop`) holds at once.

States:

    WAITING ─ the target can serve ▶ STEP ─ fine, and its time is over ▶ STEP (the next) ─ … the last ▶ DONE
    STEP ─ worse, or the target cannot serve ▶ BACK          WAITING, STEP ─ stop ▶ BACK
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .comparison import CanaryVerdict, Comparison, TargetOutcome
from .route import WHOLE, Canary, ModelRoute, Target


class RolloutState(enum.Enum):
    """See above."""

    WAITING = "waiting"
    STEP = "step"
    DONE = "done"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """Something that operators are to know.

    Attributes:
        percent: the target's share from now on.
        reason: in words.
        step_began: the event is that a step begins.
    """

    route: str
    target: Target
    state: RolloutState
    percent: float
    reason: str
    step_began: bool = False


class Rollout:
    """Of a route's canary.

    Raises:
        ValueError: the route has none.

    Attributes:
        state: see above.
        step: the number of the step, from 0.
        reason: why it is in this state.
    """

    def __init__(self, route: ModelRoute, now_s: float) -> None:
        if route.canary is None:
            raise ValueError(f"route '{route.name}' has no canary")
        self._canary: Canary = route.canary
        self._route = route
        self._before = dict(route.weights)
        self._comparison = Comparison(self._canary.limits, self._canary.step_s, self._canary.steps[0] >= WHOLE)
        self._since_s = self._looked_s = now_s
        self._compares = True
        self._overdue = False
        self.state = RolloutState.WAITING
        self.step = 0
        self.reason = f"'{self._canary.target}' is not ready yet"

    @property
    def target(self) -> Target:
        return self._canary.target

    @property
    def percent(self) -> float:
        """The target's share."""
        if self.state in (RolloutState.STEP, RolloutState.DONE):
            return self._canary.steps[self.step]
        return 0 if self.state is RolloutState.WAITING else self._before[self.target]

    def left_s(self, now_s: float) -> float:
        """How much of its step's time is left, seconds: 0 when that is over but too little is known (rule 2), and when
        no step is under way."""
        if self.state is not RolloutState.STEP:
            return 0.0
        return max(0.0, self._canary.step_s - (now_s - self._since_s)) if self._compares else self._canary.step_s

    def weights(self) -> list[tuple[Target, float]]:
        """Of all targets: what the canary leaves is shared by the others as their weights are."""
        percent = self.percent
        rest = WHOLE - self._before[self.target]
        others = len(self._before) - 1
        return [
            (
                target,
                percent if target == self.target else (WHOLE - percent) * (weight / rest if rest else 1 / others),
            )
            for target, weight in self._route.weights
        ]

    def observe(self, target: Target, outcome: TargetOutcome, now_s: float) -> None:
        """A target has answered a request that this route sent there; those that are none of its targets (any more)
        do not count."""
        if self.state is not RolloutState.STEP or not self._compares:
            return
        if target in self._before:
            self._comparison.add(outcome, target == self.target, now_s)

    def advance(self, target_ready: bool, others_ready: bool, now_s: float) -> RolloutEvent | None:
        """Go on if it is time: called after answers, changes of readiness, and at `next_s`."""
        self._looked_s = now_s
        if self.state is RolloutState.WAITING:
            return self._enter(RolloutState.STEP, "it can serve", now_s) if target_ready else None
        if self.state is not RolloutState.STEP:
            return None
        if not target_ready:
            return self._enter(RolloutState.BACK, f"'{self.target}' is not ready any more", now_s)
        verdict, reason = self._comparison.verdict(now_s)
        if verdict is CanaryVerdict.WORSE:
            return self._enter(RolloutState.BACK, reason, now_s)
        self._compares = others_ready or self.percent >= WHOLE
        if not self._compares:
            self._since_s = now_s
            return None
        if now_s < self._since_s + self._canary.step_s:
            return None
        if verdict is CanaryVerdict.OPEN and self.percent < WHOLE:
            return self._go_on(reason)
        fine = f"it was fine for {self._comparison.seen} requests"
        if self.step + 1 == len(self._canary.steps):
            return self._enter(RolloutState.DONE, fine, now_s)
        self.step += 1
        self._comparison = self._comparison.next_step(self.percent >= WHOLE)
        return self._enter(RolloutState.STEP, fine, now_s)

    def next_s(self) -> float | None:
        """When `advance` may have something to do though nothing else happens; None if time alone changes nothing."""
        if self.state is not RolloutState.STEP:
            return None
        step_ends_s, spell_ends_s = self._since_s + self._canary.step_s, self._comparison.spell_ends_s
        times = [time for time in (step_ends_s, spell_ends_s) if time is not None and time > self._looked_s]
        return min(times, default=None)

    def stop(self, now_s: float) -> RolloutEvent | None:
        """Give the share back because an operator wants that."""
        if self.state in (RolloutState.WAITING, RolloutState.STEP):
            return self._enter(RolloutState.BACK, "an operator stopped it", now_s)
        return None

    def _go_on(self, missing: str) -> RolloutEvent | None:
        """Rule 2: said once, though known anew each time."""
        self.reason = f"its time is over, but {self._comparison.seen} requests do not tell enough of {missing} yet"
        if self._overdue:
            return None
        self._overdue = True
        return RolloutEvent(self._route.name, self.target, self.state, self.percent, self.reason)

    def _enter(self, state: RolloutState, reason: str, now_s: float) -> RolloutEvent:
        self.state, self.reason, self._since_s, self._overdue = state, reason, now_s, False
        began = state is RolloutState.STEP
        return RolloutEvent(self._route.name, self.target, state, self.percent, reason, began)
