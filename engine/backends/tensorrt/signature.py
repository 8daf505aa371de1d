"""What an engine says about its inputs and outputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...config.model import Dims
from ...datatypes import BF16, BOOL, FP16, FP32, INT8, INT32, INT64, UINT8
from ...errors import InternalError, InvalidArgumentError, TriremeError, UnsupportedError
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


# Optimisation profiles: which of an instance's fits a batch best (docs/reference/backends.md#tensorrt).
#
# Rules:
#  1. An instance has the profiles that its group names, or the engine's first one.
#  2. A batch fits a profile if every dimension of every input, and every value of every shape tensor, is within what
#     the profile allows.
#  3. Of those that it fits, it takes the one whose optimum is nearest: the sum of all differences, without their signs.
#     Of equals, the first.
#  4. What fits none is refused with what the first one says about it, and logged.


_log = logging.getLogger(__name__)

Shapes = Mapping[str, Dims]


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile of an engine.

    Attributes:
        name: as the configuration calls it: its number.
    """

    index: int
    name: str
    shapes: Mapping[str, Range]
    values: Mapping[str, Range]

    def check(self, shapes: Shapes, values: Shapes, instance: str) -> None:
        """Check a batch (rule 2).

        Raises:
            InternalError, InvalidArgumentError: it does not fit, in Triton's words.
        """
        for name, shape in shapes.items():
            wrong = _wrong_shape(shape, self.shapes[name])
            if wrong:
                raise InternalError(
                    f"request specifies invalid shape for input '{name}' for {instance}. Error details: {wrong}"
                )
        for name, given in values.items():
            wrong = _wrong_values(given, self.values[name])
            if wrong:
                raise InvalidArgumentError(wrong)

    def distance(self, shapes: Shapes, values: Shapes) -> int:
        """How far a batch that fits is from the optimum (rule 3)."""
        return sum(_difference(shape, self.shapes[name].optimum) for name, shape in shapes.items()) + sum(
            _difference(given, self.values[name].optimum) for name, given in values.items()
        )

    def __str__(self) -> str:
        return f"{self.name}[{self.index}]"


def chosen_profiles(tensors: EngineTensors, names: Sequence[str], instance: str) -> tuple[Profile, ...]:
    """The profiles of an instance (rule 1), in order of their numbers, each once.

    Raises:
        InvalidArgumentError: the engine has no such profile.
    """
    found: dict[int, Profile] = {}
    for name in names or ("0",):
        index = int(name)
        if index >= len(tensors.shapes):
            raise InvalidArgumentError(
                f"Can not set the specified optimization profile {name}[{index}] for {instance}. Expected optimization "
                f"profile index range 0-{len(tensors.shapes) - 1}"
            )
        if index in found:
            _log.warning(
                "%s maps to profile index %d which has been mapped by %s, existing optimization profile will be reused",
                name,
                index,
                found[index].name,
            )
            continue
        label = name if names else "default"
        found[index] = Profile(index, label, tensors.shapes[index], tensors.values[index])
    return tuple(found[index] for index in sorted(found))


def choose(profiles: Sequence[Profile], shapes: Shapes, values: Shapes, instance: str) -> Profile:
    """The profile for a batch (rules 3 and 4).

    Raises:
        InternalError, InvalidArgumentError: it fits none.
    """
    best: Profile | None = None
    nearest = 0
    for profile in profiles if len(profiles) > 1 else ():
        try:
            profile.check(shapes, values, instance)
        except TriremeError:
            continue
        distance = profile.distance(shapes, values)
        if best is None or distance < nearest:
            best, nearest = profile, distance
    if best is not None:
        return best
    if len(profiles) > 1:
        _log.error(
            "failed to find any Optimization Profile among [%s] to support the requested dimensions (or shape values), "
            "proceeding with first profile.",
            "".join(f" {profile}" for profile in profiles),
        )
    profiles[0].check(shapes, values, instance)
    return profiles[0]


def wrong_config_dims(dims: Dims, allowed: Range) -> str:
    """What is wrong with the dimensions that a configuration fixes, or nothing; -1 is not fixed."""
    pairs = zip(dims, allowed.minimum, strict=False)
    return _wrong_shape(tuple(least if dim == -1 else dim for dim, least in pairs), allowed)


def _wrong_shape(shape: Dims, allowed: Range) -> str:
    if len(shape) != len(allowed.maximum):
        return f"model expected {len(allowed.maximum)} dimensions but received {len(shape)} dimensions"
    for at, (dim, least, most) in enumerate(zip(shape, allowed.minimum, allowed.maximum, strict=True)):
        if not least <= dim <= most:
            return f"model expected the shape of dimension {at} to be between {least} and {most} but received {dim}"
    return ""


def _wrong_values(values: Dims, allowed: Range) -> str:
    if len(values) != len(allowed.maximum):
        return f"mismatch between the number of shape values. Expecting {len(allowed.maximum)}. Got {len(values)}"
    for at, (value, least, most) in enumerate(zip(values, allowed.minimum, allowed.maximum, strict=True)):
        if not least <= value <= most:
            return f"The shape value at index {at} is expected to be in range from {least} to {most}, Got: {value}"
    return ""


def _difference(dims: Dims, optimum: Dims) -> int:
    return sum(abs(dim - best) for dim, best in zip(dims, optimum, strict=True))
