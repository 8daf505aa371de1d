"""Inputs that are in shared memory, and those of them that are so large that a thread reads them, or that they are left
to the model's instances (docs/reference/shared-memory.md#tensors-in-regions).

A client may write to its memory again when its request is in; if that was left to the instance, when it has its answer.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np

from ..engine.admission.large_requests import LARGE_BYTES
from ..engine.datatypes import FP32
from ..engine.errors import InvalidArgumentError
from ..engine.memory.regions import Loan, Region, RegionSlice
from ..engine.memory.tensors import RegionTensor
from ..engine.request import InferenceRequest
from ..engine.tensor import Tensor
from .plan import ModelPlan, Plan, RequestPlan
from .shapes import Shapes
from .workloads import WayIn

SHARE, SHARE_OF_ABLE = 0.3, 0.7
"""Of the runs, and of those whose requests may be large."""

LARGE = LARGE_BYTES // 4 + 1
"""Elements of a row that is too large to be read on the event loop."""

MOST_LARGE = 12
"""Requests of a run; each takes half a millisecond of the machine's time."""

CUT = 17
"""Of so many regions, one is cut short before the server reads it."""

LOST = "has lost its memory"
"""What the server says of such a region."""

SHARE_LEFT = 0.6
"""Of the runs, in which a model may be sent large inputs that are left to its instances."""

LATE = 7
"""Of so many regions whose inputs are left to the instance, one is lost before that reads it, and one meanwhile."""

LEFT = "a large input was left to its instance"
LOST_LATE = "a region was lost when its instance was to read it"
REACHABLE_REGIONS = LEFT, LOST_LATE


def shared(plan: Plan) -> Plan:
    """The plan, some of whose requests give their inputs in shared memory. Large ones go to models that let rows be of
    any size, and whose requests need not keep an order."""
    chance = Random(f"regions {plan.seed}")
    has_room = not (plan.max_inflight_bytes or plan.cache_ns)
    able = {each.name for each in plan.models if has_room and _takes_large(each)}
    if chance.random() >= (SHARE_OF_ABLE if able else SHARE):
        return plan
    rate, large_rate = chance.uniform(0.1, 1.0), chance.uniform(0.0, 0.3)
    left = MOST_LARGE

    def drawn(request: RequestPlan) -> RequestPlan:
        nonlocal left
        if chance.random() >= rate:
            return request
        is_large = request.model in able and left > 0 and chance.random() < large_rate
        left -= is_large
        return replace(request, region=True, width=LARGE if is_large else request.width)

    shortest_ns = min(model.fixed_ns for model in plan.models)
    offload_ns = round(shortest_ns * math.exp(chance.uniform(math.log(0.05), math.log(20.0))))
    return replace(plan, requests=tuple([drawn(request) for request in plan.requests]), offload_ns=offload_ns)


def left_to_instances(plan: Plan) -> Plan:
    """The plan; of the models that are sent large inputs in shared memory, some leave these to their instances. Where
    none is, one may be sent some for that."""
    chance = Random(f"left to instances {plan.seed}")
    rate = chance.choice((0.0, 0.7, 1.0, 1.0, 1.0))
    if chance.random() < SHARE_LEFT:
        plan = _sent_large(plan, chance)
    sent = {request.model for request in plan.requests if _is_large(request)}
    leaving = {model.name for model in plan.models if model.name in sent and reads_alone(model)}
    leaving = {name for name in sorted(leaving) if chance.random() < rate}
    models = [replace(each, reads_regions=True, in_place=0) if each.name in leaving else each for each in plan.models]
    return replace(plan, models=tuple(models))  # what is executed in place is read before


