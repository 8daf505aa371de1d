"""Which outputs of a batch stay in a GPU's memory, and where they go there (`BatchLayout.place`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda

from trireme.engine.config.model import BatchOutput, ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.memory.cuda import CudaDriver
from trireme.engine.memory.regions import Regions, RegionSlice
from trireme.engine.memory.tensors import PlacedOutput
from trireme.engine.request import InferenceRequest
from trireme.engine.scheduling.batch import BatchLayout
from trireme.engine.tensor import Tensor

OUTPUT = ModelOutput("Y", FP32, (2,))


@pytest.fixture
def regions() -> Regions:
    cuda = FakeCuda(devices=2)
    regions = Regions(lambda: CudaDriver(cuda))
    for gpu in range(2):
        regions.register_cuda(f"gpu{gpu}", cuda.allocate(bytes(64), gpu).handle, gpu, 64)
    return regions


def layout(output: ModelOutput = OUTPUT, max_batch_size: int = 8, **fields: Any) -> BatchLayout:
    inputs = (ModelInput("X", FP32, output.dims),)
    return BatchLayout(ModelConfig("m", max_batch_size=max_batch_size, input=inputs, output=(output,), **fields))


def job(place: RegionSlice, rows: int = 1) -> Job:
    inputs = {"X": Tensor("X", FP32, (rows, 2), bytes(rows * 8))}
    return Job(InferenceRequest("m", output_places={"Y": place}), inputs, rows, "m", 1, None)  # type: ignore[arg-type]


def placed(layout: BatchLayout, jobs: list[Job], *shape: int) -> list[tuple[tuple[int, ...], int, int]] | None:
    """Shape, offset and size of each job's tensor."""
    (output,) = layout.place(jobs, 0, {"Y": shape})
    if output is None:
        return None
    return [(each.shape, each.place.offset, each.place.byte_size) for each in output.tensors]


def test_rows_go_where_their_jobs_want_them(regions: Regions) -> None:
    jobs = [job(regions.slice("gpu0", 32, 16), 2), job(regions.slice("gpu0", 0, 20))]
    assert placed(layout(), jobs, 3, 2) == [((2, 2), 32, 16), ((1, 2), 0, 8)]
    assert placed(layout(), jobs, 4, 2) == [((2, 2), 32, 16), ((1, 2), 0, 8)], "surplus is ignored"


def test_shapes_are_as_clients_see_them(regions: Regions) -> None:
    jobs = [job(regions.slice("gpu0", 0, 8))]
    assert placed(layout(ModelOutput("Y", FP32, (1, 2), reshape=(2,))), jobs, 1, 2) == [((1, 1, 2), 0, 8)]
    assert placed(layout(max_batch_size=0), jobs, 2) == [((2,), 0, 8)]
    assert placed(layout(ModelOutput("Y", FP32, (1, 1)), 0), jobs) == [((1, 1), 0, 4)], "a scalar"
    with pytest.raises(InternalError, match="promises the shape"):
        placed(layout(ModelOutput("Y", FP32, (1, 2), reshape=(2,))), jobs, 1, 3)


@pytest.mark.parametrize("shape", [(2, 2), (), (3, 3), (3, 0)])
def test_what_does_not_suffice_or_does_not_fit_goes_to_the_host(regions: Regions, shape: tuple[int, ...]) -> None:
    jobs = [job(regions.slice("gpu0", 32, 16), 2), job(regions.slice("gpu0", 0, 8))]
    assert placed(layout(), jobs, *shape) is None


def test_what_others_read_goes_to_the_host(regions: Regions) -> None:
    jobs = [job(regions.slice("gpu0", 0, 8))]
    scattered = layout(batch_output=(BatchOutput("BATCH_SCATTER_WITH_INPUT_SHAPE", ("Y",), ("X",)),))
    assert placed(scattered, jobs, 1, 2) is None
    assert placed(layout(), [job(regions.slice("gpu1", 0, 8))], 1, 2) is None
    cached = layout(response_cache=True)
    assert placed(cached, jobs, 1, 2) is None
    assert [each.wants_place(jobs) for each in (layout(), cached)] == [True, False]


def test_jobs_get_what_was_placed_and_those_that_lack_another_output_fail(regions: Regions) -> None:
    outputs = (OUTPUT, ModelOutput("Z", FP32, (1,)))
    both = BatchLayout(ModelConfig("m", max_batch_size=8, input=(ModelInput("X", FP32, (2,)),), output=outputs))
    jobs = [job(regions.slice("gpu0", 0, 8)), job(regions.slice("gpu0", 8, 8))]
    batch = ExecutionBatch(jobs, "m_0", None)  # type: ignore[arg-type]
    y, z = both.place(jobs, 0, {"Y": (2, 2), "Z": (1, 1)})
    assert isinstance(y, PlacedOutput)
    assert z is None
    shares = both.split(jobs, [y, np.ones((1, 1), np.float32)])
    assert [(each, [tensor.name for tensor in tensors]) for each, tensors in shares] == [(jobs[0], ["Y", "Z"])]
    assert shares[0][1][0] is y.tensors[0]
    ((failed, error, _),) = batch.answers
    assert failed is jobs[1]
    assert "expected batch size of atleast 2" in str(error)
