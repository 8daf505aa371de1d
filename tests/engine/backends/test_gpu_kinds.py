"""What each backend makes of GPUs that the server was told of: where models go that leave it open, and which file is
theirs (docs/reference/model-configuration.md#instance-groups, docs/reference/model-configuration.md#other-fields)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from python_models import CONFIG, ask, open_repository, write_model

from trireme.actors import StartupError
from trireme.engine.backends.interface import Backend, InstanceSpec, ModelFiles
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.backends.onnxruntime.session import model_path
from trireme.engine.backends.openvino import OpenVinoBackend
from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.backends.tensorrt import TensorRtBackend
from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfig, ModelConfigMessage
from trireme.engine.errors import TriremeError
from trireme.engine.gpu.discovery import Gpu
from trireme.python_backend import PythonBackend

TWO_GPUS = (Gpu(0, "GPU-a", (8, 0)), Gpu(1, "GPU-b", (9, 0)))

SPECIAL = (
    "cc_model_filenames { key: '9.0' value: 'hopper' } instance_group { name: 'm' kind: KIND_GPU count: 1 gpus: 1 }"
)

TELLS_WHERE_IT_IS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            kinds = ["CPU", "GPU", "MODEL"]
            self.place = [kinds.index(args["model_instance_kind"]), int(args["model_instance_device_id"])]

        def execute(self, requests):
            tensor = pb_utils.Tensor("OUTPUT0", np.array([self.place], np.float32))
            return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
"""Answers with its kind, 0 to 2, and its device."""


def config(backend: str, text: str) -> ModelConfig:
    return model_config(text_format.Parse(f'name: "m" backend: "{backend}" {text}', ModelConfigMessage()))


@pytest.mark.parametrize(
    ("make", "uses"), [(PythonBackend, True), (TensorRtBackend, True), (OpenVinoBackend, False)], ids=str
)
def test_some_backends_know_without_looking(make: Callable[..., Backend], uses: bool) -> None:
    """Python models decide for themselves; TensorRT can do nothing else, OpenVINO cannot do it."""
    assert make({}).uses_gpus() is uses


@pytest.mark.parametrize("available", [False, True])
def test_torch_uses_gpus_if_it_can(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert PyTorchBackend({}).uses_gpus() is available


@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", "OpenVINOExecutionProvider"])
def test_onnx_runtime_uses_gpus_if_it_was_built_for_them(monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [provider, "CPUExecutionProvider"])
    assert OnnxRuntimeBackend({}).uses_gpus() is (provider == "CUDAExecutionProvider")


@pytest.mark.parametrize(
    ("make", "backend"), [(PythonBackend, "python"), (PyTorchBackend, "pytorch"), (TensorRtBackend, "tensorrt")]
)
def test_a_backend_wants_the_file_for_the_gpu(make: Callable[..., Backend], backend: str, tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, 1, {1: "9.0"})
    with pytest.raises(TriremeError, match="hopper"):
        make({}).load(config(backend, SPECIAL), files)


def test_onnx_runtime_reads_the_file_for_the_gpu(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, 1, {0: "8.0", 1: "9.0"})
    files.version_directory.mkdir()
    for name in ("hopper", "model.onnx"):
        (files.version_directory / name).touch()
    special = config("onnxruntime", SPECIAL)
    for gpu, name in ((0, "model.onnx"), (1, "hopper")):
        assert model_path(special, files, InstanceSpec("m_0", "KIND_GPU", gpu)).name == name


@pytest.mark.parametrize(
    ("groups", "places"),
    [
        ("", {(1.0, 0.0), (1.0, 1.0)}),
        ("instance_group { kind: KIND_GPU gpus: 1 }", {(1.0, 1.0)}),
        ("instance_group { kind: KIND_CPU }", {(0.0, 0.0)}),
        ("instance_group { kind: KIND_MODEL }", {(2.0, 0.0)}),
    ],
)
async def test_python_models_are_told_where_they_are(
    tmp_path: Path, groups: str, places: set[tuple[float, float]]
) -> None:
    """An instance a GPU if nothing else is said (docs/reference/python-backend.md#instance-kinds); what they do there
    is their own affair."""
    write_model(tmp_path, "m", TELLS_WHERE_IT_IS, CONFIG + groups)
    async with open_repository(tmp_path, gpus=TWO_GPUS) as server:
        seen: set[tuple[float, float]] = set()
        for _ in range(20):
            response = await server.infer(ask("m", 1))
            kind, device = response.output("OUTPUT0").array.flat
            seen.add((float(kind), float(device)))
            if seen == places:
                break
        assert seen == places


def write_openvino_model(repository: Path, groups: str) -> None:
    """OUTPUT0 = 2 INPUT0."""
    import openvino
    from openvino import opset13 as ops

    directory = write_model(repository, "m", "", CONFIG.replace("python", "openvino") + groups)
    taken: Any = ops.parameter([-1, -1], openvino.Type.f32, name="INPUT0")
    taken.output(0).set_names({"INPUT0"})
    given: Any = ops.add(taken, taken)
    given.output(0).set_names({"OUTPUT0"})
    make: Any = openvino.Model
    openvino.save_model(make([given], [taken], "m"), directory / "1" / "model.xml", compress_to_fp16=False)


async def test_an_openvino_model_that_leaves_it_open_is_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    write_openvino_model(tmp_path, "")
    async with open_repository(tmp_path, gpus=TWO_GPUS) as server:
        response = await server.infer(ask("m", 3))
        assert response.output("OUTPUT0").array.tolist() == [[6.0]]
        assert [group.kind for group in server.describe("m").config.instance_group] == ["KIND_CPU"]


async def test_an_openvino_model_on_a_gpu_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    write_openvino_model(tmp_path, "instance_group { kind: KIND_GPU }")
    with pytest.raises(StartupError) as caught:
        async with open_repository(tmp_path, gpus=TWO_GPUS):
            pass
    (entry,) = caught.value.index
    assert entry.reason.endswith("unable to load model 'm', Triton OpenVINO backend supports only Kind CPU and AUTO")
