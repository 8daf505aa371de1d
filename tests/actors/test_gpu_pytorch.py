"""PyTorch models on GPUs, from request to answer: the real PyTorch, on a stand-in for ``torch.cuda``."""

from __future__ import annotations

import gc
import importlib.util
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from counted_models import statistics_of
from fake_gpu import FakeGpus
from fake_torch_cuda import FakeTorch
from gpu_batches import Shared
from repository_models import REPOSITORY
from torch_modules import RunningSum

from trireme.actors import InferenceServer
from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.backends.pytorch.formats import TorchScriptProgram
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.datatypes import FP32
from trireme.engine.errors import TriremeError, UnavailableError
from trireme.engine.gpu.discovery import Gpu
from trireme.engine.gpu.pinned_pool import GpuLimits
from trireme.engine.memory.regions import RegionKind
from trireme.engine.memory.tensors import RegionTensor
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

Serve = Callable[..., AbstractAsyncContextManager[InferenceServer]]

SUM = """
backend: "pytorch" max_batch_size: 4
input { name: "X__0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "SUM__0" data_type: TYPE_FP32 dims: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START__1" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  state { input_name: "OLD__2" output_name: "NEW__1" data_type: TYPE_FP32 dims: [ 1 ] }
}
instance_group { kind: KIND_GPU count: 1 gpus: [ 0 ] }
"""

GROUPS = "instance_group { kind: KIND_GPU count: 2 gpus: [ 0, 1 ] }"


@pytest.fixture
def gpus() -> FakeGpus:
    return FakeGpus(count=2, seed=7)


@pytest.fixture
def fake(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch(gpus)
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def serve(tmp_path: Path, fake: FakeTorch) -> Serve:
    """``serve(limits=...)``: a server with the models that are in `tmp_path`, on a machine with two GPUs."""

    @asynccontextmanager
    async def opened(limits: GpuLimits | None = None) -> AsyncIterator[InferenceServer]:
        there = tuple(Gpu(index, f"GPU-{index}", (9, 0)) for index in range(2))
        options = ServerOptions(model_repository=(tmp_path,), gpus=there, gpu_limits=limits or GpuLimits())
        registry = BackendRegistry(options.options_for_backend, {"pytorch": PyTorchBackend})
        with fake.gpus.started():
            async with InferenceServer(options, backends=registry) as server:
                yield server

    return opened


@pytest.fixture
def twin(tmp_path: Path) -> Callable[..., Any]:
    """Write the `digits` network as a PyTorch model with small batches, and give the module that it was made from."""
    path = REPOSITORY.parent / "framework_repository" / "make_digits_twins.py"
    spec = importlib.util.spec_from_file_location("make_digits_twins", path)
    assert spec is not None
    assert spec.loader is not None
    twins = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twins)

    def write(name: str, more: str = "") -> Any:
        make, fields = twins.TWINS[name]
        (tmp_path / "digits" / "1").mkdir(parents=True)
        config = twins.CONFIG.format(name="digits", **{"platform": "", **fields})
        config = config.replace("max_batch_size: 32", "max_batch_size: 4")  # each size is run when an instance starts
        start = config.index("instance_group")
        (tmp_path / "digits" / "config.pbtxt").write_text(config[:start] + GROUPS + more)
        (tmp_path / "digits" / "labels.txt").write_text("\n".join(map(str, range(10))))
        weights = twins.read_weights()
        make(weights, tmp_path / "digits" / "1")
        return twins.torch_module(weights)

    return write


def images(count: int) -> np.ndarray:
    with np.load(REPOSITORY / "digits_heldout.npz") as held_out:
        return next(array for array in held_out.values() if array.ndim == 3)[:count].astype(np.float32)


def image_request(image: np.ndarray, name: str = "IMAGE__0") -> InferenceRequest:
    return InferenceRequest("digits", inputs=[Tensor(name, FP32, (1, 8, 8), array=image[None])])


