"""Execution providers and their options; with a stand-in for a build of ONNX Runtime that has them all."""

from __future__ import annotations

from typing import Any

import pytest

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.backends.onnxruntime.session import providers
from trireme.engine.config.model import Accelerator, InstanceGroup, ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InvalidArgumentError, UnavailableError

CPU = ("CPUExecutionProvider", {})
ON_CPU = InstanceSpec("m_0", "KIND_CPU")
ON_GPU = InstanceSpec("m_0", "KIND_GPU", 2)


class FullBuild:
    @staticmethod
    def get_available_providers() -> list[str]:
        return [
            "TensorrtExecutionProvider",
            "CUDAExecutionProvider",
            "OpenVINOExecutionProvider",
            "CPUExecutionProvider",
        ]


def chosen(spec: InstanceSpec, **fields: Any) -> list[tuple[str, dict[str, str]]]:
    return providers(ModelConfig("m", **fields), spec, FullBuild)


def tensorrt(**parameters: str) -> dict[str, str]:
    return chosen(ON_GPU, gpu_accelerators=(Accelerator("tensorrt", parameters),))[0][1]


def test_the_cpu_alone_for_cpu_and_model_instances_whatever_the_gpu_accelerators() -> None:
    accelerators = (Accelerator("tensorrt", {}), Accelerator("nonsense", {}))
    assert chosen(ON_CPU, gpu_accelerators=accelerators) == [CPU]
    assert chosen(InstanceSpec("m_0", "KIND_MODEL"), gpu_accelerators=accelerators) == [CPU]


def test_a_gpu_instance_runs_on_its_device_with_the_cpu_as_fallback() -> None:
    assert chosen(ON_GPU) == [("CUDAExecutionProvider", {"device_id": "2"}), CPU]


def test_options_of_the_cuda_accelerator_are_passed_on() -> None:
    accelerator = Accelerator("cuda", {"tunable_op_enable": "1", "do_copy_in_default_stream": "False", "empty": ""})
    assert chosen(ON_GPU, gpu_accelerators=(accelerator,))[0] == (
        "CUDAExecutionProvider",
        {"tunable_op_enable": "1", "do_copy_in_default_stream": "0", "device_id": "2"},
    )


def test_deprecated_cuda_parameters() -> None:
    parameters = {
        "cudnn_conv_algo_search": "1",
        "gpu_mem_limit": "18446744073709551615",
        "arena_extend_strategy": "1",
        "do_copy_in_default_stream": "true",
    }
    assert chosen(ON_GPU, parameters=parameters)[0][1] == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": "18446744073709551615",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",
        "device_id": "2",
    }
    assert chosen(ON_CPU, parameters={"cudnn_conv_algo_search": "9"}) == [CPU]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("cudnn_conv_algo_search", "3", "unsupported cudnn_conv_algo_search value '3' is requested"),
        ("arena_extend_strategy", "-1", "unsupported arena_extend_strategy value '-1' is requested"),
        ("arena_extend_strategy", "x", "failed to convert 'x' to integral number"),
        ("gpu_mem_limit", "4GB", "failed to convert '4GB' to integral number"),
        ("do_copy_in_default_stream", "2", "failed to convert '2' to boolean"),
    ],
)
def test_deprecated_cuda_parameters_that_are_refused(key: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        chosen(ON_GPU, parameters={key: value})
    assert caught.value.message == text


def test_tensorrt_comes_before_cuda() -> None:
    names = [name for name, _ in chosen(ON_GPU, gpu_accelerators=(Accelerator("tensorrt", {}),))]
    assert names == ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("FP32", {}),
        ("FP16", {"trt_fp16_enable": "1"}),
        ("BF16", {"trt_bf16_enable": "1"}),
        ("INT8", {"trt_int8_enable": "1"}),
    ],
)
def test_tensorrt_precision(precision: str, options: dict[str, str]) -> None:
    assert tensorrt(precision_mode=precision) == {**options, "device_id": "2"}


def test_tensorrt_options() -> None:
    assert tensorrt(
        max_workspace_size_bytes="1073741824",
        int8_calibration_table_name="table",
        int8_use_native_calibration_table="on",
        trt_engine_cache_enable="True",
        trt_engine_cache_path="/cache",
        trt_builder_optimization_level="5",
    ) == {
        "trt_max_workspace_size": "1073741824",
        "trt_int8_calibration_table_name": "table",
        "trt_int8_use_native_calibration_table": "1",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/cache",
        "trt_builder_optimization_level": "5",
        "device_id": "2",
    }


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("precision_mode", "FP8", "unsupported precision mode 'FP8' is requested"),
        ("max_workspace_size_bytes", "big", "failed to convert 'big' to integral number"),
        ("trt_cuda_graph_enable", "maybe", "failed to convert 'maybe' to boolean"),
        ("trt_nonsense", "1", "unknown parameter 'trt_nonsense' is provided for TensorRT Execution Accelerator"),
    ],
)
def test_tensorrt_options_that_are_refused(key: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        tensorrt(**{key: value})
    assert caught.value.message == text


def test_openvino_is_for_the_cpu() -> None:
    expected = ("OpenVINOExecutionProvider", {"device_type": "CPU"})
    assert chosen(ON_CPU, cpu_accelerators=(Accelerator("openvino", {}),)) == [expected, CPU]


@pytest.mark.parametrize("where", ["cpu_accelerators", "gpu_accelerators"])
def test_unknown_accelerators(where: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        chosen(ON_GPU, **{where: (Accelerator("warp_drive", {}),)})
    assert caught.value.message == "unknown Execution Accelerator 'warp_drive' is requested"


@pytest.mark.parametrize(
    ("group_kind", "fields", "needs", "remedy"),
    [
        ("KIND_GPU", {}, "CUDAExecutionProvider", "pip install trireme-server[gpu]"),
        ("KIND_GPU", {"gpu_accelerators": (Accelerator("cuda", {}),)}, "CUDAExecutionProvider", "trireme-server[gpu]"),
        (
            "KIND_GPU",
            {"gpu_accelerators": (Accelerator("tensorrt", {}),)},
            "TensorrtExecutionProvider",
            "trireme-server[gpu,tensorrt]",
        ),
        (
            "KIND_CPU",
            {"cpu_accelerators": (Accelerator("openvino", {}),)},
            "OpenVINOExecutionProvider",
            "pip install onnxruntime-openvino",
        ),
    ],
)
def test_a_provider_that_the_build_lacks_is_a_load_error_that_says_what_to_install(
    models: Any, monkeypatch: pytest.MonkeyPatch, group_kind: str, fields: Any, needs: str, remedy: str
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    models.unary()
    config = ModelConfig(
        "m",
        max_batch_size=8,
        input=(ModelInput("X", FP32, (4,)),),
        output=(ModelOutput("Y", FP32, (4,)),),
        instance_group=(InstanceGroup("m", group_kind, 1),),
        **fields,
    )
    with pytest.raises(UnavailableError) as caught:
        OnnxRuntimeBackend({}).load(config, models.files)
    assert f"instance 'm_0' of {group_kind} needs {needs}, which the installed ONNX Runtime does not have" in str(
        caught.value
    )
    assert remedy in str(caught.value)
