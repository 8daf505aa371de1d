"""Ensembles: models that are graphs of other models (docs/reference/ensembles.md)."""

from .core import EnsembleCore
from .dependencies import Dependencies, check_members, members_of
from .plan import EnsemblePlan, PlannedStep
from .run import (
    CancelSteps,
    ComputeTimes,
    EnsembleAction,
    EnsembleRun,
    Fail,
    Respond,
    StepCall,
    Submit,
    record_failure,
    record_success,
)

__all__ = [
    "CancelSteps",
    "ComputeTimes",
    "Dependencies",
    "EnsembleAction",
    "EnsembleCore",
    "EnsemblePlan",
    "EnsembleRun",
    "Fail",
    "PlannedStep",
    "Respond",
    "StepCall",
    "Submit",
    "check_members",
    "members_of",
    "record_failure",
    "record_success",
]
