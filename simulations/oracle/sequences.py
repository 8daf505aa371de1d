"""What a sequence batcher decides: each time it is asked, there is one right answer.

`NaiveSequences` works it out; the rules are those of docs/reference/sequences.md.
"""

from __future__ import annotations

from ..history import Handlers
from ..invariants.base import Complain, Invariant
from .naive_sequences import NaiveSequences, RightBatch
from .observed import (
    Admitted,
    Awaits,
    CoreMade,
    Dispatched,
    QueueDropped,
    RefusedAtDoor,
    Rejected,
    SlotAsked,
    ToldCancelled,
    ToldDiscarded,
    ToldGone,
    ToldIdle,
    ToldPaused,
    ToldRelease,
    ToldSequencesEnd,
    ToldSettled,
    ToldSilent,
    ToldSlotDied,
    ToldToStop,
    Waits,
)


class RightSequences(Invariant):
    """Requests are refused for the right reason; a new sequence gets the lowest free slot, or waits in the backlog,
    first come, first served; it is over when it ends, has been silent for too long, is cancelled or lost; batches are
    formed of the right rows, at the right time and for the right reason (docs/reference/sequences.md)."""

    name = "sequence batchers decide what the rules say"

    def __init__(self, complain: Complain) -> None:
        super().__init__(complain)
        self._cores: dict[str, NaiveSequences] = {}

    def handlers(self) -> Handlers:
        return {
            CoreMade: self._made,
            Admitted: self._admitted,
            RefusedAtDoor: self._refused,
            ToldIdle: self._idle,
            ToldPaused: self._paused,
            ToldGone: self._gone,
            ToldRelease: self._release,
            ToldCancelled: self._cancelled,
            ToldSettled: self._settled,
            ToldSilent: self._silent,
            SlotAsked: self._slot_asked,
            ToldDiscarded: self._discarded,
            ToldSlotDied: self._slot_died,
            ToldToStop: self._stopped,
            ToldSequencesEnd: self._ended,
            QueueDropped: self._dropped,
            Dispatched: self._dispatched,
            Rejected: self._rejected,
            Waits: self._waits,
            Awaits: self._awaits,
        }

    # What it is told.

    def _made(self, event: CoreMade) -> None:
        self._cores.pop(event.core, None)
        if event.config.has_sequence_batching:
            self._cores[event.core] = NaiveSequences(event.config, event.delays)

    def _admitted(self, event: Admitted) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            self._advance(core, event, decides=False)
            core.silent(event.sequence, event.at_s)
            right = core.refusal(event)
            if right:
                self.broken(f"request {event.request} was queued by '{event.core}'; right is to refuse it: {right!r}")
            core.admit(event)

    def _refused(self, event: RefusedAtDoor) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            self._advance(core, event, decides=False)
            core.silent(event.sequence, event.at_s)
            right = core.refusal(event)
            if not right or right not in event.error:
                self.broken(
                    f"request {event.request} was refused by '{event.core}' with {event.error!r}; right is "
                    f"{right or 'not to'!r}"
                )

    def _idle(self, event: ToldIdle) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.idle(event.instance, event.spare)

    def _paused(self, event: ToldPaused) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.paused(event.instance)

    def _gone(self, event: ToldGone) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.gone(event.instance)

    def _release(self, event: ToldRelease) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            right = core.released(event.instance)
            if event.free != right:
                what = f"instance {event.instance} of '{event.core}' is said to be {'un' * event.free}bound"
                self.broken(f"{what}; it is {'un' * right}bound")

    def _cancelled(self, event: ToldCancelled) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.cancel(event.request)

    def _settled(self, event: ToldSettled) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.settle(event.at_s, event.requests, event.rescheduled)

    def _stopped(self, event: ToldToStop) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.stopping = True

    def _ended(self, event: ToldSequencesEnd) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.end_sequences()

    def _dropped(self, event: QueueDropped) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            right = core.dropped()
            if set(event.requests) != right or len(event.requests) != len(right):
                self.broken(f"'{event.core}' gave {event.requests} back; queued were {sorted(right)}")

    def _silent(self, event: ToldSilent) -> None:
        core = self._cores.get(event.core)
        if core is not None and not core.silent(event.sequence, event.at_s):
            self.broken(f"sequence {event.sequence} of '{event.core}' was ended as silent at {event.at_s} s, too early")

    def _slot_asked(self, event: SlotAsked) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.slot_asked(event.instance, event.slot)

    def _discarded(self, event: ToldDiscarded) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.discarded(event.instance, event.slot, event.requests)

    def _slot_died(self, event: ToldSlotDied) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            core.slot_died(event.instance, event.slot)

    def instant_over(self, now_ns: int) -> None:
        for name, core in self._cores.items():
            if unbound := core.unbound():
                self.broken(f"instances {unbound} of '{name}' have no sequence any more at {now_ns} ns, and do not go")

    # What it decides.

    def _advance(
        self,
        core: NaiveSequences,
        event: Admitted | RefusedAtDoor | Dispatched | Rejected | Waits | Awaits,
        decides: bool = True,
    ) -> None:
        overdue = core.overdue(event.at_s)
        if overdue:
            self.broken(
                f"sequences {overdue} of '{event.core}' are silent for too long at {event.at_s} s, and not over"
            )
        core.advance(event.at_s, decides)

    def _dispatched(self, event: Dispatched) -> None:
        core = self._cores.get(event.core)
        if core is None:
            return
        self._advance(core, event)
        what = f"'{event.core}' sent {event.requests} to instance {event.instance}, for {event.reason.value!r}"
        if core.left:
            self.broken(f"{what}; to be rejected first is {core.left[0]}")
            return
        right = core.right_decision(event.at_s)
        if not isinstance(right, RightBatch):
            self.broken(f"{what}; right is to wait until {right} s")
        elif (right.instance, right.requests, right.reason) != (event.instance, event.requests, event.reason):
            self.broken(f"{what}; right is {right}")
        else:
            core.dispatched(event.instance, event.requests)

    def _rejected(self, event: Rejected) -> None:
        core = self._cores.get(event.core)
        if core is None:
            return
        self._advance(core, event)
        left = next((each for each in core.left if each[0] == event.request), None)
        if left is None or not any(text in event.error for text in core.texts(left)):
            right = f"to reject {core.left}" if core.left else "to reject none"
            self.broken(f"'{event.core}' rejected request {event.request}: {event.error!r}; right is {right}")
        else:
            core.left.remove(left)

    def _awaits(self, event: Awaits) -> None:
        core = self._cores.get(event.core)
        if core is not None:
            self._advance(core, event, decides=False)

    def _waits(self, event: Waits) -> None:
        core = self._cores.get(event.core)
        if core is None:
            return
        self._advance(core, event)
        right = core.right_decision(event.at_s)
        if core.left or right != event.until_s:
            what = f"'{event.core}' waits at {event.at_s} s until {event.until_s} s"
            if core.left:
                self.broken(f"{what}; to be rejected is {core.left[0]}")
            else:
                self.broken(f"{what}; right is {right}")
