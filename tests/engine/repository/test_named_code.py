"""With ``--allow-code-upload=false`` the configuration of a load request chooses no code."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format

from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.repository.uploads import refuse_named_code

ONNX = 'backend: "onnxruntime" default_model_filename: "model.onnx" '
PYTHON = 'backend: "python" default_model_filename: "model.py" '
PYTORCH = 'backend: "pytorch" default_model_filename: "model.pt" '
OTHER = 'backend: "other" '
ENVIRONMENT = PYTHON + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }'
EXECUTION = PYTHON + 'parameters { key: "EXECUTION" value { string_value: "%s" } }'
ACCELERATOR = (
    ONNX + "optimization { execution_accelerators { gpu_execution_accelerator { "
    'name: "%s" parameters { key: "%s" value: "%s" } } } }'
)


def message(text: str) -> Any:
    return text_format.Parse(text, ModelConfigMessage())


def check(given: str, own: str | None, *, brings_files: bool = False) -> None:
    refuse_named_code("m", message(given), None if own is None else message(own), brings_files=brings_files)


@pytest.mark.parametrize(
    ("field", "given", "own"),
    [
        ("backend 'python'", PYTHON, ONNX),
        ("backend 'other'", OTHER, PYTHON),
        ("default_model_filename 'other.py'", PYTHON.replace("model.py", "other.py"), PYTHON),
        ("cc_model_filenames['8.0'] 'x.pt'", PYTORCH + 'cc_model_filenames { key: "8.0" value: "x.pt" }', PYTORCH),
        ("runtime 'model.py'", PYTORCH + 'runtime: "model.py"', PYTORCH),
        ("runtime '/tmp/libtriton_x.so'", OTHER + 'runtime: "/tmp/libtriton_x.so"', OTHER),
        (
            "model_operations.op_library_filename '/tmp/b.so'",
            ONNX + 'model_operations { op_library_filename: ["a.so", "/tmp/b.so"] }',
            ONNX + 'model_operations { op_library_filename: "a.so" }',
        ),
        ("parameters['EXECUTION_ENV_PATH'] '/tmp/env'", ENVIRONMENT % "/tmp/env", ENVIRONMENT % "/opt/env"),
        ("parameters['EXECUTION_ENV_PATH'] '/tmp/env'", ENVIRONMENT % "/tmp/env", PYTHON),
        ("parameters['EXECUTION'] 'in_process'", EXECUTION % "in_process", PYTHON),
        (
            "parameters['CPU_EXTENSION_PATH'] 'x.so'",
            'backend: "openvino" parameters { key: "CPU_EXTENSION_PATH" value { string_value: "x.so" } }',
            'backend: "openvino"',
        ),
        (
            "parameters['TORCH_COMPILE_OPTIONAL_PARAMETERS'] '{}'",
            PYTORCH + 'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{}" } }',
            PYTORCH,
        ),
        (
            "parameter 'trt_extra_plugin_lib_paths' of the accelerator 'tensorrt' '/tmp/x.so'",
            ACCELERATOR % ("tensorrt", "trt_extra_plugin_lib_paths", "/tmp/x.so"),
            ONNX,
        ),
        (
            "parameter 'gpu_external_alloc' of the accelerator 'cuda' '140000'",
            ACCELERATOR % ("cuda", "gpu_external_alloc", "140000"),
            ONNX,
        ),
        (
            "model_repository_agents 'fetch from=b'",
            ONNX + 'model_repository_agents { agents { name: "fetch" parameters { key: "from" value: "b" } } }',
            ONNX + 'model_repository_agents { agents { name: "fetch" parameters { key: "from" value: "a" } } }',
        ),
        ("model_repository_agents left out", ONNX, ONNX + 'model_repository_agents { agents { name: "checksum" } }'),
    ],
)
def test_code_that_the_models_own_configuration_does_not_name_is_refused(field: str, given: str, own: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check(given, own)
    assert caught.value.message.startswith(f"load failed for model 'm': {field} in the configuration of the request: ")
    assert "--allow-code-upload=false" in caught.value.message
    check(own, own)


@pytest.mark.parametrize("given", [OTHER, ONNX + 'model_operations { op_library_filename: "a.so" }'])
def test_a_model_that_no_repository_has_may_name_none(given: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no configuration in a repository says so"):
        check(given, None, brings_files=True)


@pytest.mark.parametrize("backend", ["python", "pytorch", "tensorflow", "tensorrt"])
def test_files_are_not_given_to_a_backend_that_runs_them(backend: str) -> None:
    """Whatever they are called: a TorchScript archive need not begin like one."""
    config = f'backend: "{backend}" default_model_filename: "model.bin"'
    with pytest.raises(InvalidArgumentError, match=f"backend '{backend}' .* runs the files of the request as programs"):
        check(config, config, brings_files=True)
    check(config, config)


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (ONNX.replace("model.onnx", "other.onnx") + "max_batch_size: 8", ONNX),
        (ONNX + 'runtime: "libtriton_onnxruntime.so"', ONNX),
        (OTHER + 'runtime: "model.py"', OTHER),  # as the server shows the configuration of a Python-based backend
        (PYTHON, ENVIRONMENT % "/opt/env"),
        (ENVIRONMENT % "", PYTHON),
        (EXECUTION % "process", PYTHON),
        (ACCELERATOR % ("tensorrt", "precision_mode", "FP16"), ONNX),
        ('platform: "ensemble" ensemble_scheduling {}', ONNX),
    ],
)
def test_everything_else_may_be_replaced(given: str, own: str) -> None:
    check(given, own)


def test_data_of_a_backend_that_runs_none_may_be_a_new_model() -> None:
    check(ONNX, None, brings_files=True)
