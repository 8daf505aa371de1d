"""Plans for `fake_tensorrt`: a few lines of JSON, and the functions that they name, in numpy.

A plan says what its engine's inputs and outputs are, what its profiles allow, for which TensorRT and which GPU it was
"built", and what it computes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

VERSION = "11.4.0.106"
COMPUTE = "9.0"

Dims = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Function:
    """What an engine computes.

    Attributes:
        shapes: of the outputs, from the inputs' shapes and the values of shape tensors; -1 where only `compute` knows.
        compute: the outputs from the inputs.
    """

    shapes: Callable[[Mapping[str, Dims], Arrays], Mapping[str, Dims]]
    compute: Callable[[Arrays], Mapping[str, np.ndarray]]


def _resized_shapes(shapes: Mapping[str, Dims], values: Arrays) -> Mapping[str, Dims]:
    wanted = tuple(values["SHAPE"].tolist())
    if math.prod(wanted) > 50:
        raise ValueError(f"{list(wanted)} is too large")
    return {"OUT": wanted, "OUT_SHAPE": shapes["SHAPE"]}


def _resized(inputs: Arrays) -> Mapping[str, np.ndarray]:
    shape = inputs["SHAPE"]
    return {"OUT": np.resize(inputs["IN"], tuple(shape)), "OUT_SHAPE": shape}


FUNCTIONS = {
    "double": Function(lambda shapes, _: {"OUT": shapes["IN"]}, lambda arrays: {"OUT": arrays["IN"] + arrays["IN"]}),
    "sum_difference": Function(
        lambda shapes, _: {"SUM": shapes["A"], "DIFFERENCE": shapes["A"]},
        lambda arrays: {"SUM": arrays["A"] + arrays["B"], "DIFFERENCE": arrays["A"] - arrays["B"]},
    ),
    "nonzero": Function(
        lambda shapes, _: {"OUT": (-1,)}, lambda arrays: {"OUT": np.flatnonzero(arrays["IN"]).astype(np.int64)}
    ),
    "resize": Function(_resized_shapes, _resized),
    "stretch": Function(
        lambda shapes, values: {"OUT": (shapes["IN"][0], int(values["SHAPE"])), "OUT_SHAPE": ()},
        lambda arrays: {
            "OUT": np.resize(arrays["IN"], (len(arrays["IN"]), int(arrays["SHAPE"]))),
            "OUT_SHAPE": arrays["SHAPE"],
        },
    ),
    "count": Function(
        lambda shapes, _: {"OUT": shapes["IN"], "STATE_OUT": shapes["STATE_IN"]},
        lambda arrays: {"OUT": arrays["IN"] + arrays["STATE_IN"], "STATE_OUT": arrays["IN"] + arrays["STATE_IN"]},
    ),
    "scaled_rows": Function(
        lambda shapes, _: {"OUT": shapes["IN"]},
        lambda arrays: {
            "OUT": arrays["IN"] * np.repeat(np.arange(len(arrays["ENDS"])), np.diff(arrays["ENDS"], prepend=0))
        },
    ),
}


def tensor(name: str, dims: Dims, *profiles: tuple[Dims, Dims, Dims], element: str = "FLOAT", **more: Any) -> dict:
    """An input or an output of a plan.

    Args:
        profiles: for each, the least, best and largest shape; those of `dims` if there are none.
        more: ``shape=True`` for a shape tensor, with its ``values`` like `profiles`; ``format``.
    """
    return {"name": name, "dims": dims, "profiles": profiles or [(dims,) * 3], "element": element, **more}


def plan(function: str, inputs: list[dict], outputs: list[dict], **more: Any) -> bytes:
    """A plan file.

    Args:
        more: ``version`` and ``compute`` for which it was built, ``plugin`` that it needs, ``host_code``.
    """
    described = {"version": VERSION, "compute": COMPUTE, "function": function, "inputs": inputs, "outputs": outputs}
    return json.dumps(described | more).encode()


def double_plan(*, element: str = "FLOAT", columns: int = 4, most: int = 8, **more: Any) -> bytes:
    """OUT = 2 IN, both [-1,columns], for batches of up to `most`."""
    shapes = ((1, columns), (most, columns), (most, columns))
    return plan(
        "double",
        [tensor("IN", (-1, columns), shapes, element=element)],
        [tensor("OUT", (-1, columns), element=element)],
        **more,
    )
