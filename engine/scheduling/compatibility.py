"""Which requests may share a batch (docs/reference/scheduling.md#compatible-requests).

Rules:
 1. An input with a variable dimension must have one shape throughout a batch (batch dimension aside), unless the
    configuration allows ragged batches of it. Inputs of fixed shape are not compared: validation has checked them.
 2. A shape tensor must also have one content: the model reads it once a batch.
 3. If the model has optional inputs, all requests of a batch must give the same ones.
 4. Implicit states are inputs as well, and must agree in type and shape, which may be others than the configuration
    says: a model decides what it leaves behind.
 5. Nothing else matters: neither requested outputs nor parameters nor ids.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ..config.model import ModelConfig
from ..job import Job


@dataclass(slots=True, eq=False)
class Compatibility:
    """Gives each job a signature; jobs with equal signatures may share a batch.

    Args:
        shapes: inputs whose shapes, batch dimension aside, must agree (rule 1).
        contents: shape tensors: inputs without a batch dimension whose shape and content must agree (rule 2).
        same_inputs: whether the sets of input names must agree (rule 3).
        states: whether implicit states must agree (rule 4).
    """

    shapes: tuple[str, ...]
    contents: tuple[str, ...] = ()
    same_inputs: bool = False
    states: bool = False

    @classmethod
    def of(cls, config: ModelConfig, states: bool = False) -> Compatibility | None:
        """What the model's requests must agree on; None if any of them may share a batch.

        Args:
            states: whether it has implicit states.
        """
        if config.max_batch_size == 0:
            return None  # every request is executed alone
        contents = tuple(tensor.name for tensor in config.input if tensor.is_shape_tensor)
        shapes = tuple(
            tensor.name
            for tensor in config.input
            if -1 in tensor.dims and not tensor.allow_ragged_batch and not tensor.is_shape_tensor
        )
        same_inputs = any(tensor.optional for tensor in config.input)
        return cls(shapes, contents, same_inputs, states) if shapes or contents or same_inputs or states else None

    def signature(self, job: Job) -> Hashable:
        """What the jobs of a batch have in common with this one, which may lack optional inputs."""
        inputs = job.inputs
        parts: list[Hashable] = []
        for name in self.shapes:
            tensor = inputs.get(name)
            parts.append(None if tensor is None else tensor.shape[1:])
        for name in self.contents:
            tensor = inputs.get(name)
            parts.append(None if tensor is None else (tensor.shape, bytes(tensor.buffer)))
        if self.same_inputs:
            parts.append(frozenset(inputs))
        if self.states:
            parts.append(job.state.signature)
        return tuple(parts)
