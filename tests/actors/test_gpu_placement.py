"""Models of a real repository on GPUs that the server was told of: from the configuration to the instances' devices."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from counted_models import CONFIG, Counter, counted_request
from fake_nvml import FakeGpu, FakeNvml
from later_files import later_change

from trireme.actors import InferenceServer
from trireme.api.cli.tables import startup_tables
from trireme.engine.backends.interface import (
    Backend,
    Completion,
    InstanceSpec,
    LoadedModel,
    ModelFiles,
    ModelInstance,
)
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.errors import InvalidArgumentError, UnavailableError
from trireme.engine.gpu.discovery import Gpu
from trireme.engine.gpu.pinned_pool import GpuLimits
from trireme.engine.job import ExecutionBatch
from trireme.engine.options import ControlMode, ServerOptions

GPUS = (
    Gpu(0, "GPU-a", (8, 0), 80 << 30, "NVIDIA A100"),
    Gpu(1, "GPU-b", (9, 0), 80 << 30, "NVIDIA H100"),
    Gpu(2, "GPU-c", (5, 2), 4 << 30, "Quadro M2000"),
)


class Places:
    """The test's view of a backend.

    Attributes:
        specs: of the instances, in order of their names.
        files: the model file of each, by name.
        asked: what the backend was asked about, with the kinds that stood in the configuration then.
        uses_gpus: what the backend says.
    """

    def __init__(self, uses_gpus: bool | None = True) -> None:
        self.made: list[InstanceSpec] = []
        self.files: dict[str, str] = {}
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.uses_gpus = uses_gpus

    @property
    def specs(self) -> list[InstanceSpec]:
        return sorted(self.made, key=lambda spec: spec.name)

    def registry(self) -> BackendRegistry:
        places = self
        counter = Counter()

        class Instance(ModelInstance):
            def execute(self, batch: ExecutionBatch) -> None:
                for job in batch.jobs:
                    counter.execute(job)

        class Loaded(LoadedModel):
            def __init__(self, config: ModelConfig, files: ModelFiles) -> None:
                self.config, self.files = config, files

            def create_instance(self, spec: InstanceSpec) -> ModelInstance:
                places.made.append(spec)
                places.files[spec.name] = self.files.model_path(self.config, spec, "model.plan").name
                return Instance()

        class Counted(Backend):
            name = "counted"

            def uses_gpus(self) -> bool:
                if places.uses_gpus is None:
                    raise UnavailableError("the package is missing")
                return places.uses_gpus

            def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
                places.asked.append((config.name, tuple(group.kind for group in config.instance_group)))
                return None

            def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
                places.asked.append(("load", ()))
                return Loaded(config, files)

        return BackendRegistry(lambda _name: {}, {"counted": Counted})


def write(repository: Path, text: str, name: str = "m") -> None:
    with later_change(repository / name):
        (repository / name / "1").mkdir(parents=True, exist_ok=True)
        (repository / name / "config.pbtxt").write_text(CONFIG + text)


@asynccontextmanager
async def placed(
    repository: Path, places: Places, text: str, gpus: tuple[Gpu, ...] = GPUS, **options: object
) -> AsyncIterator[InferenceServer]:
    """A server in explicit mode, with the model `m` written but not loaded."""
    write(repository, text)
    settings = ServerOptions(
        model_repository=(repository,),
        model_control_mode=ControlMode.EXPLICIT,
        gpus=gpus,
        **options,  # type: ignore[arg-type]
    )
    async with InferenceServer(settings, backends=places.registry()) as server:
        yield server


def rows(places: Places) -> list[tuple[str, str, int]]:
    return [(spec.name, spec.kind, spec.device_id) for spec in places.specs]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("m_0", "KIND_GPU", 0), ("m_1", "KIND_GPU", 1)]),
        ("instance_group { kind: KIND_GPU count: 2 gpus: 1 }", [("m_0_0", "KIND_GPU", 1), ("m_0_1", "KIND_GPU", 1)]),
        (
            "instance_group { kind: KIND_GPU count: 2 gpus: [ 0, 1 ] }",
            [("m_0_0", "KIND_GPU", 0), ("m_0_1", "KIND_GPU", 0), ("m_0_2", "KIND_GPU", 1), ("m_0_3", "KIND_GPU", 1)],
        ),
        (
            "instance_group [ { kind: KIND_CPU }, { gpus: 0 }, { kind: KIND_MODEL } ]",
            [("m_0_0", "KIND_CPU", 0), ("m_1_0", "KIND_GPU", 0), ("m_2_0", "KIND_MODEL", 0)],
        ),
    ],
)
async def test_instances_are_where_their_groups_say(
    tmp_path: Path, text: str, expected: list[tuple[str, str, int]]
) -> None:
    """Count times on each of the GPUs that are listed, or on all that can do enough."""
    places = Places()
    async with placed(tmp_path, places, text) as server:
        await server.load_model("m", {})
        assert rows(places) == expected
        await server.infer(counted_request())
        (entry,) = server.statistics("m")
        assert set(entry.statistics.devices) == {device for _, kind, device in expected if kind == "KIND_GPU"}


@pytest.mark.parametrize("gpus", [GPUS, ()])
async def test_what_is_left_open_stays_on_the_cpu_where_the_backend_uses_no_gpus_or_there_are_none(
    tmp_path: Path, gpus: tuple[Gpu, ...]
) -> None:
    places = Places(uses_gpus=not gpus)
    async with placed(tmp_path, places, "", gpus) as server:
        await server.load_model("m", {})
        assert rows(places) == [("m_0", "KIND_CPU", 0)]


async def test_a_backend_is_not_asked_about_gpus_where_there_are_none(tmp_path: Path) -> None:
    async with placed(tmp_path, Places(uses_gpus=None), "", ()) as server:
        await server.load_model("m", {})
        assert server.model_ready("m")


async def test_a_backend_without_its_library_says_so(tmp_path: Path) -> None:
    async with placed(tmp_path, Places(uses_gpus=None), "") as server:
        with pytest.raises(InvalidArgumentError, match="UNAVAILABLE state: Unavailable: the package is missing"):
            await server.load_model("m", {})


async def test_a_gpu_that_can_do_too_little_is_none(tmp_path: Path) -> None:
    text = "instance_group { kind: KIND_GPU gpus: [ 0, 2 ] }"
    async with placed(tmp_path, Places(), text, min_compute_capability=8.0) as server:
        with pytest.raises(InvalidArgumentError) as caught:
            await server.load_model("m", {})
    assert str(caught.value) == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: instance group m_0 of model m "
        "specifies invalid or unsupported gpu id 2. GPUs with at least the minimum required CUDA compute compatibility "
        "of 8.000000 are: 0, 1;\n"
    )


async def test_a_backend_is_asked_when_it_is_known_where_the_instances_go(tmp_path: Path) -> None:
    """What a plan is, only the GPU can tell that it was made for
    (docs/reference/model-configuration.md#where-it-comes-from)."""
    places = Places()
    async with placed(tmp_path, places, "") as server:
        await server.load_model("m", {})
        assert places.asked == [("m", ("KIND_GPU",)), ("load", ())]


async def test_each_gpu_has_the_file_for_its_compute_capability(tmp_path: Path) -> None:
    text = (
        "instance_group [ { kind: KIND_GPU }, { kind: KIND_CPU } ] default_model_filename: 'any.plan' "
        "cc_model_filenames { key: '9.0' value: 'hopper.plan' }"
    )
    places = Places()
    async with placed(tmp_path, places, text) as server:
        await server.load_model("m", {})
    assert places.files == {"m_0_0": "any.plan", "m_0_1": "hopper.plan", "m_1_0": "any.plan"}


async def test_instances_move_to_another_gpu_while_the_model_stays_loaded(tmp_path: Path) -> None:
    places = Places()
    async with placed(tmp_path, places, "instance_group { kind: KIND_GPU gpus: 0 }") as server:
        await server.load_model("m", {})
        write(tmp_path, "instance_group { kind: KIND_GPU gpus: 1 }")
        await server.load_model("m", {})
        assert rows(places) == [("m_0_0", "KIND_GPU", 0), ("m_0_0", "KIND_GPU", 1)]
        assert places.asked.count(("load", ())) == 1
        write(tmp_path, "")
        await server.load_model("m", {})
        assert places.asked.count(("load", ())) == 1
        assert {spec.kind for spec in places.specs} == {"KIND_GPU"}


async def test_a_model_is_not_loaded_onto_a_gpu_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend is not even asked to load it; once there is room, it is loaded."""
    places = Places()
    limits = GpuLimits(load_fractions={1: 0.5})
    full = FakeGpu("GPU-b", total_bytes=100, used_bytes=51)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(full))  # type: ignore[arg-type]
    async with placed(tmp_path, places, "instance_group { kind: KIND_GPU }", gpu_limits=limits) as server:
        with pytest.raises(InvalidArgumentError) as caught:
            await server.load_model("m", {})
        assert str(caught.value) == (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Unavailable: can not create model 'm_0_1': "
            "memory limit set for GPU 1 has exceeded, model loading is rejected.;\n"
        )
        assert ("load", ()) not in places.asked
        full.used_bytes = 50
        await server.load_model("m", {})
        assert server.model_ready("m")


async def test_backends_get_the_limits(tmp_path: Path) -> None:
    limits = GpuLimits(5, {0: 7})
    registry = Places().registry()
    InferenceServer(ServerOptions(gpu_limits=limits), backends=registry)
    assert registry.get("counted").services.gpu_limits == limits


async def test_the_tables_tell_what_may_be_taken(tmp_path: Path) -> None:
    async with placed(tmp_path, Places(), "", gpu_limits=GpuLimits(5, {0: 7})) as server:
        *_, options = startup_tables(server)
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in options.splitlines() if "byte_size" in line]
    assert cells == [
        ["pinned_memory_pool_byte_size", "5"],
        ["cuda_memory_pool_byte_size{0}", "7"],
        ["cuda_memory_pool_byte_size{1}", "no limit"],
    ]
    assert "min_supported_compute_capability | 6.0" in options
