"""Large tensors in shared memory: read and written where they are, or copied once, on the instance's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from collected_answers import NoReply
from onnx import TensorProto, helper
from segments import Segment, open_segments

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.backends.onnxruntime.backend import OnnxRuntimeInstance
from trireme.engine.backends.onnxruntime.operators import follows_shapes
from trireme.engine.clock import SystemClock
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import FP32, INT32, DataType
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.memory.regions import Region, Regions
from trireme.engine.memory.tensors import RegionTensor, is_in_place
from trireme.engine.request import InferenceRequest, InferenceResponse

WIDTH = 1 << 15
ROW = 4 * WIDTH
"""Bytes."""


def started(models: Any, datatype: DataType, width: int) -> OnnxRuntimeInstance:
    """An instance of the model that was just made."""
    inputs, outputs = (ModelInput("X", datatype, (width,)),), (ModelOutput("Y", datatype, (width,)),)
    config = ModelConfig("m", max_batch_size=8, input=inputs, output=outputs)
    instance = OnnxRuntimeBackend({}).load(config, models.files).create_instance(InstanceSpec("m_0"))
    assert isinstance(instance, OnnxRuntimeInstance)
    return instance


class World:
    """A model that negates rows of `WIDTH` numbers, and a segment: rows of input, then as many of output."""

    def __init__(self, regions: Regions, segment: Segment, instance: OnnxRuntimeInstance, rows: int) -> None:
        self.regions = regions
        self.segment = segment
        self.instance = instance
        self.half = rows * ROW
        self.given: list[dict[str, np.ndarray]] = []
        genuine = instance._run

        def run(inputs: dict[str, np.ndarray]) -> Any:
            self.given.append(inputs)
            return genuine(inputs)

        instance._run = run

    def job(self, at: int, rows: int = 1, output: bool = True) -> Job:
        place = self.regions.slice("r", at * ROW, rows * ROW)
        inputs = {"X": RegionTensor("X", FP32, (rows, WIDTH), place)}
        places = {"Y": self.regions.slice("r", self.half + at * ROW, rows * ROW)} if output else None
        request = InferenceRequest("m", in_regions=True, output_places=places)
        return Job(request, inputs, rows, "m", 1, NoReply())

    def execute(self, *jobs: Job) -> list[Any]:
        batch = ExecutionBatch(jobs, "m_0", SystemClock())
        batch.aside = True
        self.instance.execute(batch)
        batch.finish()
        outcomes = {id(job): outcome for job, outcome, _ in batch.answers}
        return [outcomes[id(job)] for job in jobs]

    def numbers(self, at: int) -> np.ndarray:
        """A row of the segment."""
        return np.frombuffer(self.segment.data, np.float32)[at * WIDTH : (at + 1) * WIDTH]

    @property
    def memory(self) -> np.ndarray:
        """The region's mapping."""
        region = self.regions.slice("r", 0, 1).region
        assert isinstance(region, Region)
        assert region._mapping is not None
        return region._mapping.array


MakeWorld = Callable[..., World]


@pytest.fixture
def world(models: Any) -> Iterator[MakeWorld]:
    with open_segments() as make_segment:

        def make(rows: int = 4, operator: str = "Neg") -> World:
            models.unary(operator, shape=("n", WIDTH))
            instance = started(models, FP32, WIDTH)
            segment = make_segment(np.arange(1, 2 * rows * WIDTH + 1, dtype=np.float32).tobytes())
            regions = Regions()
            regions.register_system("r", segment.key, 0, 2 * rows * ROW)
            return World(regions, segment, instance, rows)

        yield make


