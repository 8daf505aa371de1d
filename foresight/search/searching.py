"""The search: which setting is played next, and on how much of the log. Nothing is played here.

Rules:
 1. A round plays settings on a part of the log: the first rounds on its first eighth, then on a third, then all of it.
    Of a round, the better third goes on to the next part; the others are given up. Among the better third are the best
    ones of each count of instances, in turns, since the beginning of a log may ask for less than the rest.
 2. The first round is the whole space if that is no larger than the number of settings, else six of ten of them,
    drawn (`PlanSpace.drawn`). The rest is for neighbours of the best three that were played on the whole log, which
    begin at the first part again, in rounds of a tenth, until all neighbours are known or the number is reached.
 3. In the end the best few of all that were played on the whole log, and the present one, are played several times.
    Only these are compared with the objective.
 4. The present setting always goes on. What is equal, is decided by the setting's text, so that the same seed makes the
    same search.
 5. Chosen is the best of them, or of those that are as good (`Trial.is_like`) the one with the least to change: chance
    is no reason to change a setting.

    state      next is called          told trials
    DRAWN      first part              → HALVING with the better third
    HALVING    next part               → HALVING, or NEAR after the whole log
    NEAR       first part, neighbours  → HALVING; → FINAL if there are none or the number is reached
    FINAL      whole log, many plays   → OVER
    OVER       nothing
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from .objective import PlanObjective
from .settings import PlanSetting
from .space import PlanSpace
from .trials import Trial

PARTS = (1 / 8, 1 / 3, 1.0)
KEPT = 1 / 3
FINALISTS = 6
_LEAST_REQUESTS = 200
_FIRST = 0.6
_BEST = 3


class SearchState(enum.Enum):
    """See the table above."""

    DRAWN = "drawn"
    HALVING = "halving"
    NEAR = "near"
    FINAL = "final"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class SearchRound:
    """What is to be played now: these settings, so many requests of the log, so often."""

    settings: tuple[PlanSetting, ...]
    requests: int
    plays: int


class PlanSearch:
    """The state of a search.

    Args:
        requests: of the log.
        count: settings that may be played.
        plays: of those that are compared in the end.

    Attributes:
        state: see the table above.
        seen: all settings that were played, at least on a part.
        whole: the trials on the whole log, by setting.
        final: those that were played several times, the chosen one first, then the best.
    """

    def __init__(
        self, space: PlanSpace, objective: PlanObjective, requests: int, *, count: int, plays: int, seed: int
    ) -> None:
        self.state = SearchState.DRAWN
        self.seen: dict[PlanSetting, None] = {}
        self.whole: dict[PlanSetting, Trial] = {}
        self.final: list[Trial] = []
        self._space, self._objective = space, objective
        self._count, self._plays = max(1, count), plays
        self._parts = sorted({min(requests, max(_LEAST_REQUESTS, round(requests * part))) for part in PARTS})
        self._part = 0
        self._chance = Random(f"search {seed}")
        first = self._count if len(space) <= self._count else max(1, round(self._count * _FIRST))
        self._waiting = space.drawn(first, self._chance)

    @property
    def present(self) -> PlanSetting:
        """Of the space."""
        return self._space.present

    @property
    def progress(self) -> float:
        """The part of the search that is done, as far as that can be said: 0 to 1."""
        if self.state is SearchState.OVER:
            return 1.0
        return 0.95 * len(self.seen) / max(self._count, len(self.seen)) if self.state is not SearchState.FINAL else 0.95

    def next(self) -> SearchRound | None:
        """What to play; None when the search is over. The same until it is told what came of it."""
        if self.state is SearchState.OVER:
            return None
        if self.state is SearchState.FINAL:
            return SearchRound(tuple(self._waiting), self._parts[-1], self._plays)
        return SearchRound(tuple(self._waiting), self._parts[self._part], 1)

    def told(self, trials: Sequence[Trial]) -> None:
        """What came of the round; of settings that no server can serve, nothing."""
        ordered = sorted(trials, key=self._order)
        if self.state is SearchState.FINAL:
            self.final = self._with_chosen_first(ordered)
            self.state = SearchState.OVER
            return
        self.seen |= dict.fromkeys(self._waiting)
        if self._part + 1 < len(self._parts):
            self._part += 1
            self._waiting = self._better(ordered)
            self.state = SearchState.HALVING
        else:
            self.whole |= {trial.setting: trial for trial in ordered}
            self._go_near()
        if not self._waiting:
            self._go_near()

    def _with_chosen_first(self, ordered: list[Trial]) -> list[Trial]:
        """Rule 5."""
        alike = [trial for trial in ordered if trial.is_like(ordered[0], self._objective)]
        chosen = min(alike, key=lambda trial: trial.setting.differences(self._space.present), default=None)
        return [] if chosen is None else [chosen, *(trial for trial in ordered if trial is not chosen)]

    def _order(self, trial: Trial) -> tuple[tuple[float, ...], str]:
        return trial.order(self._objective), str(trial.setting)

    def _better(self, ordered: Sequence[Trial]) -> list[PlanSetting]:
        """Rule 1: the better third, the best of each count of instances in turns; and rule 4."""
        groups: dict[int, list[Trial]] = {}
        for trial in ordered:
            groups.setdefault(trial.setting.instances, []).append(trial)
        turns = [
            trial for place in range(len(ordered)) for group in groups.values() for trial in group[place : place + 1]
        ]
        kept = [trial.setting for trial in turns[: max(1, round(len(turns) * KEPT))]]
        present = self._space.present
        return kept if present in kept or present not in {each.setting for each in ordered} else [*kept, present]

    def _go_near(self) -> None:
        """Rules 2 and 3."""
        left = self._count - len(self.seen)
        best = sorted(self.whole.values(), key=self._order)
        near: dict[PlanSetting, None] = {}
        for trial in best[:_BEST]:
            near |= dict.fromkeys(self._space.neighbours(trial.setting, self._chance))
        new = [setting for setting in near if setting not in self.seen]
        if left > 0 and new:
            self._waiting = new[: min(left, max(4, self._count // 10))]
            self._part = 0
            self.state = SearchState.NEAR
            return
        present = self._space.present
        final = dict.fromkeys(trial.setting for trial in best[:FINALISTS])
        self._waiting = list(final | ({present: None} if present in self.whole else {}))
        self.state = SearchState.FINAL if self._waiting else SearchState.OVER