@pytest.mark.parametrize(
    ("name", "tensor", "more"),
    [
        ("digits_torchscript", "IMAGE__0", ""),
        ("digits_torchscript", "IMAGE__0", " optimization { cuda { graphs: true } }"),
        ("digits_exported", "ARGS[0]", ""),
    ],
)
async def test_digits_are_read_on_two_gpus_as_on_the_cpu(
    serve: Serve, twin: Any, name: str, tensor: str, more: str
) -> None:
    """Many requests at once: whatever lands early, late, or in another's memory shows in the answers."""
    module, pictures = twin(name, more), images(100)
    with torch.inference_mode():
        expected = module(torch.from_numpy(pictures)).numpy()
    found: dict[int, np.ndarray] = {}

    async with serve() as server:

        async def ask(at: int) -> None:
            response = await server.infer(image_request(pictures[at], tensor))
            found[at] = response.outputs[0].array[0]

        async with trio.open_nursery() as nursery:
            for at in range(len(pictures)):
                nursery.start_soon(ask, at)
        (entry,) = server.statistics("digits")
    np.testing.assert_allclose([found[at] for at in range(len(pictures))], expected, rtol=1e-4, atol=1e-6)
    statistics = entry.statistics
    assert statistics.inference_count == len(pictures)
    assert statistics.execution_count < len(pictures), "batches grow while the devices are at work"


async def test_sequences_add_up_side_by_side(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "sum" / "1").mkdir(parents=True)
    (tmp_path / "sum" / "config.pbtxt").write_text(SUM)
    torch.jit.script(RunningSum()).save(str(tmp_path / "sum" / "1" / "model.pt"))
    sums: dict[int, list[float]] = {}

    async with serve() as server:

        async def sequence(key: int) -> None:
            for step in range(4):
                tensor = Tensor("X__0", FP32, (1, 1), array=np.array([[key]], np.float32))
                request = InferenceRequest(
                    "sum",
                    inputs=[tensor],
                    correlation_id=key,
                    sequence_start=step == 0,
                    sequence_end=step == 3,
                )
                response = await server.infer(request)
                sums.setdefault(key, []).append(float(response.outputs[0].array[0, 0]))

        async with trio.open_nursery() as nursery:
            for key in range(1, 9):
                nursery.start_soon(sequence, key)
    assert sums == {key: [float(key * step) for step in range(1, 5)] for key in range(1, 9)}


async def test_limits_of_memory_reach_torch(serve: Serve, twin: Any) -> None:
    twin("digits_torchscript", 'parameters { key: "WARM_UP_BATCH_SIZES" value { string_value: "false" } }')
    async with serve(GpuLimits(device_pool_bytes={0: 64, 1: 64})) as server:
        with pytest.raises(UnavailableError, match=r"has no memory left: .* lower max_batch_size"):
            await server.infer(image_request(images(1)[0]))


