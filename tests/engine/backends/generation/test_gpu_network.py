"""Networks on a stand-in for a GPU that does everything late: a wait that is missing, or one that a capture does not
allow, is an error there."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from counting_network import asks, said, whole
from fake_gpu import FakeGpus
from fake_torch_cuda import FakeTorch
from late_functions import LateFunctions, without_torchscript
from reference_networks import NEW, Played, Reference, one_thread
from small_llama import NEW as NEW_TEXT
from small_llama import PROMPT, write_adapter, write_llama

from trireme.actors import InferenceServer
from trireme.engine.backends.generation import GenerationBackend
from trireme.engine.backends.generation.gpu_network import GpuNetwork
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.errors import TriremeError
from trireme.engine.generation.iterations import Step
from trireme.engine.generation.requests import Generation
from trireme.engine.gpu.device import SickDeviceError
from trireme.engine.gpu.discovery import Gpu
from trireme.engine.gpu.torch_device import TorchDevices
from trireme.engine.options import ControlMode, ServerOptions

RUNNING = 6


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    made = FakeTorch(FakeGpus(count=1, seed=5))
    made.install(monkeypatch)
    without_torchscript(monkeypatch)
    with LateFunctions(made):
        yield made


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def make(fake: FakeTorch) -> Callable[..., GpuNetwork]:
    device = TorchDevices(load=lambda: fake, load_driver=lambda: fake.driver).get(0)
    return partial(GpuNetwork, gpu=device, name="writer_0", most_running=RUNNING)


@pytest.mark.parametrize("count", [1, 3])
def test_texts_are_what_transformers_generates(reference: Reference, count: int, make: Any, fake: FakeTorch) -> None:
    played = Played(reference, count, make=make, most_running=RUNNING)
    played.check(reference)
    steps: Any = played.network
    assert steps.decoding.launched == NEW - 1 - len(steps.decoding.captured)


def test_so_they_are_with_more_texts_than_run_and_little_memory(reference: Reference, make: Any) -> None:
    """Blocks are copied and swapped between graphs."""
    played = Played(reference, 8, make=make, blocks=26, most_running=4, held=40, swaps_from=4)
    played.check(reference)
    assert played.core.counts.swaps > 0
    decoding: Any = played.network
    assert decoding.decoding.launched > 10


def test_a_capture_that_waits_for_the_device_fails_alone(
    reference: Reference, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def waits(*arguments: Any) -> GpuNetwork:
        network = make(*arguments)
        network._model.lm_head.register_forward_hook(lambda _layer, _given, made: made.sum().item() and None)
        return network

    with caplog.at_level(logging.WARNING):
        played = Played(reference, 3, make=waits, most_running=RUNNING)
    played.check(reference)
    network: Any = played.network
    assert network.decoding.captured == []
    assert caplog.text.count("no CUDA graph for 4 texts of up to ") == 1
    assert "operation not permitted when stream is capturing" in caplog.text


def test_a_device_that_fails_is_no_error_of_a_step(reference: Reference, make: Any, fake: FakeTorch) -> None:
    played = Played(reference, 1, make=make, most_running=RUNNING)
    for prompt in reference.prompts[:2]:
        fake.gpus.sick = None
        played.core.arrive(Generation(0, list(prompt), NEW))
        step = played.core.begin_step(0.0)
        assert step is not None
        played.network.run(step)
        played.core.end_step({piece.generation: [1] for piece in step.pieces if piece.draws}, lambda _generation: False)
        step = played.core.begin_step(0.0)
        assert step is not None
        fake.gpus.sick = 700
        with pytest.raises(SickDeviceError, match="GPU 0 has failed"):
            played.network.run(step)
        played.core.fail_step()


def test_memory_goes_back_to_the_driver(
    reference: Reference, make: Any, fake: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fake.cuda.memory_allocated(0)
    played = Played(reference, 3, make=make, most_running=RUNNING)
    assert fake.cuda.memory_allocated(0) > before
    left = []
    real = fake.cuda.empty_cache

    def empty_cache() -> None:
        left.append(fake.cuda.memory_allocated(0) - before)
        real()

    monkeypatch.setattr(fake.cuda, "empty_cache", empty_cache)
    played.network.close()
    assert left == [0], "before unused memory went back to the driver"


class Served:
    """Models on the stand-in, whatever thread they are used on.

    Attributes:
        networks: that were made, in their order.
    """

    def __init__(self, repository: Path, fake: FakeTorch) -> None:
        self.networks = networks = list[GpuNetwork]()
        self._repository = repository

        class LateNetwork(GpuNetwork):
            def __init__(self, *arguments: Any, **more: Any) -> None:
                with LateFunctions(fake):
                    super().__init__(*arguments, **more)
                networks.append(self)

            def run(self, step: Step) -> np.ndarray:
                with LateFunctions(fake):
                    return super().run(step)

        class LateBackend(GenerationBackend):
            gpu_network_class = LateNetwork

        self._backend = LateBackend

    def write(self, *adapters: str, **parameters: object) -> str:
        """How the prompt goes on."""
        text = write_llama(self._repository / "writer" / "1")
        for seed, name in enumerate(adapters):
            write_adapter(self._repository / "writer" / "1" / "adapters" / name, seed)
        settings = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} ' for key, value in parameters.items()
        )
        config = f'backend: "generation" instance_group {{ kind: KIND_GPU gpus: [ 0 ] }} {settings}'
        (self._repository / "writer" / "config.pbtxt").write_text(config)
        return text

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[InferenceServer]:
        registry = BackendRegistry(lambda _name: {}, {"generation": self._backend})
        gpus = (Gpu(0, "GPU-0", (9, 0)),)
        settings = ServerOptions(model_repository=(self._repository,), gpus=gpus, **options)
        async with InferenceServer(settings, backends=registry) as server:
            yield server


@pytest.fixture
def served(fake: FakeTorch, tmp_path: Path) -> Iterator[Served]:
    with fake.gpus.started():
        yield Served(tmp_path, fake)


async def test_a_server_has_models_there(served: Served) -> None:
    text = served.write(kv_bytes="64k")
    async with served.open() as server:
        (response,) = await whole(server, asks(PROMPT, model="writer", max_tokens=NEW_TEXT))
        network: Any = served.networks[0]
        assert network._memory.scratch == 16, "64 KiB are so many blocks of 16 tokens of 256 bytes"
        assert network.decoding.launched > 5
    assert said(response) == [text]


async def test_texts_with_adapters_go_beside_others(served: Served) -> None:
    text = served.write("pirate", cuda_graphs=0)
    async with served.open() as server:
        (alone,) = await whole(server, asks(PROMPT, model="writer", max_tokens=5, lora_name="pirate"))
        answers = dict[str, Any]()

        async def ask(name: str) -> None:
            more: dict[str, Any] = {"lora_name": name} if name else {}
            (answers[name],) = await whole(server, asks(PROMPT, model="writer", max_tokens=5, **more))

        async with trio.open_nursery() as nursery:
            for name in ("pirate", ""):
                nursery.start_soon(ask, name)
        network: Any = served.networks[0]
        assert network.decoding.captured == [], "cuda_graphs is 0"
    assert said(answers[""]) == [text[: len(PROMPT) + 5]]
    assert said(answers["pirate"]) == said(alone) != said(answers[""])


async def test_a_device_that_fails_costs_the_instance(served: Served, fake: FakeTorch) -> None:
    served.write()
    async with served.open() as server:
        fake.gpus.sick = 700
        with pytest.raises(TriremeError, match="GPU 0 has failed, and nothing in this process can use it any more"):
            await whole(server, asks(PROMPT, model="writer", max_tokens=NEW_TEXT))


async def test_a_gpu_that_torch_does_not_find_is_named(served: Served, fake: FakeTorch) -> None:
    served.write()
    fake.gpus.count = 0
    async with served.open(model_control_mode=ControlMode.EXPLICIT) as server:
        with pytest.raises(TriremeError, match="'writer', instance 'writer_0_0' is to run on a GPU: "):
            await server.load_model("writer", {})
