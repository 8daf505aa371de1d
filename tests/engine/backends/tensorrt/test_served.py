"""Plans in a server: the whole way, on threads, with devices that go on by themselves."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from fake_cupy import FakeCupy, fake_driver
from fake_gpu import FakeGpus
from fake_plans import double_plan, plan, tensor
from fake_tensorrt import FakeTensorRT

from trireme.actors import InferenceServer
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.backends.tensorrt import TensorRtBackend
from trireme.engine.datatypes import BY_NAME, FP32, INT32
from trireme.engine.errors import TriremeError
from trireme.engine.gpu.cupy_device import CupyDevices
from trireme.engine.gpu.discovery import Gpu
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

COUNT = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: [ 1 ] }
}
"""
RESIZE = """
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "SHAPE" data_type: TYPE_INT32 dims: [ 1 ] is_shape_tensor: true }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT_SHAPE" data_type: TYPE_INT32 dims: [ 1 ] is_shape_tensor: true }
dynamic_batching { max_queue_delay_microseconds: 1000 }
"""


WARM = """
model_warmup {
  name: "sample" batch_size: 1
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }
  inputs { key: "SHAPE" value { data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "shape" } }
}
"""
RESIZE_PLAN = plan(
    "resize",
    [
        tensor("IN", (-1, 2), ((1, 2), (4, 2), (8, 2))),
        tensor("SHAPE", (2,), element="INT32", shape=True, values=[((1, 1), (4, 3), (8, 9))]),
    ],
    [tensor("OUT", (-1, -1)), tensor("OUT_SHAPE", (2,), element="INT32", shape=True)],
)


@dataclass
class House:
    """A server on a machine with two GPUs.

    Attributes:
        repository: where its models are.
    """

    repository: Path
    gpus: FakeGpus
    trt: FakeTensorRT

    def add(self, name: str, engine: bytes, config: str = "", filename: str = "model.plan") -> None:
        (self.repository / name / "1").mkdir(parents=True, exist_ok=True)
        (self.repository / name / "1" / filename).write_bytes(engine)
        if config:
            (self.repository / name / "config.pbtxt").write_text(f'platform: "tensorrt_plan" {config}')

    @contextmanager
    def _running(self) -> Iterator[None]:
        self.trt.waits = True
        with self.gpus.started():
            yield

    @asynccontextmanager
    async def server(self, **options: Any) -> AsyncIterator[InferenceServer]:
        gpus = tuple(Gpu(index, compute_capability=(9, 0)) for index in range(self.gpus.count))
        registry = BackendRegistry(lambda _name: {}, {"tensorrt": TensorRtBackend})
        server = InferenceServer(
            ServerOptions(model_repository=(self.repository,), gpus=gpus, **options), backends=registry
        )
        cupy = sys.modules["cupy"]
        registry.services.gpus = CupyDevices(load=lambda: cupy, load_driver=lambda: fake_driver(self.gpus))
        with self._running():
            async with server:
                yield server


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    gpus = FakeGpus(count=2)
    cupy: Any = FakeCupy(gpus)
    trt: Any = FakeTensorRT(gpus, cupy.cuda._current)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    return House(tmp_path, gpus, trt)


def request(model: str, values: Any, datatype: str = "FP32", **fields: Any) -> InferenceRequest:
    array = np.array(values, BY_NAME[datatype].storage)
    tensor = Tensor("IN", BY_NAME[datatype], array.shape, array.tobytes())
    return replace(InferenceRequest(model, inputs=[tensor]), **fields)


async def test_a_plan_alone_is_enough(house: House) -> None:
    """Without a configuration: on all GPUs, in batches, and every request gets its own rows."""
    house.add("double", double_plan())
    async with house.server() as server:
        answers: dict[int, Any] = {}

        async def ask(key: int) -> None:
            response = await server.infer(request("double", [[key] * 4]))
            answers[key] = response.output("OUT").array.tolist()

        async with trio.open_nursery() as nursery:
            for key in range(200):
                nursery.start_soon(ask, key)
        assert answers == {key: [[2.0 * key] * 4] for key in range(200)}
        config = server.describe("double").config
        assert (config.max_batch_size, config.dynamic_batching is not None) == (8, True)
        assert [(group.kind, group.gpus) for group in config.instance_group] == [("KIND_GPU", (0, 1))]
    assert sorted(context.engine.device for context in house.trt.contexts) == [0, 1]


async def test_graphs_and_instances_side_by_side(house: House) -> None:
    graphs = (
        "max_batch_size: 8 optimization { cuda { graphs: true } } instance_group { count: 2 kind: KIND_GPU gpus: 1 }"
    )
    house.add("double", double_plan(), graphs)
    async with house.server() as server:
        answers: dict[int, Any] = {}

        async def ask(key: int) -> None:
            response = await server.infer(request("double", [[key] * 4] * (key % 3 + 1)))
            answers[key] = response.output("OUT").array.tolist()

        async with trio.open_nursery() as nursery:
            for key in range(100):
                nursery.start_soon(ask, key)
        assert answers == {key: [[2.0 * key] * 4] * (key % 3 + 1) for key in range(100)}


