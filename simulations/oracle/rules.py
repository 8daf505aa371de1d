"""All rules of the oracle."""

from __future__ import annotations

from ...engine.config.objective import PARAMETER
from ..invariants.base import Complain, Invariant
from ..invariants.state import WorldState
from .adaptive import RightAdaptations
from .cache import DoorKeepsOrder, RightHits
from .credits import CreditsLate
from .decisions import RightDecisions
from .durations import RightDurations
from .ensemble_durations import RightSums
from .errors import ErrorsHaveCauses
from .idleness import IdleIsKnown
from .isolation import IsolatedAlone
from .leaving import AnswersLeave
from .limiter import RightGrants
from .members import MembersAreAsked
from .restarts import RightRestarts
from .sequences import RightSequences
from .unloads import MembersGo


def oracle_rules(
    complain: Complain,
    state: WorldState,
    *,
    plenty: bool = False,
    restart_window_s: float = 60.0,
    little_room: bool = True,
    executes_again: bool = False,
    runs_short: bool = False,
    cache_ns: int = 0,
    named: tuple[str, ...] = (),
) -> tuple[Invariant, ...]:
    """The rules, for one run.

    Args:
        plenty: the response cache has room for all responses.
        restart_window_s: see `ServerOptions`.
        cache_ns: what a call of the response cache takes, for which requests wait at the door; 0 for no time.
        little_room, executes_again, runs_short: see `ErrorsHaveCauses`.
        named: the models that the server was told to load by name, if it is to load and unload some; see `MembersGo`.

    Rules about what no model of the run has are left out: they would hear of everything and judge nothing.
    """
    views = state.serving.values()
    configs = [view.config for view in views]
    has_sequences = any(config.has_sequence_batching for config in configs)
    has_ensembles = any(config.has_ensemble_scheduling for config in configs)
    return (
        RightDecisions(complain),
        *((RightAdaptations(complain),) if any(PARAMETER in config.parameters for config in configs) else ()),
        *((RightSequences(complain),) if has_sequences else ()),
        RightGrants(complain),
        RightHits(complain, state, plenty),
        *((MembersAreAsked(complain, state), RightSums(complain, state)) if has_ensembles else ()),
        RightRestarts(complain, state, round(restart_window_s * 1e9)),
        IdleIsKnown(complain, state),
        *((CreditsLate(complain, state),) if any(view.credits > 1 for view in views) else ()),
        AnswersLeave(complain),
        IsolatedAlone(complain, state),
        ErrorsHaveCauses(complain, state, little_room, executes_again, runs_short),
        RightDurations(complain, state, cache_ns),
        *((DoorKeepsOrder(complain, state),) if cache_ns else ()),
        *((MembersGo(complain, state, named),) if named else ()),
    )