async def test_an_instance_on_a_gpu_has_seen_every_batch_size_when_its_model_is_ready(
    serve: Serve, twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchScript compiles for each size that it meets, after two runs; not in the midst of serving."""
    twin("digits_torchscript")
    runs: list[int] = []
    real = TorchScriptProgram.run

    def run(self: TorchScriptProgram, inputs: Any) -> Any:
        runs.append(len(next(iter(inputs.values()))))
        return real(self, inputs)

    monkeypatch.setattr(TorchScriptProgram, "run", run)
    async with serve() as server:
        seen = Counter(runs)
        assert seen == dict.fromkeys(range(1, max(seen) + 1), 3 * 4), "four instances, three times each"
        assert max(seen) > 1
        assert statistics_of(server, "digits").execution_count == 0


async def test_inputs_in_the_memory_of_the_one_gpu_are_not_read_by_the_server(
    serve: Serve, twin: Any, fake: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin("digits_torchscript")
    config = tmp_path / "digits" / "config.pbtxt"
    config.write_text(config.read_text().replace("gpus: [ 0, 1 ]", "gpus: [ 1 ]"))
    read: list[int] = []
    real = fake.driver.cuMemcpyDtoH_v2
    monkeypatch.setattr(fake.driver, "cuMemcpyDtoH_v2", lambda *arguments: (read.append(1), real(*arguments))[1])
    picture = images(1)
    async with serve() as server:
        plain = await server.infer(image_request(picture[0]))
        expected = plain.outputs[0].array.copy()
        for gpu, reads in ((1, 0), (0, 1)):
            tensor = Shared(fake.driver, gpu).tensor("IMAGE__0", picture)
            request = InferenceRequest("digits", inputs=[tensor], in_regions=True)
            response = await server.infer(request)
            np.testing.assert_allclose(response.outputs[0].array, expected, rtol=1e-5)
            assert len(read) == reads, "from the other GPU, by the host"


async def test_outputs_that_are_wanted_in_the_memory_of_a_gpu_are_there_with_the_answer(
    serve: Serve, twin: Any, fake: FakeTorch, gpus: FakeGpus, tmp_path: Path
) -> None:
    """Many at once, some of them wanted on the other GPU, from where the host gets them; and some regions are gone
    before the answer is there."""
    module, pictures = twin("digits_torchscript"), images(40)
    config = tmp_path / "digits" / "config.pbtxt"
    config.write_text(config.read_text().replace("gpus: [ 0, 1 ]", "gpus: [ 1 ]"))
    with torch.inference_mode():
        expected = module(torch.from_numpy(pictures)).numpy()
    shares = [Shared(fake.driver, gpu) for gpu in (1, 0)]
    placed: list[int] = []
    async with serve() as server:

        async def ask(at: int) -> None:
            shared = shares[at % 10 == 9]
            allocation, place = shared.place(40)
            request = image_request(pictures[at])
            request.output_places = {"PROBABILITIES__0": place}
            reply = await server.admit(request)
            if at % 4 == 0:
                shared.regions.unregister(RegionKind.CUDA)
            del place, request
            (output,) = (await reply.response()).outputs
            if isinstance(output, RegionTensor):
                placed.append(at)
                found = np.frombuffer(allocation.memory[16:], np.float32)
            else:
                assert not any(allocation.memory)
                found = output.array[0]
            np.testing.assert_allclose(found, expected[at], rtol=1e-4, atol=1e-6)

        await server.infer(image_request(pictures[0]))
        gpus.done.clear()
        await ask(0)
        assert (placed, gpus.done.count("copy out")) == ([0], 0)
        async with trio.open_nursery() as nursery:
            for at in range(1, len(pictures)):
                nursery.start_soon(ask, at)
    assert not {at for at in placed if at % 10 == 9}


async def test_a_cancelled_request_holds_its_region_no_longer_than_its_batch(
    serve: Serve, twin: Any, fake: FakeTorch
) -> None:
    twin("digits_torchscript")
    async with serve() as server:
        shared = Shared(fake.driver)
        for _ in range(4):
            request = image_request(images(1)[0])
            request.output_places = {"PROBABILITIES__0": shared.place(40)[1]}
            reply = await server.admit(request)
            reply.cancel()
            del request, reply
        shared.regions.unregister(RegionKind.CUDA)
        await server.infer(image_request(images(1)[0]))
    gc.collect()
    assert fake.driver.mapped == {}


@pytest.mark.parametrize("placed", [False, True])
async def test_a_sick_gpu_costs_its_instances_and_not_the_server(
    serve: Serve, twin: Any, gpus: FakeGpus, fake: FakeTorch, placed: bool
) -> None:
    twin("digits_torchscript")
    async with serve() as server:
        await server.infer(image_request(images(1)[0]))
        gpus.sick = 700
        for _ in range(4):
            request = image_request(images(1)[0])
            request.output_places = {"PROBABILITIES__0": Shared(fake.driver).place(40)[1]} if placed else None
            with pytest.raises(TriremeError), trio.fail_after(20):
                await server.infer(request)
        assert server.live()


async def test_the_thread_that_hears_of_landings_ends_with_its_server(
    tmp_path: Path, fake: FakeTorch, twin: Any
) -> None:
    twin("digits_torchscript")
    options = ServerOptions(model_repository=(tmp_path,), gpus=(Gpu(0, "GPU-0", (9, 0)), Gpu(1, "GPU-1", (9, 0))))
    registry = BackendRegistry(options.options_for_backend, {"pytorch": PyTorchBackend})
    before = set(threading.enumerate())
    with fake.gpus.started():
        async with InferenceServer(options, backends=registry) as server:
            await server.infer(image_request(images(1)[0]))
            (thread,) = [each for each in set(threading.enumerate()) - before if each.name == "GPU callbacks"]
        await trio.to_thread.run_sync(thread.join, 60)
    assert not thread.is_alive()