def test_a_request_alone_is_read_and_written_where_it_is(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied: neither by us, nor by the descriptor."""
    made = world()
    copies: list[object] = []
    monkeypatch.setattr(Region, "read", lambda *args: copies.append(args))
    monkeypatch.setattr(Region, "write", lambda *args: copies.append(args))
    bound: list[np.ndarray] = []
    ortvalue = made.instance._runtime.OrtValue.ortvalue_from_numpy
    monkeypatch.setattr(
        made.instance._runtime.OrtValue, "ortvalue_from_numpy", lambda array: bound.append(array) or ortvalue(array)
    )
    job = made.job(1, rows=2)
    (answer,) = made.execute(job)
    assert np.shares_memory(bound[0], made.memory)
    assert not bound[0].flags.writeable
    (output,) = answer.outputs
    assert (output.shape, output.nbytes) == ((2, WIDTH), 2 * ROW)
    assert is_in_place(output, made.regions.slice("r", made.half + ROW, 2 * ROW))
    assert (copies, made.given) == ([], [])
    assert made.numbers(5).tolist() == (-made.numbers(1)).tolist()
    assert made.numbers(6).tolist() == (-made.numbers(2)).tolist()


@pytest.mark.parametrize("region", ["r", "another"])
@pytest.mark.parametrize("shift", [1, -1])
def test_an_output_that_overlaps_the_input_is_written_afterwards(world: MakeWorld, shift: int, region: str) -> None:
    """Also where the same memory is registered under two names."""
    made = world()
    made.regions.register_system("another", made.segment.key, 0, 2 * made.half)
    job = made.job(2, rows=2)
    job.request.output_places = {"Y": made.regions.slice(region, (2 + shift) * ROW, 2 * ROW)}
    expected = [(-made.numbers(at)).tolist() for at in (2, 3)]
    (answer,) = made.execute(job)
    assert isinstance(answer.outputs[0], RegionTensor)
    assert [made.numbers(2 + shift + at).tolist() for at in range(2)] == expected
    assert len(made.given) == 1  # not bound to that memory, which it reads meanwhile


def test_an_output_that_is_wanted_elsewhere_is_ours(world: MakeWorld) -> None:
    made = world()
    (answer,) = made.execute(made.job(0, output=False))
    (given,) = made.given
    assert np.shares_memory(given["X"], made.memory)
    assert not isinstance(answer.outputs[0], RegionTensor)
    assert answer.outputs[0].array.tolist() == [(-made.numbers(0)).tolist()]


def test_joined_requests_are_copied_once_each_way(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """From their regions to the batch's array, from the framework's to their regions."""
    made = world()
    reads: list[object] = []
    monkeypatch.setattr(Region, "read", lambda *args: reads.append(args))
    writes: list[int] = []
    write = Region.write

    def note(region: Region, start: int, data: Any) -> None:
        writes.append(len(data))
        write(region, start, data)

    monkeypatch.setattr(Region, "write", note)
    answers = made.execute(made.job(0), made.job(1, rows=2))
    (given,) = made.given
    assert given["X"].shape == (3, WIDTH)
    assert not np.shares_memory(given["X"], made.memory)
    assert (reads, writes) == ([], [ROW, 2 * ROW])
    for at in range(3):
        assert made.numbers(4 + at).tolist() == (-made.numbers(at)).tolist()
    assert all(isinstance(answer.outputs[0], RegionTensor) for answer in answers)


def test_a_model_that_looks_twice_has_a_copy(world: MakeWorld, models: Any) -> None:
    """It may sort, for instance, and must not see numbers change meanwhile."""
    made = world()
    assert follows_shapes(models.path)
    models.graph(
        [helper.make_node("Neg", ["X"], ["N"]), helper.make_node("TopK", ["N", "K"], ["Y", "I"])],
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor("K", TensorProto.INT64, [1], [WIDTH])],
    )
    assert not follows_shapes(models.path)
    other = World(made.regions, made.segment, started(models, FP32, WIDTH), 4)
    (answer,) = other.execute(other.job(0))
    (given,) = other.given
    assert not np.shares_memory(given["X"], other.memory)
    assert isinstance(answer.outputs[0], RegionTensor)
    assert other.numbers(4).tolist() == (-other.numbers(0)).tolist()


def test_whole_numbers_are_copied(models: Any) -> None:
    """They may be positions."""
    models.unary(shape=("n", 4), datatype="INT32")
    assert not started(models, INT32, 4).in_place


@pytest.mark.parametrize("before", [True, False], ids=["before it is read", "while it is read"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_input_that_is_cut_off_fails_its_request_alone(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, before: bool, jobs: int
) -> None:
    made = world()
    if before:
        made.segment.cut(2 * ROW)
    else:
        made.execute(made.job(0))  # maps the region
        check = Region._has_memory

        def cut(region: Region, start: int, end: int) -> bool:
            known = check(region, start, end)
            made.segment.cut(2 * ROW)
            return known

        monkeypatch.setattr(Region, "_has_memory", cut)
    batch = [made.job(at, output=False) for at in (2, 0)[:jobs]]
    answers = made.execute(*batch)
    assert f"was cut to {2 * ROW} bytes, but byte {3 * ROW - 1} of it is needed" in str(answers[0])
    if jobs == 2:
        assert isinstance(answers[1], InferenceResponse)
        assert answers[1].outputs[0].array.tolist() == [(-made.numbers(0)).tolist()]


def test_an_output_that_is_cut_off_fails_its_request(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was about to be written, in place or not."""
    for operator in ("Neg", "Abs"):
        made = world(operator=operator)
        made.execute(made.job(0))
        made.instance.in_place = operator == "Neg"
        ran = made.instance.session

        class Session:
            def __getattr__(self, name: str, ran: Any = ran, made: World = made) -> Any:
                if name.startswith("run"):
                    made.segment.cut(made.half)
                return getattr(ran, name)

        made.instance.session = Session()
        made.instance._run = lambda inputs, ran=ran, made=made: (made.segment.cut(made.half), ran.run(None, inputs))[1]
        (error,) = made.execute(made.job(0))
        assert f"was cut to {made.half} bytes, but byte {made.half + ROW - 1} of it is needed" in str(error)


def test_outputs_of_cancelled_requests_are_put_nowhere(world: MakeWorld) -> None:
    """Their clients may use the memory for something else."""
    made = world()
    job = made.job(0)
    job.cancelled = True
    before = made.numbers(4).tolist()
    (answer,) = made.execute(job)
    assert not isinstance(answer.outputs[0], RegionTensor)
    assert made.numbers(4).tolist() == before


def test_an_output_of_another_shape_than_the_configuration_says(world: MakeWorld, models: Any) -> None:
    """It is not where it was to be written, but whole; and that is not tried again."""
    made = world()
    made.instance._fixed_dims = {"Y": (WIDTH // 2,)}
    for _ in range(2):
        (answer,) = made.execute(made.job(0))
        assert answer.outputs[0].shape == (1, WIDTH)
        assert made.numbers(4).tolist() == (-made.numbers(0)).tolist()
    assert made.instance._fixed_dims == {}


def test_a_segment_without_memory_is_not_mapped(world: MakeWorld) -> None:
    """To read it would take memory that stays with the client."""
    made = world()
    made.segment.cut(0)
    made.segment.cut(2 * made.half)
    taken = made.segment.path.stat().st_blocks
    (answer,) = made.execute(made.job(0, output=False))
    assert not answer.outputs[0].array.any()
    assert made.segment.path.stat().st_blocks == taken == 0
