"""The small models compute what Triton's example clients expect of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

REPOSITORY = Path(__file__).parents[2] / "model_repository"

Run = Callable[..., Any]


@pytest.fixture
def run() -> Callable[[str], Run]:
    """``run(model)(*inputs)`` gives the outputs, INPUT0 and OUTPUT0 first."""

    def open_model(name: str) -> Run:
        session = onnxruntime.InferenceSession(REPOSITORY / name / "1" / "model.onnx")
        outputs = sorted(output.name for output in session.get_outputs())
        return lambda *inputs: session.run(outputs, {f"INPUT{i}": value for i, value in enumerate(inputs)})

    return open_model


@pytest.mark.parametrize(("name", "dtype"), [("simple", np.int32), ("simple_int8", np.int8)])
def test_sum_and_difference(run: Callable[[str], Run], name: str, dtype: type) -> None:
    first = np.arange(32, dtype=dtype).reshape(2, 16)
    second = np.full((2, 16), 5, dtype=dtype)
    total, difference = run(name)(first, second)
    assert total.dtype == difference.dtype == dtype
    np.testing.assert_array_equal(total, first + second)
    np.testing.assert_array_equal(difference, first - second)


def test_sum_and_difference_as_text(run: Callable[[str], Run]) -> None:
    """Integers come back as integers ("5", not "5.0"), negative ones and those beyond 32 bits too."""
    numbers = [*range(15), 2**40]
    first = np.array([[str(number) for number in numbers]], dtype=object)
    second = np.full((1, 16), "3", dtype=object)
    total, difference = run("simple_string")(first, second)
    assert total.tolist() == [[str(number + 3) for number in numbers]]
    assert difference.tolist() == [[str(number - 3) for number in numbers]]


def test_text_identity(run: Callable[[str], Run]) -> None:
    """NUL characters and characters outside ASCII survive."""
    text = np.array([["he\0llo", "", "\0\1\2\3", "größer"]], dtype=object)
    (same,) = run("simple_identity")(text)
    assert same.tolist() == text.tolist()


def test_number_identity(run: Callable[[str], Run]) -> None:
    numbers = np.random.default_rng(1).standard_normal((3, 16), dtype=np.float32)
    (same,) = run("identity_fp32")(numbers)
    np.testing.assert_array_equal(same, numbers)
