"""Requests played in virtual time without checks, as fast as can be: what planning asks."""

from .cores import may_be_crowded
from .generated_run import GeneratedRun
from .host import HostCosts
from .loads import ClosedLoop
from .planned import ExecutionPlace, PlannedModel, ServiceTime, most_cores
from .play import play
from .played import PlayedRun, merged_runs
from .steps import PlannedSteps

__all__ = [
    "ClosedLoop",
    "ExecutionPlace",
    "GeneratedRun",
    "HostCosts",
    "PlannedModel",
    "PlannedSteps",
    "PlayedRun",
    "ServiceTime",
    "may_be_crowded",
    "merged_runs",
    "most_cores",
    "play",
]
