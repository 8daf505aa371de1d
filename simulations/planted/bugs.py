"""Bugs, planted on purpose: does the simulator find them?

Each is a change to the actors or cores from outside, undone at the end of the block; there is no trace of them in the
code that serves. They are of the kind that slips through reviews: right nearly always, wrong in a corner. Only tests,
and ``python -m trireme.simulations --plant``, use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .adaptive import ADAPTIVE_BUGS
from .answers import ANSWER_BUGS
from .batches import BATCH_BUGS
from .credits import CREDIT_BUGS
from .ensembles import ENSEMBLE_BUGS
from .executions import EXECUTION_BUGS
from .fleet import FLEET_BUGS
from .front_ends import FRONT_END_BUGS
from .generating import GENERATING_BUGS
from .generating_servers import GENERATING_SERVER_BUGS
from .gpus import GPU_BUGS
from .limiter import LIMITER_BUGS
from .managed_fleet import MANAGED_FLEET_BUGS
from .regions import REGION_BUGS
from .residency import RESIDENCY_BUGS
from .residents import RESIDENTS_BUGS
from .routed import ROUTED_BUGS
from .routes import ROUTE_BUGS
from .sequences import SEQUENCE_BUGS
from .serving import SERVING_BUGS
from .slots import SLOT_BUGS
from .turns import TURN_BUGS

Bug = Callable[..., Any]

PLANTED: Mapping[str, tuple[type, str, Bug]] = {
    **CREDIT_BUGS,
    **SLOT_BUGS,
    **TURN_BUGS,
    **EXECUTION_BUGS,
    **ANSWER_BUGS,
    **BATCH_BUGS,
    **ADAPTIVE_BUGS,
    **SEQUENCE_BUGS,
    **ENSEMBLE_BUGS,
    **SERVING_BUGS,
    **LIMITER_BUGS,
    **GPU_BUGS,
    **FRONT_END_BUGS,
    **REGION_BUGS,
    **RESIDENCY_BUGS,
    **RESIDENTS_BUGS,
    **ROUTE_BUGS,
    **ROUTED_BUGS,
    **FLEET_BUGS,
    **MANAGED_FLEET_BUGS,
    **GENERATING_BUGS,
    **GENERATING_SERVER_BUGS,
}
"""By name: the class and the method that is wrong, and what it does instead."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Within the block this bug is there. An empty name plants none."""
    if not name:
        yield
        return
    where, method, bug = PLANTED[name]
    original = getattr(where, method)
    setattr(where, method, lambda *arguments, **options: bug(original, *arguments, **options))
    try:
        yield
    finally:
        setattr(where, method, original)
