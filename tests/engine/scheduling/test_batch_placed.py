"""Gathering the jobs of a batch into memory of the caller's choice (`BatchLayout.gather` with `allocate`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config.model import BatchInput, ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BYTES, DATATYPES, FP32, INT32, DataType
from trireme.engine.errors import InternalError
from trireme.engine.job import Job
from trireme.engine.request import InferenceRequest
from trireme.engine.scheduling.batch import BatchLayout
from trireme.engine.tensor import Tensor


class Arena:
    """Memory of the test's: what was asked for, filled with something that must be gone afterwards."""

    def __init__(self) -> None:
        self.made: list[np.ndarray] = []

    def __call__(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        memory = np.full(int(np.prod(shape)) * dtype.itemsize, 0xA5, np.uint8)
        self.made.append(memory.view(dtype).reshape(shape))
        return self.made[-1]

    def has(self, array: np.ndarray) -> bool:
        return any(array is made for made in self.made)


def config(*inputs: ModelInput, batch_input: tuple[BatchInput, ...] = ()) -> ModelConfig:
    outputs = (ModelOutput("Y", FP32, (1,)),)
    return ModelConfig("m", max_batch_size=8, input=inputs, output=outputs, batch_input=batch_input)


def job(array: np.ndarray, datatype: DataType, wire: bool) -> Job:
    made = Tensor("X", datatype, array.shape, array=array)
    if wire:
        made = Tensor("X", datatype, array.shape, memoryview(bytes(1) + bytes(made.buffer))[1:])
    return Job(InferenceRequest("m"), {"X": made}, array.shape[0], "m", 1, None)  # type: ignore[arg-type]


class Assigned(np.ndarray):
    """Counts how often numpy copies into it."""

    count = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        Assigned.count += 1
        super().__setitem__(key, value)


def test_what_came_over_the_wire_is_copied_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which lets go of the interpreter's lock for as long as that takes; a memoryview does not."""
    monkeypatch.setattr(Assigned, "count", 0)
    jobs = [job(np.full((2, 3), value, np.float32), FP32, wire=True) for value in (1, 2)]
    layout = BatchLayout(config(ModelInput("X", FP32, (3,))))
    _, inputs = layout.gather(jobs, lambda shape, dtype: np.empty(shape, dtype).view(Assigned))
    assert inputs["X"].tolist() == [[1] * 3] * 2 + [[2] * 3] * 2
    assert Assigned.count == 2


numeric = st.sampled_from([datatype for datatype in DATATYPES if datatype is not BYTES])


@given(numeric, st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=4), st.integers(0, 3))
def test_whatever_the_tensors_are_made_of_they_are_joined_there(
    datatype: DataType, jobs: list[tuple[int, bool]], width: int
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2, (rows, width)).astype(datatype.storage) for rows, _ in jobs]
    arena = Arena()
    kept, inputs = BatchLayout(config(ModelInput("X", datatype, (width,)))).gather(
        [job(array, datatype, wire) for array, (_, wire) in zip(arrays, jobs, strict=True)], arena
    )
    assert len(kept) == len(jobs)
    assert arena.has(inputs["X"])
    assert inputs["X"].dtype == datatype.storage
    assert np.array_equal(inputs["X"], np.concatenate(arrays))


def test_a_tensor_that_is_not_contiguous_is_copied_element_by_element() -> None:
    array, arena = np.arange(6, dtype=np.float32).reshape(2, 3).T, Arena()
    _, inputs = BatchLayout(config(ModelInput("X", FP32, (2,)))).gather([job(array, FP32, False)], arena)
    assert arena.has(inputs["X"])
    assert inputs["X"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_ragged_and_batch_inputs_are_there_too() -> None:
    made = BatchInput("BATCH_ELEMENT_COUNT", ("COUNT",), INT32, ("X",))
    layout = BatchLayout(config(ModelInput("X", FP32, (-1,), allow_ragged_batch=True), batch_input=(made,)))
    jobs = [job(np.full((1, size), size, np.float32), FP32, size == 2) for size in (1, 2)]
    arena = Arena()
    _, inputs = layout.gather(jobs, arena)
    assert (inputs["X"].tolist(), inputs["COUNT"].tolist()) == ([1, 2, 2], [1, 2])
    assert all(arena.has(array) for array in inputs.values())


def test_a_shape_tensor_is_there_once() -> None:
    jobs, arena = [job(np.array([7, 8], np.float32), FP32, wire) for wire in (True, False)], Arena()
    layout = BatchLayout(config(ModelInput("X", FP32, (2,), is_shape_tensor=True)))
    _, inputs = layout.gather(jobs, arena)
    assert arena.has(inputs["X"])
    assert inputs["X"].tolist() == [7, 8]


def test_strings_stay_where_they_are() -> None:
    array, arena = np.array([[b"a"]], object), Arena()
    _, inputs = BatchLayout(config(ModelInput("X", BYTES, (1,)))).gather([job(array, BYTES, False)], arena)
    assert inputs["X"].tolist() == [[b"a"]]
    assert arena.made == []


def test_shapes_that_do_not_go_together_are_still_refused() -> None:
    jobs = [job(np.zeros((1, size), np.float32), FP32, True) for size in (1, 2)]
    with pytest.raises(InternalError, match="only the first dimension may differ"):
        BatchLayout(config(ModelInput("X", FP32, (-1,)))).gather(jobs, Arena())
