"""What is drawn after all else, each from a source of its own: a run that does not draw it is what it was without."""

from __future__ import annotations

from .client_memory import with_client_memory
from .control import impatient, named, polled
from .dying import dying, killing
from .entries import entered
from .failed_starts import failing_to_start
from .front_ends import fronted
from .inner import asked_inside, changed_inside
from .moved_to_gpus import moved_to_gpus
from .objectives import with_objectives
from .placed import placed, with_ends
from .regions import left_to_instances, shared
from .reshaped import reshaped
from .resized import broken, holding, removed, resized
from .self_checks import checking
from .slow_caches import slowed
from .texts import kept_as_texts
from .traced import traced
from .views import viewed

DRAWN_AFTER = (
    moved_to_gpus,
    reshaped,
    placed,
    with_ends,
    dying,
    killing,
    resized,
    entered,
    broken,
    holding,
    with_objectives,
    slowed,
    shared,
    asked_inside,
    changed_inside,
    checking,
    polled,
    named,
    impatient,
    fronted,
    left_to_instances,
    kept_as_texts,
    failing_to_start,
    viewed,
    traced,
    removed,
    with_client_memory,
)
"""Functions from a plan to a plan, in the order in which they are asked."""
