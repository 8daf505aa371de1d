"""What is known of the models that may be in memory, and what is done about them (`residency`)."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from ..errors import UnavailableError


class Residence(enum.Enum):
    """See `residency`."""

    COLD = "cold"
    WANTED = "wanted"
    LOADING = "loading"
    RESIDENT = "resident"
    DRAINING = "draining"
    LEAVING = "leaving"


STAYING = frozenset((Residence.LOADING, Residence.RESIDENT))
"""States in which a model is in memory, or on its way there, and does not leave."""


@dataclass(slots=True, eq=False)
class Resident:
    """What is known of one model.

    Attributes:
        nbytes: that it takes, or is supposed to.
        needs: names of models that are loaded with it.
        users: how many models in memory need it.
        waiting: requests that wait for it to be loaded.
        in_flight: requests that it is executing, or that are queued there.
        called_by: those models whose requests in flight wait for it, each as often as there are such.
        wanted_s: when the first one came of those that wait.
        stays_until_s: not to leave before.
        failures: loads that have failed one after the other.
        measured: whether it has been loaded, so that `nbytes` is no estimate.
        by_hand: whether it is to leave by hand.
        entry: number of its valid entry among those that are wanted.
    """

    name: str
    nbytes: int
    pinned: bool = False
    priority: int = 0
    needs: tuple[str, ...] = ()
    state: Residence = Residence.COLD
    users: int = 0
    waiting: int = 0
    in_flight: int = 0
    called_by: Counter[str] = field(default_factory=Counter)
    wanted_s: float = 0.0
    stays_until_s: float = 0.0
    failures: int = 0
    retry_s: float = 0.0
    reason: str = ""
    measured: bool = False
    by_hand: bool = False
    entry: int = -1


@dataclass(frozen=True, slots=True)
class Loads:
    """A model is to be loaded, together with those that it needs and that are not there."""

    name: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaves:
    """A model is to be unloaded; it has nothing in flight."""

    name: str


@dataclass(frozen=True, slots=True)
class Drains:
    """A model takes no new requests any more, and will leave (rule 8)."""

    name: str


@dataclass(frozen=True, slots=True)
class Refuses:
    """All requests that waited for a model are to be refused; they do not wait any more."""

    name: str
    error: UnavailableError


ResidencyAction = Loads | Leaves | Drains | Refuses
