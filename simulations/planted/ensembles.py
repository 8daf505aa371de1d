"""Bugs of ensembles, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...actors.ensemble import Ensemble
from ...actors.repository import EndLoads, Repository
from ...engine.ensemble import EnsembleRun, StepCall
from ...engine.ensemble.run import ComputeTimes, Iteration, RunState
from ...engine.errors import TriremeError
from ...engine.job import Outcome


def _late_failure(original: Any, run: EnsembleRun, call: StepCall, outcome: Outcome, final: bool) -> None:
    """When a step of an ensemble has failed, others that fail later are not taken off the list."""
    if run.state is not RunState.FAILED or not isinstance(outcome, TriremeError):
        original(run, call, outcome, final)


def _step_taken_twice(original: Any, run: EnsembleRun, arrived: list[str], at: Iteration) -> None:
    """A step that takes two tensors is carried out when the first of them is there, and once more with the second."""
    before = run._needed
    original(run, arrived, at)
    for call in list(run._ready):
        if len(dict.fromkeys(name for _, name in call.step.inputs)) > 1 and call.step.index in before:
            run._ready[StepCall(run, call.step, at)] = None
            for _, name in call.step.inputs:
                run._values[name, at].uses += 1
            break


def _never_let_go(original: Any, ensemble: Ensemble, step: Any) -> None:
    """A member that is held back for the sake of a step stays so, even if that waits for the member itself."""


def _members_first(original: Any, repository: Repository, message: Any) -> None:
    """A server that stops tells all models at once, the members of ensembles too."""
    if isinstance(message, EndLoads) and message.drains:
        for model in repository.models():
            model._holds = 0  # or it would not be drained before all let it go that hold it
    original(repository, message)


def _first_step_alone(original: Any, times: ComputeTimes, marks: Any) -> None:
    """The compute times of an ensemble are those of the first step that was answered."""
    if not times.infer_ns:
        original(times, marks)


ENSEMBLE_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "late-failure": (EnsembleRun, "step_answered", _late_failure),
    "step-taken-twice": (EnsembleRun, "_proceed", _step_taken_twice),
    "never-let-go": (Ensemble, "_look_whether_stuck", _never_let_go),
    "members-first": (Repository, "receive", _members_first),
    "first-step-alone": (ComputeTimes, "add", _first_step_alone),
}
