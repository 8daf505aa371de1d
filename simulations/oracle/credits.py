"""When an instance that holds a batch may be given another one: just before the end of what it holds, as far as can be
known, unless that batch cannot grow by waiting (docs/gpu.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.scheduling.forecast import LEAD_S
from ..events import DONE, BatchSealed, ExecutionEnded, InstanceDetached
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.state import WorldState
from .observed import NEVER_S, Dispatched, Rejected, ToldGone, ToldIdle, ToldPaused, ToldSettled, Waits

TOLERANCE_S = 1e-6


@dataclass(slots=True)
class _Device:
    """An instance: the batches that it holds, each with its size and when it was bound, and when the last one ended."""

    model: str
    held: dict[int, tuple[int, float]] = field(default_factory=dict)
    ended_s: float = -NEVER_S


class CreditsLate(Invariant):
    """A batch that could still grow is bound to an instance that holds another one not earlier than `LEAD_S` before the
    end of that, and not later either. Batches of 1, of 2 to 3, of 4 to 7 rows and so on take as long as those before,
    of which the latest counts for a quarter."""

    name = "second credits are used late"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._devices: dict[str, _Device] = {}
        self._numbers: dict[tuple[str, int], str] = {}
        self._spare: dict[tuple[str, int], bool] = {}
        self._paused: set[tuple[str, int]] = set()
        self._number = 0
        self._done: dict[tuple[int, ...], int] = {}  # batches that are over, by their requests
        self._opened: list[tuple[str, int]] = []  # told to be idle, since a core was last asked
        self._took_s: dict[tuple[str, int], list[float]] = {}

    def handlers(self) -> Handlers:
        return {
            ToldIdle: self._told_idle,
            ToldPaused: self._not_idle,
            ToldGone: self._not_idle,
            Dispatched: self._dispatched,
            Rejected: self._asked,
            Waits: self._asked,
            BatchSealed: self._sealed,
            ExecutionEnded: self._ended,
            ToldSettled: self._settled,
            InstanceDetached: self._detached,
        }

    def _told_idle(self, event: ToldIdle) -> None:
        key = event.core, event.instance
        self._spare[key] = event.spare
        self._paused.discard(key)
        if not event.spare:
            self._opened.append(key)

    def _asked(self, event: Dispatched | Rejected | Waits) -> None:
        """Whether instances that hold something were not told too early that they are idle."""
        for key in self._opened:
            device = self._devices.get(self._numbers.get(key, ""))
            opens_s = self._opens_s(device) if device is not None and device.held else event.at_s
            if event.at_s < opens_s - TOLERANCE_S:
                self.broken(f"instance {key[1]} of '{key[0]}' was idle at {event.at_s} s; right is {opens_s} s")
        self._opened.clear()

    def _not_idle(self, event: ToldPaused | ToldGone) -> None:
        self._spare.pop((event.core, event.instance), None)
        self._paused.add((event.core, event.instance))

    def _dispatched(self, event: Dispatched) -> None:
        self._asked(event)
        self._number = event.instance
        self._spare.pop((event.core, event.instance), None)

    def _sealed(self, batch: BatchSealed) -> None:
        """`Dispatched` was told just before."""
        if self._state.models[batch.model].credits == 1:
            return
        now_s = batch.at_ns / 1e9
        self._numbers[batch.model, self._number] = batch.instance
        device = self._devices.setdefault(batch.instance, _Device(batch.model))
        device.held[batch.batch] = batch.rows.bit_length(), now_s

    def _opens_s(self, device: _Device) -> float:
        end_s = device.ended_s
        for size, bound_s in device.held.values():
            known = self._took_s.get((device.model, size))
            if known is None:
                return NEVER_S
            mean_s = known[0]
            for took_s in known[1:]:
                mean_s = 0.75 * mean_s + 0.25 * took_s
            end_s = max(end_s, bound_s) + mean_s
        return end_s - LEAD_S

    def _ended(self, event: ExecutionEnded) -> None:
        if event.ending == DONE and event.batch in self._state.running:
            self._done[self._state.running[event.batch].requests] = event.batch

    def _settled(self, event: ToldSettled) -> None:
        """The scheduler hears of the end, maybe a little later at the same instant."""
        batch = self._done.pop(event.requests, 0)
        for device in self._devices.values():
            if batch in device.held:
                size, bound_s = device.held.pop(batch)
                self._took_s.setdefault((device.model, size), []).append(event.at_s - max(bound_s, device.ended_s))
                device.ended_s = event.at_s

    def _detached(self, event: InstanceDetached) -> None:
        self._devices.pop(event.instance, None)

    def instant_over(self, now_ns: int) -> None:
        now_s = now_ns / 1e9
        for key, name in self._numbers.items():
            device = self._devices.get(name)
            known = key in self._spare or key in self._paused
            if device is not None and 0 < len(device.held) < self._state.models[key[0]].credits and not known:
                self.broken(f"'{name}' has a credit left at {now_s} s, and its core does not know")
        for (model, number), spare in self._spare.items():
            device = self._devices.get(self._numbers.get((model, number), ""))
            view = self._state.models[model]
            if spare and device is not None and view.line.waiting and self._opens_s(device) < now_s - TOLERANCE_S:
                self.broken(f"requests of '{model}' wait at {now_s} s, although what an instance holds is about to end")
