"""What is in memory, in which state, and how much of it: the books of `residency`."""

from __future__ import annotations

from .residents import STAYING, Residence, Resident


class ModelMemory:
    """Counts bytes and users, and knows which model was used least recently.

    Attributes:
        models: all that are known.
        here: those in memory, or on their way there or from there; the one used least recently first.
        draining: those of them that take no new requests.
        used_bytes: of all that are here.
        pinned_bytes: of those that are pinned and stay.
    """

    def __init__(self) -> None:
        self.models: dict[str, Resident] = {}
        self.here: dict[str, Resident] = {}
        self.draining: dict[str, Resident] = {}
        self.used_bytes = self.pinned_bytes = 0

    def group(self, model: Resident) -> list[Resident]:
        """What is loaded together."""
        return [model, *(self.models[each] for each in model.needs)]

    def bytes_of(self, names: set[str]) -> int:
        """What these take together."""
        return sum(self.models[each].nbytes for each in names)

    def change(self, model: Resident, *, nbytes: int, pinned: bool, priority: int, needs: tuple[str, ...]) -> None:
        """It is another one from now on."""
        here = model.name in self.here
        if here:
            self._count(model, -1)
        model.nbytes, model.pinned, model.priority, model.needs = nbytes, pinned, priority, needs
        if here:
            self._count(model, 1)

    def enter(self, model: Resident, state: Residence) -> None:
        """It takes room from now on."""
        model.state, model.entry, model.by_hand = state, -1, False
        self.here[model.name] = model
        self._count(model, 1)

    def leave(self, model: Resident) -> None:
        """It takes no room any more, if it did."""
        if self.here.pop(model.name, None) is not None:
            self._count(model, -1)
            self.draining.pop(model.name, None)
        model.state, model.entry = Residence.COLD, -1

    def move(self, model: Resident, state: Residence) -> None:
        """It is here, in another state."""
        self._count(model, -1)
        model.state = state
        self._count(model, 1)
        self.draining.pop(model.name, None)
        if state is Residence.DRAINING:
            self.draining[model.name] = model

    def touch(self, model: Resident) -> None:
        """It is used now, and what it needs as well: these leave after it."""
        here = self.here
        for name in (model.name, *model.needs):
            if name in here:
                here[name] = here.pop(name)

    def _count(self, model: Resident, sign: int) -> None:
        self.used_bytes += sign * model.nbytes
        if model.pinned and model.state in STAYING:
            self.pinned_bytes += sign * model.nbytes
        for name in model.needs:
            self.models[name].users += sign
