"""The sequence models compute what Triton's example clients expect of them, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

REPOSITORY = Path(__file__).parents[2] / "model_repository"

Run = Callable[..., list[list[int]]]


def column(values: Sequence[Any], dtype: Any = np.int32) -> np.ndarray:
    """One value a row."""
    return np.array(values, dtype).reshape(-1, 1)


@pytest.fixture
def run() -> Callable[[str], Run]:
    """``run(model)(inputs)`` gives OUTPUT, and SUM of models that have it, as one list a tensor."""

    def open_model(name: str) -> Run:
        session = onnxruntime.InferenceSession(REPOSITORY / name / "1" / "model.onnx")
        outputs = sorted(output.name for output in session.get_outputs())
        return lambda **inputs: [np.asarray(array).ravel().tolist() for array in session.run(outputs, inputs)]

    return open_model


def test_start_adds_one(run: Callable[[str], Run]) -> None:
    given = {"INPUT": column([5, 5, 5]), "START": column([1, 0, 0]), "READY": column([1, 1, 0])}
    assert run("simple_sequence")(**given) == [[6, 5, 0]]


def test_the_end_adds_the_id(run: Callable[[str], Run]) -> None:
    given = {
        "INPUT": column([5, 5, 5, 5]),
        "START": column([1, 0, 0, 1]),
        "END": column([0, 0, 1, 1]),
        "READY": column([1, 1, 1, 1]),
        "CORRID": column([1000, 1001, 1002, 2**31 - 7], np.uint64),
    }
    assert run("simple_dyna_sequence")(**given) == [[6, 5, 1007, 2**31 - 1]]


def test_sums_go_on_from_the_last_one(run: Callable[[str], Run]) -> None:
    given = {"INPUT": column([5, -3]), "SUM_SO_FAR": column([0, 10])}
    assert run("running_sum")(**given) == [[5, 7], [5, 7]]


def test_the_id_is_added_to_the_output_but_not_to_the_sum(run: Callable[[str], Run]) -> None:
    given = {
        "INPUT": column([5, 5]),
        "END": column([0, 1]),
        "CORRID": column(["1002", "-1002"], object),
        "SUM_SO_FAR": column([1, 2]),
    }
    assert run("simple_string_dyna_sequence")(**given) == [[6, -995], [6, 7]]