async def test_sequences_keep_their_states(house: House) -> None:
    rows = ((1, 1), (4, 1), (4, 1))
    engine = plan(
        "count",
        [tensor("IN", (-1, 1), rows, element="INT32"), tensor("STATE_IN", (-1, 1), rows, element="INT32")],
        [tensor("OUT", (-1, 1), element="INT32"), tensor("STATE_OUT", (-1, 1), element="INT32")],
    )
    house.add("count", engine, COUNT)
    sums: dict[int, list[int]] = {}
    async with house.server() as server:

        async def sequence(key: int) -> None:
            for step in range(4):
                flags = {"sequence_start": step == 0, "sequence_end": step == 3}
                response = await server.infer(request("count", [[key]], "INT32", correlation_id=key, **flags))
                sums.setdefault(key, []).append(int(response.output("OUT").array[0, 0]))

        async with trio.open_nursery() as nursery:
            for key in range(1, 9):
                nursery.start_soon(sequence, key)
    assert sums == {key: [key * step for step in range(1, 5)] for key in range(1, 9)}


async def test_only_requests_with_equal_shape_values_share_a_batch(house: House) -> None:
    house.add("resize", RESIZE_PLAN, RESIZE)
    shapes: dict[int, tuple[int, ...]] = {}
    async with house.server() as server:

        async def ask(key: int) -> None:
            rows, columns = key % 2 + 1, key % 3 + 1
            values = np.zeros((rows, 2), np.float32)
            numbers = np.array([rows, columns], np.int32)
            inputs = [
                Tensor("IN", FP32, values.shape, values.tobytes()),
                Tensor("SHAPE", INT32, (2,), numbers.tobytes()),
            ]
            response = await server.infer(InferenceRequest("resize", inputs=inputs))
            assert response.output("OUT_SHAPE").array.tolist() == [[columns]] * rows
            shapes[key] = response.output("OUT").shape

        async with trio.open_nursery() as nursery:
            for key in range(30):
                nursery.start_soon(ask, key)
    assert shapes == {key: (key % 2 + 1, key % 3 + 1) for key in range(30)}


async def test_outputs_whose_shape_only_the_computation_knows(house: House) -> None:
    """The thread of the instance waits for the device while TensorRT does; the server does not."""
    dims = ((1,), (4,), (8,))
    engine = plan("nonzero", [tensor("IN", (-1,), dims)], [tensor("OUT", (-1,), element="INT64")])
    config = """
        input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
        output { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }
    """
    house.add("nonzero", engine, config)
    found: dict[int, list[int]] = {}
    async with house.server() as server:

        async def ask(key: int) -> None:
            values = [float(key >> bit & 1) for bit in range(6)]
            response = await server.infer(request("nonzero", values))
            found[key] = response.output("OUT").array.tolist()

        async with trio.open_nursery() as nursery:
            for key in range(40):
                nursery.start_soon(ask, key)
    assert found == {key: [bit for bit in range(6) if key >> bit & 1] for key in range(40)}


async def test_shape_tensors_can_be_warmed_up_with(house: House) -> None:
    """A sample has the values only; the batch size of its requests, which is one, is put in front."""
    house.add("resize", RESIZE_PLAN, RESIZE + WARM)
    (house.repository / "resize" / "warmup").mkdir()
    (house.repository / "resize" / "warmup" / "shape").write_bytes(np.array([3], np.int32).tobytes())
    async with house.server() as server:
        assert server.model_ready("resize")
        assert [context.enqueued for context in house.trt.contexts] == [1, 1]


async def test_the_compute_capability_chooses_the_plan(house: House) -> None:
    house.add("double", b"for another GPU", 'cc_model_filenames { key: "9.0" value: "hopper.plan" }')
    house.add("double", double_plan(), filename="hopper.plan")
    async with house.server() as server:
        assert server.model_ready("double")


async def test_a_batch_that_cannot_be_executed_is_answered_and_the_next_one_is_fine(house: House) -> None:
    house.add("double", double_plan(columns=4), "max_batch_size: 8")
    async with house.server() as server:
        free, house.gpus.memory_bytes = house.gpus.memory_bytes, 0
        with pytest.raises(TriremeError, match="Out of memory"):
            await server.infer(request("double", [[1] * 4]))
        house.gpus.memory_bytes = free
        response = await server.infer(request("double", [[1] * 4]))
        assert response.output("OUT").array.tolist() == [[2.0] * 4]


async def test_without_a_gpu_it_says_so(house: House) -> None:
    house.gpus.count = 0
    house.add("double", double_plan(), "max_batch_size: 8")
    async with house.server(exit_on_error=False) as server:
        (entry,) = [entry for entry in server.repository_index() if entry.name == "double"]
        assert "unable to load model 'double', TensorRT backend supports only GPU device" in entry.reason
