"""Which models are in memory, where there is room for some of them only.

Rules:
 1. A request for a model that is not resident waits for it to be loaded; all that come meanwhile wait for the same
    load. Loads are wanted in the order of their first requests, where each level of priority counts for `_LEVEL_S`
    seconds of waiting. The first one wanted begins as soon as there is room, and no later one passes it; but room is
    made for several at a time. A model that is just leaving comes back to its place when it has left.
 2. Room is made by unloading models that are idle (nothing in flight) and not pinned: the lowest priority first, then
    the one used least recently. Nothing is unloaded before that makes enough room, nor what is not needed for that.
    One of a higher priority than the model that is wanted leaves only if all others together are not enough.
 3. A model that was loaded stays for at least as long as its load took, so that no more time goes into loads than into
    service, whatever comes. Until then those that want its room wait.
 4. A model that cannot fit into the limit, beside those that are pinned and in memory, is refused at once. A load that
    failed is not tried again for a while, which doubles up to `_LONGEST_RETRY_S`; until then requests are refused with
    its reason. A load by hand is tried at once.
 5. A load that no request waits for any more, and that has not begun, is not wanted any more.
 6. A model counts with the size that it had when it was last loaded, before that with what was estimated. A size that
    turns out to be too large for the room makes others leave; it does not undo the load.
 7. At most `most_waiting` requests wait in all; the next one is refused.
 8. If rule 2 makes no room for `_PATIENCE_S`, busy models are drained in the same order, and then those of higher
    priority: new requests for them wait, and they leave when they have nothing in flight. That is not undone.
 9. A model that needs others (an ensemble) is loaded with those of them that are not there, once none of them is being
    loaded or leaving. They do not leave before it has left.
10. A request that another one in flight waits for (an inner one) goes before all others; models that wait so do not
    leave. It is refused at once if there is no room beside them, or it needs one of them that is to leave. It goes in
    while its model is being drained, as does one that continues a sequence.
11. At most `most_loads` loads are under way: what has to wait for the others would only hold room that serves.
12. A model that is unloaded by hand is drained at once, live sequences or not, and what needs it, too.

States of a model:

    COLD ─ request ▶ WANTED ─ room ▶ LOADING ─ loaded ▶ RESIDENT ─ its room is wanted ▶ LEAVING ─ unloaded ▶ COLD
    RESIDENT ─ its room is wanted for long, or by hand ▶ DRAINING ─ idle ▶ LEAVING     LEAVING ─ request waits ▶ WANTED
    WANTED ─ no request waits, or no room for good ▶ COLD          LOADING ─ failed ▶ COLD, refused until its next try
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..errors import NotFoundError, RefusalReason, TriremeError, UnavailableError
from .evictions import choose_evictions
from .model_memory import ModelMemory
from .residents import STAYING, Drains, Leaves, Loads, Refuses, Residence, ResidencyAction, Resident

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 300.0
_LEVEL_S = 10.0
_PATIENCE_S = 1.0
_SHORTEST_STAY_S = 0.1  # who waited in another process must get its request in
_SERVING = (Residence.RESIDENT, Residence.DRAINING)
_LOOK_S = 0.5  # whether sequences are over


class Residency:
    """Decides what is loaded and unloaded; told what happens, asked what to do (`actions`).

    Args:
        limit_bytes: of all models in memory.
        most_waiting: see rule 7.
        most_loads: see rule 11.

    Attributes:
        hits, misses: requests that found their model resident, or did not.
        waiting: requests that wait, for all models.
    """

    def __init__(self, limit_bytes: int, most_waiting: int = 10_000, most_loads: int = 4) -> None:
        self.limit_bytes = limit_bytes
        self.hits = self.misses = self.waiting = 0
        self._most_waiting = most_waiting
        self._most_loads = most_loads
        self._loads: set[str] = set()
        self._memory = ModelMemory()
        self._models = self._memory.models
        self._wanted: list[tuple[float, int, Resident]] = []  # a heap; entries that are not their model's own are void
        self._entries = itertools.count()
        self._calling: Counter[str] = Counter()  # models whose requests in flight wait for others
        self._called: dict[str, Resident] = {}  # those others
        self._over_s = math.inf  # since when there is more in memory than there may be
        # There is nothing to do before that time, unless so many bytes have become idle before.
        self._due_s = math.inf
        self._missing: float = math.inf

    @property
    def used_bytes(self) -> int:
        """Of what is in memory, or on its way there or from there."""
        return self._memory.used_bytes

    def __iter__(self) -> Iterator[Resident]:
        return iter(self._models.values())

    def __getitem__(self, name: str) -> Resident:
        """Raises NotFoundError: there is no such model."""
        model = self._models.get(name)
        if model is None:
            raise NotFoundError(f"there is no model '{name}'")
        return model

    # ---- what there is ----

    def know(
        self, name: str, nbytes: int, *, pinned: bool = False, priority: int = 0, needs: Sequence[str] = ()
    ) -> None:
        """There is such a model; `nbytes` is an estimate. Of one that is known, the rest changes.

        Args:
            needs: those that are loaded with it, and what they need in turn. They are to be known with a pin and
                a priority of at least its own.
        """
        model = self._models.setdefault(name, Resident(name, nbytes))
        known = model.measured or name in self._memory.here
        nbytes = model.nbytes if known else nbytes
        self._memory.change(model, nbytes=nbytes, pinned=pinned, priority=priority, needs=tuple(needs))
        if model.state is Residence.WANTED:
            self._want(model)
        self._due_s = -math.inf

    def resized(self, name: str, nbytes: int) -> None:
        """A model takes so much, as was measured (rule 6)."""
        model = self[name]
        model.measured = True
        about = {"pinned": model.pinned, "priority": model.priority, "needs": model.needs}
        self._memory.change(model, nbytes=nbytes, **about)
        self._due_s = -math.inf

    # ---- requests ----

    def arrive(
        self, name: str, now_s: float, *, by_hand: bool = False, callers: Sequence[str] = (), continues: bool = False
    ) -> bool:
        """A request for a model has come, or a load by hand.

        Args:
            callers: the models in flight that wait for it (rule 10).
            continues: it goes on with a sequence that the model knows.

        Returns:
            Whether it can be executed at once, and is in flight from now on (`depart`). Otherwise it waits; when the
            model is loaded all that wait are in flight.

        Raises:
            NotFoundError: there is no such model.
            UnavailableError: it cannot be loaded (rules 4, 7 and 10).
        """
        model = self[name]
        if model.state is Residence.RESIDENT or (model.state is Residence.DRAINING and (callers or continues)):
            self.hits += 1
            model.in_flight += 1
            self._memory.touch(model)
            return True
        if model.state is Residence.COLD and now_s < model.retry_s and not by_hand:
            wait_s = model.retry_s - now_s
            text = f"model '{name}' was not loaded: {model.reason}; next try in {wait_s:.1f} s"
            raise UnavailableError(text, refusal=RefusalReason.LOAD_FAILED)
        if model.state is not Residence.LOADING and (error := self._no_room(model)) is not None:
            raise error
        if callers and model.state is not Residence.LOADING and (error := self._no_room_inside(model, callers)):
            raise error
        if self.waiting >= self._most_waiting:
            raise UnavailableError(f"model '{name}' is not loaded, and {self.waiting} requests wait for models already")
        self._wait(model, callers, now_s)
        return False

    def give_up(self, name: str, callers: Sequence[str] = ()) -> None:
        """A request that waited for its model is not wanted any more (rule 5)."""
        model = self[name]
        assert model.waiting > 0, f"no request waits for '{name}'"
        model.waiting -= 1
        self.waiting -= 1
        was_inner = bool(model.called_by)
        self._uncall(model, Counter(callers))
        if model.state is not Residence.WANTED:
            return
        if not model.waiting:
            self._due_s = -math.inf
            self._void(model, Residence.COLD)
        elif was_inner and not model.called_by:
            self._want(model)  # not before all others any more

    def depart(self, name: str, now_s: float) -> None:
        """A request in flight has been answered."""
        model = self[name]
        assert model.in_flight > 0, f"no request for '{name}' is in flight"
        model.in_flight -= 1
        if name in self._memory.here:
            self._memory.touch(model)
        if model.in_flight:
            return
        if model.state is Residence.DRAINING:
            self._due_s = -math.inf
        elif model.state is Residence.RESIDENT and not model.pinned and model.stays_until_s <= now_s:
            self._missing -= model.nbytes + sum(self._models[each].nbytes for each in model.needs)

    # ---- loads ----

    def loaded(self, name: str, nbytes: int, took_s: float, now_s: float) -> int:
        """A model is in memory, by a load that was asked for or by another one.

        Returns:
            How many requests waited for it, which are in flight from now on.
        """
        model = self[name]
        self._loads.discard(name)
        self._leave(model)
        model.nbytes, model.measured = nbytes, True
        self._memory.enter(model, Residence.RESIDENT)
        model.failures, model.retry_s = 0, 0.0
        model.stays_until_s = now_s + max(took_s, _SHORTEST_STAY_S)
        released = self._release(model)
        model.in_flight += released
        self._memory.touch(model)
        return released

    def failed(self, name: str, error: TriremeError | None, now_s: float) -> int:
        """A load has failed, for a reason or because of a model that needs this one.

        Returns:
            How many requests waited for it, which are to be refused (rule 4): none if it did not fail itself.
        """
        model = self[name]
        self._loads.discard(name)
        self._leave(model)
        if error is None:
            self._settle(model)
            return 0
        model.reason = error.message
        model.retry_s = now_s + min(_FIRST_RETRY_S * 2**model.failures, _LONGEST_RETRY_S)
        model.failures = min(model.failures + 1, 32)
        return self._release(model)

    def unload(self, name: str) -> bool:
        """A model is to leave by hand (rule 12).

        Returns:
            Whether it will; `Leaves` says when. Not if it is not there, or what needs it is being loaded.
        """
        model = self[name]
        group = [model, *(user for user in self._memory.here.values() if name in user.needs)]
        if model.state not in _SERVING or any(each.state is Residence.LOADING for each in group):
            return False
        for each in group:
            if each.state in _SERVING:
                self._memory.move(each, Residence.DRAINING)
                each.by_hand = True
        self._due_s = -math.inf
        return True

    def unloaded(self, name: str) -> None:
        """A model has left memory, for whatever reason. If requests for it have come meanwhile, it is wanted again.

        While it is being loaded this means nothing: the end of the load tells.
        """
        model = self[name]
        if model.state is not Residence.LOADING:
            self._leave(model)
            self._settle(model)

    # ---- what to do ----

    def actions(self, now_s: float, has_sequences: Callable[[str], bool] | None = None) -> list[ResidencyAction]:
        """What to do now, which counts as begun. Cheap if there is nothing.

        Args:
            has_sequences: whether a model has live sequences, so that it is busy.
        """
        if now_s < self._due_s and self._missing > 0:
            return []
        has_sequences = has_sequences or (lambda _: False)
        self._due_s = self._missing = math.inf
        found = self._end_drains(now_s, has_sequences)
        found += self._begin_loads(now_s, has_sequences)
        self._over_s = min(self._over_s, now_s) if self.used_bytes > self.limit_bytes else math.inf
        if self.used_bytes > self.limit_bytes and (left := self._make_room(None, {}, now_s, has_sequences)):
            found += left
            self._due_s = -math.inf  # more may leave now
        return found

    def next_s(self, now_s: float) -> float | None:
        """When there may be something to do if nothing else happens."""
        if self._missing <= 0:
            return now_s
        return None if self._due_s == math.inf else max(self._due_s, now_s)

    def _begin_loads(self, now_s: float, has_sequences: Callable[[str], bool]) -> list[ResidencyAction]:
        """Of those that are wanted, in their order; and room for as many as may be loaded beside them."""
        found: list[ResidencyAction] = []
        coming: list[tuple[float, int, Resident]] = []  # those for which room is being made
        planned: dict[str, Resident] = {}
        while len(self._loads) + len(coming) < self._most_loads and (model := self._first()) is not None:
            error = self._no_room(model) or (self._no_room_inside(model) if model.called_by else None)
            if error is not None:
                self._void(model, Residence.COLD)
                self._release(model)
                found.append(Refuses(model.name, error))
                continue
            group = self._memory.group(model)
            if any(each.state not in (Residence.COLD, Residence.WANTED, Residence.RESIDENT) for each in group):
                break
            absent = [each for each in group if each.state is not Residence.RESIDENT]
            if not coming and self.used_bytes + sum(each.nbytes for each in absent) <= self.limit_bytes:
                for each in absent:
                    self._memory.enter(each, Residence.LOADING)
                self._loads.add(model.name)
                found.append(Loads(model.name, tuple(each.name for each in absent[1:])))
                continue
            planned |= {each.name: each for each in group}
            room = self._make_room(model, planned, now_s, has_sequences)
            if room is None:
                break
            found += room
            coming.append(heapq.heappop(self._wanted))
        for entry in coming:
            heapq.heappush(self._wanted, entry)
        return found

    def _end_drains(self, now_s: float, has_sequences: Callable[[str], bool]) -> list[ResidencyAction]:
        """Of models that have nothing in flight any more."""
        found: list[ResidencyAction] = []
        for model in list(self._memory.draining.values()):
            if model.in_flight or model.users:
                continue
            if not model.by_hand and has_sequences(model.name):
                self._due_s = now_s + _LOOK_S
                continue
            self._memory.move(model, Residence.LEAVING)
            found.append(Leaves(model.name))
        return found

    def _make_room(
        self,
        wanted: Resident | None,
        planned: Mapping[str, Resident],
        now_s: float,
        has_sequences: Callable[[str], bool],
    ) -> list[ResidencyAction] | None:
        """Rules 2, 3, 6 and 8, for all that is planned, `wanted` last. What leaves counts as room to come, unless it
        waits for others. None if there is not enough."""
        held = self._held()
        stays = {each.name for each in self._memory.here.values() if each.state in STAYING}
        needed = self._memory.bytes_of({*stays, *held, *planned}) - self.limit_bytes
        if needed <= 0:
            return []
        in_sequence: set[str] = set()

        def is_busy(model: Resident) -> bool:
            if model.in_flight:
                return True
            if has_sequences(model.name):
                in_sequence.add(model.name)
            return model.name in in_sequence

        choice = choose_evictions(
            self._memory.here.values(),
            needed,
            now_s,
            patient_until_s=(wanted.wanted_s if wanted else self._over_s) + _PATIENCE_S,
            priority=wanted.priority if wanted else math.inf,
            held=held.union(planned),
            is_busy=is_busy,
        )
        if choice.short:
            again_s = math.inf if choice.again_s is None else choice.again_s
            self._due_s = min(self._due_s, again_s, now_s + _LOOK_S if in_sequence else math.inf)
            self._missing = min(self._missing, choice.short if wanted else 1)
            if wanted is not None:
                return None
        found: list[ResidencyAction] = []
        for model in choice.leaving:
            stays = model.in_flight or model.users or model.name in in_sequence
            self._memory.move(model, Residence.DRAINING if stays else Residence.LEAVING)
            if model.name in in_sequence:
                self._due_s = min(self._due_s, now_s + _LOOK_S)
            found.append(Drains(model.name) if stays else Leaves(model.name))
        return found

    def _no_room(self, model: Resident) -> UnavailableError | None:
        """Rule 4."""
        group = self._memory.group(model)
        needed = sum(each.nbytes for each in group)
        if needed > self.limit_bytes:
            return _no_memory(
                f"model '{model.name}' needs {needed} bytes of memory, the limit for models is {self.limit_bytes}"
            )
        more = sum(each.nbytes for each in group if not (each.pinned and each.state in STAYING))
        if more + self._memory.pinned_bytes > self.limit_bytes:
            return _no_memory(
                f"model '{model.name}' needs {more} bytes of memory, but of the {self.limit_bytes} for models "
                f"{self._memory.pinned_bytes} are taken by pinned ones"
            )
        return None

    def _no_room_inside(self, model: Resident, callers: Sequence[str] = ()) -> UnavailableError | None:
        """Rule 10; with `callers` for a new request, which must leave room for the other inner ones as well."""
        held = self._held(callers)
        for name in model.needs:
            if name in held and self._models[name].state not in STAYING:
                return _no_memory(f"model '{model.name}' needs '{name}', which is being unloaded and waits for it")
        stays = held | {each.name for each in self._memory.here.values() if each.pinned and each.state in STAYING}
        taken = self._memory.bytes_of(stays)
        for each in (model, *self._called.values()) if callers else (model,):
            more = self._memory.bytes_of({each.name, *each.needs} - stays)
            if taken + more > self.limit_bytes:
                return _no_memory(
                    f"model '{model.name}' is asked for by models that wait for it, and there is no room beside them: "
                    f"{taken} bytes are taken and {more} needed, the limit for models is {self.limit_bytes}"
                )
        return None

    def _held(self, callers: Sequence[str] = ()) -> set[str]:
        """Models in memory that wait for others, and what they need."""
        found = {each for each in (*self._calling, *callers) if each in self._memory.here}
        return found.union(*(self._models[each].needs for each in found)) & self._memory.here.keys()

    # ---- changes of state ----

    def _first(self) -> Resident | None:
        """Of those that are wanted."""
        while self._wanted:
            _, entry, model = self._wanted[0]
            if model.entry == entry:
                return model
            heapq.heappop(self._wanted)
        return None

    def _want(self, model: Resident) -> None:
        model.state = Residence.WANTED
        model.entry = next(self._entries)
        order = -math.inf if model.called_by else model.wanted_s - _LEVEL_S * model.priority
        heapq.heappush(self._wanted, (order, model.entry, model))
        self._due_s = -math.inf

    def _wait(self, model: Resident, callers: Sequence[str], now_s: float) -> None:
        self.misses += 1
        self.waiting += 1
        model.waiting += 1
        if model.waiting == 1:
            model.wanted_s = now_s
        inner = bool(callers) and not model.called_by
        if callers:
            model.called_by.update(callers)
            self._calling.update(callers)
            self._called[model.name] = model
            self._due_s = -math.inf
        if model.state is Residence.COLD or (inner and model.state is Residence.WANTED):
            self._want(model)

    def _uncall(self, model: Resident, callers: Counter[str]) -> None:
        model.called_by -= callers
        self._calling -= callers
        if not model.called_by:
            self._called.pop(model.name, None)
        if callers:
            self._due_s = -math.inf

    def _release(self, model: Resident) -> int:
        """No request waits for it any more; how many did."""
        released, model.waiting = model.waiting, 0
        self.waiting -= released
        self._uncall(model, model.called_by.copy())
        return released

    def _leave(self, model: Resident) -> None:
        self._memory.leave(model)
        self._due_s = -math.inf

    def _settle(self, model: Resident) -> None:
        if model.waiting:
            self._want(model)

    def _void(self, model: Resident, state: Residence) -> None:
        """It is not among those that are wanted any more."""
        model.state = state
        model.entry = -1


def _no_memory(text: str) -> UnavailableError:
    return UnavailableError(text, refusal=RefusalReason.MODEL_MEMORY)
