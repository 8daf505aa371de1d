"""What was measured of models: how long their batches take, what requests cost their host."""

from .durations import TimeDistribution
from .origin import ProfileOrigin, present_origin
from .profile import (
    NEVER_LATE,
    ExecutorKind,
    HostPoint,
    ModelProfile,
    RestedLoop,
    ServicePoint,
    StartTimes,
    Way,
    read_profile,
)

__all__ = [
    "NEVER_LATE",
    "ExecutorKind",
    "HostPoint",
    "ModelProfile",
    "ProfileOrigin",
    "RestedLoop",
    "ServicePoint",
    "StartTimes",
    "TimeDistribution",
    "Way",
    "present_origin",
    "read_profile",
]
