"""Models that come with Trireme on GPUs, from request to answer: only CUDA and ONNX Runtime's GPU build are others."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import trio
from fake_cupy import FakeCupy, fake_driver
from fake_gpu import FakeGpus
from fake_onnxruntime_gpu import FakeOnnxRuntimeGpu
from repository_models import REPOSITORY

from trireme.actors import InferenceServer
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.datatypes import FP32, INT32
from trireme.engine.errors import TriremeError, UnavailableError
from trireme.engine.gpu.cupy_device import CupyDevices
from trireme.engine.gpu.discovery import Gpu
from trireme.engine.gpu.pinned_pool import GpuLimits, PinnedPool
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

Serve = Callable[..., AbstractAsyncContextManager[InferenceServer]]


@pytest.fixture
def gpus() -> FakeGpus:
    return FakeGpus(count=2, seed=1)


@pytest.fixture
def runtime(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> FakeOnnxRuntimeGpu:
    runtime = FakeOnnxRuntimeGpu(gpus)
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)  # pyright: ignore[reportArgumentType]
    return runtime


@pytest.fixture
def serve(tmp_path: Path, gpus: FakeGpus, runtime: FakeOnnxRuntimeGpu) -> Serve:
    """``serve(names, limits=...)``: a server with these models, two instances of each on two GPUs."""

    @asynccontextmanager
    async def opened(*names: str, limits: GpuLimits | None = None) -> AsyncIterator[InferenceServer]:
        for name in names:
            shutil.copytree(REPOSITORY / name, tmp_path / name)
            config = tmp_path / name / "config.pbtxt"
            config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU"))
        limits = limits or GpuLimits()
        there = tuple(Gpu(index, f"GPU-{index}", (9, 0)) for index in range(2))
        options = ServerOptions(model_repository=(tmp_path,), gpus=there, gpu_limits=limits)
        registry = BackendRegistry(options.options_for_backend)
        server = InferenceServer(options, backends=registry)
        cupy = FakeCupy(gpus)
        registry.services.gpus = CupyDevices(
            PinnedPool(limits.pinned_pool_bytes),
            limits.device_pool_bytes,
            load=lambda: cupy,
            load_driver=lambda: fake_driver(gpus),
        )
        with gpus.started():
            async with server:
                yield server

    return opened


def images(count: int) -> np.ndarray:
    with np.load(REPOSITORY / "digits_heldout.npz") as held_out:
        return next(array for array in held_out.values() if array.ndim == 3)[:count].astype(np.float32)


def image_request(image: np.ndarray) -> InferenceRequest:
    return InferenceRequest("digits", inputs=[Tensor("IMAGE", FP32, (1, 8, 8), array=image[None])])


async def test_digits_are_read_on_two_gpus_as_on_the_cpu(serve: Serve) -> None:
    """Many requests at once: whatever lands early, late, or in another's memory shows in the answers."""
    pictures = images(200)
    session = onnxruntime.InferenceSession(str(REPOSITORY / "digits" / "1" / "model.onnx"))
    expected = np.asarray(session.run(["PROBABILITIES"], {"IMAGE": pictures})[0])
    found: dict[int, np.ndarray] = {}

    async with serve("digits") as server:

        async def ask(at: int) -> None:
            response = await server.infer(image_request(pictures[at]))
            found[at] = np.array(response.outputs[0].array[0])

        async with trio.open_nursery() as nursery:
            for at in range(len(pictures)):
                nursery.start_soon(ask, at)
        (entry,) = server.statistics("digits")
    np.testing.assert_allclose([found[at] for at in range(len(pictures))], expected, rtol=1e-4, atol=1e-6)
    statistics = entry.statistics
    assert statistics.inference_count == len(pictures)
    assert statistics.execution_count < len(pictures), "batches grow while the devices are at work"
    assert min(statistics.compute_input.ns, statistics.compute_infer.ns, statistics.compute_output.ns) > 0


async def test_a_sequence_adds_up_on_a_gpu(serve: Serve) -> None:
    """The state is kept by the server, and goes there and back with each request."""
    async with serve("running_sum") as server:

        async def count(sequence: int) -> list[int]:
            sums = []
            for step in range(1, 6):
                tensor = Tensor("INPUT", INT32, (1, 1), array=np.array([[sequence * step]], np.int32))
                request = InferenceRequest(
                    "running_sum",
                    inputs=[tensor],
                    correlation_id=sequence,
                    sequence_start=step == 1,
                    sequence_end=step == 5,
                )
                response = await server.infer(request)
                sums.append(int(response.outputs[0].array[0, 0]))
            return sums

        results: dict[int, list[int]] = {}

        async def keep(sequence: int) -> None:
            results[sequence] = await count(sequence)

        async with trio.open_nursery() as nursery:
            for sequence in range(1, 9):
                nursery.start_soon(keep, sequence)
    assert results == {sequence: [sequence * total for total in (1, 3, 6, 10, 15)] for sequence in range(1, 9)}


async def test_a_batch_that_finds_no_memory_is_told_what_to_do_and_the_next_goes_on(
    serve: Serve, runtime: FakeOnnxRuntimeGpu
) -> None:
    async with serve("digits") as server:
        runtime.fail_next = "Failed to allocate memory for requested buffer of size 4096"
        with pytest.raises(UnavailableError, match=r"Failed to allocate memory .* lower max_batch_size"):
            await server.infer(image_request(images(1)[0]))
        await server.infer(image_request(images(1)[0]))


async def test_a_batch_that_only_warms_an_instance_up_may_fail(
    serve: Serve, runtime: FakeOnnxRuntimeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has asked for it."""
    runtime.fail_next = "the largest batch does not fit"
    async with serve("digits") as server:
        await server.infer(image_request(images(1)[0]))
    assert "is not warmed up for batches of " in caplog.text
    assert "the largest batch does not fit" in caplog.text


async def test_a_model_whose_pinned_memory_others_hold_is_served_all_the_same(serve: Serve, gpus: FakeGpus) -> None:
    gpus.pageable = 0
    async with serve("digits", limits=GpuLimits(pinned_pool_bytes=0)) as server:
        await server.infer(image_request(images(1)[0]))
    assert gpus.pageable >= 2


async def test_a_sick_gpu_costs_its_instances_and_not_the_server(serve: Serve, gpus: FakeGpus) -> None:
    async with serve("digits") as server:
        await server.infer(image_request(images(1)[0]))
        gpus.sick = 700
        for _ in range(4):
            with pytest.raises(TriremeError), trio.fail_after(20):
                await server.infer(image_request(images(1)[0]))
        assert server.live()


async def test_models_are_loaded_and_unloaded_with_all_that_they_hold(
    serve: Serve, gpus: FakeGpus, runtime: FakeOnnxRuntimeGpu
) -> None:
    async with serve("digits") as server:
        await server.infer(image_request(images(1)[0]))
        assert sum(runtime.live.values()) == 2
    assert sum(runtime.live.values()) == 0
    assert not any(gpus.stream(handle).queue for handle in runtime.live)
