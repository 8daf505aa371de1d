"""Inputs that are made up from a model's metadata, to see whether it answers at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

InputShape = tuple[str, str, Sequence[int]]
"""An input's name, the protocol's name of its type, and its shape, in which -1 stands for any size."""

_ZEROS: dict[str, object] = {"BYTES": "0", "BOOL": False, "FP16": 0.0, "FP32": 0.0, "FP64": 0.0, "BF16": 0.0}


def sample_inputs(inputs: Iterable[InputShape]) -> list[dict[str, Any]]:
    """An input of a JSON request for each: zeros, as text where it takes text; of any size there is one."""
    return [_sample(*each) for each in inputs]


def _sample(name: str, datatype: str, shape: Sequence[int]) -> dict[str, Any]:
    sizes = [1 if size < 0 else size for size in shape]
    value = _ZEROS.get(datatype, 0)
    return {"name": name, "datatype": datatype, "shape": sizes, "data": [value] * math.prod(sizes)}
