"""When an instance that died comes back (`engine/instances/restart.py` has the rules; Triton starts none again)."""

from __future__ import annotations

from dataclasses import dataclass

from ..events import ChangeDone, FaultStruck, InstanceAttached, InstanceDetached
from ..generations import model_of
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.batches import TOLERANCE_NS
from ..invariants.state import WorldState
from ..plan import RESIZED_TO

FIRST_NS = 100_000_000
LONGEST_NS = 30_000_000_000


@dataclass(slots=True)
class InstancePlace:
    """The place of an instance, whichever life it is in.

    Attributes:
        up_ns: since when it is up, or was.
        died_ns: when it went; -1 while it is up.
        deaths: in a row; if `failed`, at least so many.
        failed: a start of its model has failed meanwhile, which is a death too. Which instance's is not seen.
    """

    up_ns: int
    died_ns: int = -1
    deaths: int = 0
    failed: bool = False

    @property
    def delay_ns(self) -> int:
        return min(FIRST_NS * 2 ** (self.deaths - 1), LONGEST_NS)


class RightRestarts(Invariant):
    """An instance that died is started again after 0.1 s, and after twice as long as before for each further death in
    a row, up to 30 s; what was up for the whole restart window has recovered.

    Args:
        window_ns: the restart window.
    """

    name = "instances are started again when they should be"

    def __init__(self, complain: Complain, state: WorldState, window_ns: int) -> None:
        super().__init__(complain)
        self._state = state
        self._window_ns = window_ns
        self._seats: dict[tuple[str, str], InstancePlace] = {}
        self._uncertain: set[tuple[str, str]] = set()  # these may have died before
        self._resized: set[str] = set()  # whose instances also go because there are too many

    def handlers(self) -> Handlers:
        return {
            InstanceAttached: self._attached,
            InstanceDetached: self._detached,
            FaultStruck: self._struck,
            ChangeDone: self._changed,
        }

    def _detached(self, event: InstanceDetached) -> None:
        seat = self._seats.get((event.model, event.instance))
        view = self._state.models[event.model]
        if seat is None:
            return
        if not view.served:  # its load has failed; it may be tried again, from the beginning
            del self._seats[event.model, event.instance]
            return
        extra = event.instance not in view.lost or view.number_of(event.instance) >= view.count
        resized = view.count < 0 or model_of(event.model) in self._resized
        if resized and extra:  # it may be wanted no more
            del self._seats[event.model, event.instance]
            self._uncertain.add((event.model, event.instance))
            return
        if event.at_ns - seat.up_ns >= self._window_ns:
            seat.deaths, seat.failed = 0, False
        seat.died_ns = event.at_ns
        seat.deaths += 1

    def _changed(self, event: ChangeDone) -> None:
        """One that waited to be started again may be wanted no more; whatever has its name next may be another one."""
        if event.change.startswith(RESIZED_TO):
            self._resized.add(event.model)
            for key in [
                key for key, seat in self._seats.items() if seat.died_ns >= 0 and model_of(key[0]) == event.model
            ]:
                del self._seats[key]
                self._uncertain.add(key)

    def _struck(self, event: FaultStruck) -> None:
        """A start that fails is a death as well."""
        if event.request == 0:
            for (name, _), seat in self._seats.items():
                if self._state.models[name].config.name == event.model and seat.died_ns >= 0:
                    seat.failed = True

    def _attached(self, event: InstanceAttached) -> None:
        key = (event.model, event.instance)
        seat = self._seats.get(key)
        if seat is None:
            self._seats[key] = InstancePlace(event.at_ns, failed=key in self._uncertain)
            return
        late_ns = event.at_ns - seat.died_ns - seat.delay_ns
        if late_ns < -TOLERANCE_NS or (late_ns > TOLERANCE_NS and not seat.failed):
            came = f"'{event.instance}' of '{event.model}' is up again after {(event.at_ns - seat.died_ns) / 1e9:g} s"
            self.broken(f"{came}; it died {seat.deaths} times in a row, so right is {seat.delay_ns / 1e9:g} s")
        seat.up_ns, seat.died_ns = event.at_ns, -1