def _sent_large(plan: Plan, chance: Random) -> Plan:
    """The plan, in which a model is sent large inputs, unless one is already."""
    able = [each for each in plan.models if reads_alone(each) and each.shapes is Shapes.FIXED and not each.cached]
    if not able or plan.max_inflight_bytes or plan.cache_ns or any(_is_large(each) for each in plan.requests):
        return plan
    chosen = chance.choice(able).name
    asked = [each.number for each in plan.requests if each.model == chosen and each.entry is not WayIn.INNER]
    large = set(chance.sample(asked, min(len(asked), chance.randint(1, MOST_LARGE))))
    requests = [replace(each, region=True, width=LARGE) if each.number in large else each for each in plan.requests]
    models = [replace(each, shapes=Shapes.VARIABLE) if each.name == chosen else each for each in plan.models]
    return replace(plan, models=tuple(models), requests=tuple(requests))


def _is_large(request: RequestPlan) -> bool:
    return request.region and request.width == LARGE


def reads_alone(model: ModelPlan) -> bool:
    """Whether the instances of such a model can read inputs themselves. (Those of decoupled and stateful ones can as
    well, and are not played so.)"""
    return not (model.gpus or model.decoupled or model.steps or model.sequences is not None)


def is_left(request: RequestPlan, model: ModelPlan | None) -> bool:
    """Whether the inputs of a request are left to the model's instances."""
    return _is_large(request) and model is not None and model.reads_regions


def is_lost_late(request: int) -> bool:
    """Whether the region of such a request is lost when its instance is to read it."""
    return request % LATE < 2


def _takes_large(model: ModelPlan) -> bool:
    return model.shapes.is_sized and model.shapes is not Shapes.RAGGED and not model.cached


class HeldRegion(Region):
    """A region in memory; it was cut short if `data` is None.

    Args:
        number: of the request that it is for.
    """

    def __init__(self, number: int, data: bytes | None) -> None:
        self.name = f"region {number}"
        self._number = number
        self._data = None if data is None else np.frombuffer(data, np.uint8).copy()

    def read(self, start: int, end: int) -> memoryview:
        return memoryview(self._held()[start:end].tobytes())

    def lend(self, start: int, end: int) -> Loan | None:
        """It is gone already, or will be when it has been read."""
        if is_lost_late(self._number):
            if self._number % LATE == 0:
                self._data = None
                return None
            return _LostLoan(self._held()[start:end], self)
        return _HeldLoan(self._held()[start:end])

    def lost(self) -> InvalidArgumentError:
        return InvalidArgumentError(f"shared memory region '{self.name}' {LOST}")

    def _held(self) -> np.ndarray:
        if self._data is None:
            raise self.lost()
        return self._data

    def spoil(self) -> None:
        """Its client writes something else there."""
        if self._data is not None:
            self._data[:] = 0x7F

    def check_size(self, nbytes: int) -> None:
        """Any will do."""

    def check_reach(self, end: int) -> None:
        self._held()


class _HeldLoan(Loan):
    """Memory that stays."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def check(self) -> None:
        """It is there."""


class _LostLoan(_HeldLoan):
    """Memory that is gone by the time that it has been used: what was found there is not the client's."""

    def __init__(self, array: np.ndarray, region: HeldRegion) -> None:
        super().__init__(np.zeros_like(array))
        self._lost = region.lost

    def check(self) -> None:
        raise self._lost()


def in_region(request: RequestPlan, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs of a request, those of them in shared memory that hold rows."""
    return in_place(inputs, RegionSlice(held_part(request.number, inputs[0]), 0, inputs[0].nbytes))


def held_part(number: int, tensor: Tensor | None) -> HeldRegion:
    """The memory in which a request has this; one in so many has been cut short."""
    return HeldRegion(number, None if tensor is None or number % CUT == 0 else tensor.array.tobytes())


def in_place(inputs: Sequence[Tensor], place: RegionSlice) -> list[Tensor]:
    """The inputs, with those at that place that hold rows."""
    return [
        RegionTensor(each.name, FP32, each.shape, place)
        if each.datatype is FP32 and each.nbytes == place.byte_size
        else each
        for each in inputs
    ]


def spoil(request: InferenceRequest) -> None:
    """Its client writes to the memory that its inputs were in."""
    for tensor in request.inputs if request.in_regions else ():
        if isinstance(tensor, RegionTensor) and isinstance(tensor.place.region, HeldRegion):
            tensor.place.region.spoil()
