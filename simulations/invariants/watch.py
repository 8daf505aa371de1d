"""All invariants together, on one history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from ...engine.metrics.statistics import ModelStatisticsEntry
from ..graphs import Graphs
from ..history import Recorder
from .answers import AnswersWhole
from .base import Complain, Invariant, Violation
from .batches import BatchLimits
from .changes import ChangesAreMade, ChangesHurtNobody
from .continuity import SequencesGoOn
from .ensembles import DrainedInOrder, StepsOnce
from .gpus import PipelineOrder, SicknessIsAFault
from .instances import DeathsAreFaults, OneBatchAtATime
from .leftovers import HonestStatistics
from .queueing import Promptness, QueueLimits, QueueOrder
from .replies import AnswersInOrder, OneReply
from .resources import Demands, ResourceLimits
from .sequences import SequenceOrder, StatesKept
from .serving import HonestReadiness, HonestRefusals
from .state import WorldState


class WorldWatch:
    """Watches a world from its beginning.

    Args:
        state: what the history tells; other readers of it listen before it does.
        is_ready: asks the server whether a model is ready.
        graphs: what ensembles are made of.
        changing: models are loaded and unloaded meanwhile.
        polled: the server looks for that by itself.
        windows: by request, how many answers may wait to be taken.
        gpus: models may be on GPUs.
        demands, pools: what instances hold while they execute, and what there is, if anything.
        rules: makes what else is to be watched.
        on_violation: called at the first violation, and no more.

    Attributes:
        violation: the first one, if there was any.
    """

    def __init__(
        self,
        state: WorldState,
        recorder: Recorder,
        is_ready: Callable[[str], bool],
        graphs: Graphs,
        *,
        max_inflight: int = 65_536,
        windows: Mapping[int, int] = MappingProxyType({}),
        changing: bool = False,
        polled: bool = False,
        hang_limit_s: float = 0.0,
        demands: Demands = MappingProxyType({}),
        pools: Mapping[str, int] = MappingProxyType({}),
        gpus: bool = False,
        rules: Callable[[Complain, WorldState], Iterable[Invariant]] = lambda _complain, _state: (),
        on_violation: Callable[[], None] = lambda: None,
    ) -> None:
        self.violation: Violation | None = None
        self._on_violation = on_violation
        self._state = state
        complain = self.complain
        resources = ResourceLimits(complain, state, demands if pools else {}, pools)
        order = SequenceOrder(complain, state)
        self._invariants: tuple[Invariant, ...] = (
            BatchLimits(complain, state),
            QueueOrder(complain, state),
            QueueLimits(complain, state, resources),
            OneBatchAtATime(complain, state),
            OneReply(complain, max_inflight),
            AnswersInOrder(complain, state),
            *(
                [AnswersWhole(complain, windows)]
                if any(each.config.decoupled for each in state.serving.values())
                else ()
            ),
            order,
            SequencesGoOn(complain, state),
            StatesKept(complain, order),
            HonestRefusals(complain, state),
            DeathsAreFaults(complain, state),
            resources,
            Promptness(complain, state, resources),
            *((StepsOnce(complain, graphs), DrainedInOrder(complain)) if graphs.ensembles else ()),
            HonestReadiness(complain, state, is_ready, graphs, changing, hang_limit_s),
            ChangesHurtNobody(complain, state),
            *((ChangesAreMade(complain, state, polled),) if changing else ()),
            HonestStatistics(complain, frozenset(graphs.ensembles)),
            *((PipelineOrder(complain), SicknessIsAFault(complain)) if gpus else ()),
            *rules(complain, state),
        )
        for invariant in self._invariants:
            recorder.listen(invariant.handlers())
        self._at_instant = [each for each in self._invariants if type(each).instant_over is not Invariant.instant_over]

    def complain(self, violation: Violation) -> None:
        """Something is broken. The first complaint counts: what follows may be its consequence."""
        if self.violation is None:
            self.violation = violation
            self._on_violation()

    def instant_over(self, now_ns: int) -> None:
        """All that happens at `now_ns` has happened."""
        for invariant in self._at_instant:
            invariant.instant_over(now_ns)
        self._state.instant_over()

    def reported(self, entries: Sequence[ModelStatisticsEntry]) -> None:
        """The server's own statistics, of a moment when nothing is in flight."""
        serving = {model: view.name for model, view in self._state.serving.items()}
        for invariant in self._invariants:
            invariant.reported(entries, serving)

    def finish(self) -> None:
        """The history is over."""
        for invariant in self._invariants:
            invariant.finish()

    def close(self) -> None:
        """Let go of the invariants, which hold on to this as well."""
        self._invariants = ()
        self._at_instant = []
