"""What clients of a swarm run send."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..engine.datatypes import FP32
from ..engine.request import InferenceRequest
from ..engine.tensor import Tensor
from .plan import UNKNOWN_MODEL, Plan, RequestPlan
from .regions import in_region
from .rows import held
from .shapes import Shapes, extra_input, extra_value


class RequestMaker:
    """Makes requests. All inputs of a request hold the same."""

    def __init__(self, plan: Plan) -> None:
        self._unbatched = {model.name for model in plan.models if not model.max_batch_size} | {UNKNOWN_MODEL}
        self._shapes = {model.name: model.shapes for model in plan.models}
        self._counts = {model.name: model.inputs for model in plan.models} | {UNKNOWN_MODEL: 1}

    def held(self, plan: RequestPlan) -> tuple[np.ndarray, np.ndarray | int]:
        """What each input holds, and what `EXTRA` adds to that."""
        is_row = plan.model in self._unbatched and plan.rows == 1
        array = held(plan.content or plan.number, (plan.width,) if is_row else (plan.rows, plan.width))
        return array, extra_value(self._shapes.get(plan.model, Shapes.FIXED), plan.extra, array)

    def make(
        self, plan: RequestPlan, place: Callable[[Sequence[Tensor]], list[Tensor]] | None = None
    ) -> InferenceRequest:
        """A request.

        Args:
            place: gives inputs in shared memory, if they are elsewhere than where `regions` has them.
        """
        array, _ = self.held(plan)
        count = self._counts[plan.model]
        inputs = [Tensor(f"INPUT{index}", FP32, array.shape, array=array) for index in range(count)]
        extra = extra_input(self._shapes.get(plan.model, Shapes.FIXED), plan.extra, array)
        if extra is not None:
            inputs.append(extra)
        return InferenceRequest(
            plan.model,
            id=str(plan.number),
            inputs=inputs if not plan.region else in_region(plan, inputs) if place is None else place(inputs),
            in_regions=plan.region,
            priority=plan.priority,
            timeout_us=plan.timeout_us,
            correlation_id=plan.sequence,
            sequence_start=plan.start,
            sequence_end=plan.end,
        )
