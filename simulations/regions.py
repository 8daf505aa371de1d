"""Inputs that are in shared memory, and those of them that are so large that a thread reads them
(docs/reference/shared-memory.md#tensors-in-regions).

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from ..engine.admission.large_requests import LARGE_BYTES
from ..engine.datatypes import FP32
from ..engine.errors import InvalidArgumentError
from ..engine.memory.regions import Region, RegionSlice
from ..engine.memory.tensors import RegionTensor
from ..engine.request import InferenceRequest
from ..engine.tensor import Tensor
from .plan import ModelPlan, Plan, RequestPlan
from .shapes import Shapes

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


def _takes_large(model: ModelPlan) -> bool:
    return model.shapes.is_sized and model.shapes is not Shapes.RAGGED and not model.cached


class _HeldRegion(Region):
    """A region in memory; it was cut short if `data` is None."""

    def __init__(self, name: str, data: bytes | None) -> None:
        self.name = name
        self._data = data

    def read(self, start: int, end: int) -> memoryview:
        if self._data is None:
            raise InvalidArgumentError(f"shared memory region '{self.name}' {LOST}")
        return memoryview(self._data)[start:end]

    def spoil(self) -> None:
        """Its client writes something else there."""
        self._data = self._data and b"\x7f" * len(self._data)

    def check_size(self, nbytes: int) -> None:
        """Any will do."""


def in_region(request: RequestPlan, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs of a request, those of them in shared memory that hold rows."""
    data = None if request.number % CUT == 0 else inputs[0].array.tobytes()
    nbytes = inputs[0].nbytes
    region = _HeldRegion(f"region {request.number}", data)
    return [
        RegionTensor(each.name, FP32, each.shape, RegionSlice(region, 0, nbytes))
        if each.datatype is FP32 and each.nbytes == nbytes
        else each
        for each in inputs
    ]


def spoil(request: InferenceRequest) -> None:
    """Its client writes to the memory that its inputs were in, which must have been read."""
    for tensor in request.inputs if request.in_regions else ():
        if isinstance(tensor, RegionTensor) and isinstance(tensor.place.region, _HeldRegion):
            tensor.place.region.spoil()
