"""What user code hands to the utilities is of the types that Triton takes, or a TypeError there and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trireme.python_backend.child.utils import triton_python_backend_utils as pb_utils

ARRAY = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pb_utils.Tensor(None, ARRAY),  # type: ignore[arg-type]
        lambda: pb_utils.Tensor("a", [1, 2]),  # type: ignore[arg-type]
        lambda: pb_utils.Tensor("", None),  # type: ignore[arg-type]
        lambda: pb_utils.Tensor.from_dlpack(None, ARRAY),  # type: ignore[arg-type]
        lambda: pb_utils.TritonError(None),  # type: ignore[arg-type]
        lambda: pb_utils.TritonError("a", None),  # type: ignore[arg-type]
        lambda: pb_utils.InferenceResponse(None),  # type: ignore[arg-type]
        lambda: pb_utils.Logger.log("a", None),  # type: ignore[arg-type]
        lambda: pb_utils.Logger.log("a", 1),  # type: ignore[arg-type]
        lambda: pb_utils.Logger.log_info(None),  # type: ignore[arg-type]
        lambda: pb_utils.MetricFamily(None, "d", pb_utils.MetricFamily.COUNTER),  # type: ignore[arg-type]
        lambda: pb_utils.MetricFamily("n", None, pb_utils.MetricFamily.COUNTER),  # type: ignore[arg-type]
        lambda: pb_utils.MetricFamily("n", "d", 0),  # type: ignore[arg-type]
        lambda: pb_utils.load_model(5),  # type: ignore[arg-type]
        lambda: pb_utils.load_model("a", {}),  # type: ignore[arg-type]
        lambda: pb_utils.unload_model(None),  # type: ignore[arg-type]
        lambda: pb_utils.is_model_ready("a", 1),  # type: ignore[arg-type]
    ],
)
def test_other_types_are_an_error_at_once(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        call()


def test_bytes_stand_for_a_text() -> None:
    assert pb_utils.Tensor("ä".encode(), ARRAY).name() == "ä"  # type: ignore[arg-type]
    assert pb_utils.TritonError(b"a").message() == "a"  # type: ignore[arg-type]


def test_constants_print_as_their_names() -> None:
    """Whatever the version of Python makes of numbered constants."""
    shown = [pb_utils.Logger.INFO, pb_utils.MetricFamily.GAUGE, pb_utils.TritonError.CANCELLED]
    assert [str(constant).split(".")[1] for constant in shown] == ["INFO", "GAUGE", "CANCELLED"]
    assert str(pb_utils.TRITONSERVER_MEMORY_GPU) == "MemoryType.TRITONSERVER_MEMORY_GPU"
