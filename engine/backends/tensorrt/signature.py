"""What an engine says about its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...config.model import Dims
from ...datatypes import BF16, BOOL, FP16, FP32, INT8, INT32, INT64, UINT8
from ...errors import UnsupportedError
from ..signature import GraphTensor, Signature

_TYPES = {
    "FLOAT": FP32,
    "HALF": FP16,
    "BF16": BF16,
    "INT8": INT8,
    "UINT8": UINT8,
    "INT32": INT32,
    "INT64": INT64,
    "BOOL": BOOL,
}
"""By the names of TensorRT's ``DataType``. The smaller floats and integers that it also has are none of Trireme's."""


@dataclass(frozen=True, slots=True)
class Range:
    """What a profile allows for one input: its dimensions, or the values of a shape tensor."""

    minimum: Dims
    optimum: Dims
    maximum: Dims


@dataclass(frozen=True, slots=True)
class EngineTensors:
    """Inputs and outputs of an engine.

    Attributes:
        signature: names, types and shapes.
        shape_tensors: names of those whose values shapes depend on, or that are shapes.
        on_host: names of those that TensorRT reads or writes in the host's memory.
        shapes: for each profile, what shapes the inputs may have.
        values: for each profile, what values the inputs among the shape tensors may have.
    """

    signature: Signature
    shape_tensors: frozenset[str]
    on_host: frozenset[str]
    shapes: tuple[Mapping[str, Range], ...]
    values: tuple[Mapping[str, Range], ...]


def engine_tensors(trt: Any, engine: Any, model: str) -> EngineTensors:
    """Ask an ``ICudaEngine``.

    Raises:
        UnsupportedError: a tensor is not linear in memory.
    """
    names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
    inputs: dict[str, GraphTensor] = {}
    outputs: dict[str, GraphTensor] = {}
    for name in names:
        if engine.get_tensor_format(name) != trt.TensorFormat.LINEAR:
            raise UnsupportedError(
                f"unable to load model '{model}': tensor '{name}' has the format "
                f"{engine.get_tensor_format(name).name}, but only LINEAR is supported; build the engine with linear "
                "input and output formats"
            )
        dims = tuple(engine.get_tensor_shape(name))
        element = engine.get_tensor_dtype(name).name
        tensors = inputs if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else outputs
        tensors[name] = GraphTensor(name, element, _TYPES.get(element), dims)
    shape_tensors = frozenset(name for name in names if engine.is_shape_inference_io(name))
    profiles = range(engine.num_optimization_profiles)
    return EngineTensors(
        Signature(inputs, outputs),
        shape_tensors,
        frozenset(name for name in names if engine.get_tensor_location(name) == trt.TensorLocation.HOST),
        tuple({name: _range(engine.get_tensor_profile_shape(name, at)) for name in inputs} for at in profiles),
        tuple(
            # The arguments are in this order, whatever the names that the binding gives them.
            {name: _range(engine.get_tensor_profile_values(at, name)) for name in inputs if name in shape_tensors}
            for at in profiles
        ),
    )


def _range(three: Any) -> Range:
    minimum, optimum, maximum = three
    return Range(tuple(minimum), tuple(optimum), tuple(maximum))
