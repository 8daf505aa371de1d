"""Plans that cannot be loaded, and configurations that do not fit them: the text says what is wrong, and what to do."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from fake_plans import VERSION, double_plan, plan, tensor

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.tensorrt import TensorRtBackend
from trireme.engine.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError

IN = 'input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }'
OUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }'


# The file


def test_without_the_library_the_error_names_the_extra(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    error = machine.refusal(double_plan())
    assert isinstance(error, UnavailableError)
    assert str(error).startswith(
        "the backend 'tensorrt' needs the package tensorrt: pip install trireme-server[tensorrt] ("
    )


def test_an_old_library_is_refused(machine: Any) -> None:
    machine.trt.__version__ = "8.6.1"
    text = "the backend 'tensorrt' needs TensorRT 10 or later, not 8.6.1: pip install trireme-server[tensorrt]"
    assert str(machine.refusal(double_plan())) == text


def test_no_file(machine: Any) -> None:
    path = machine.files.version_directory / "other.plan"
    error = machine.refusal(double_plan(), machine.config('max_batch_size: 8 default_model_filename: "other.plan"'))
    assert error.status_text == f"Unavailable: unable to find '{path}' for model instance 'm_0'"


@pytest.mark.parametrize(
    ("engine", "said", "remedy"),
    [
        (b"garbage", "magicTag", "the file is no plan of TensorRT, or is damaged"),
        (
            double_plan(version="10.3.0.26"),
            f"expecting library version {VERSION} got 10.3.0.26",
            f"it was built with another version of TensorRT than {VERSION}, which runs here: build it with that one",
        ),
        (
            double_plan(compute="8.0"),
            "expecting compute 9.0 got compute 8.0",
            "it was built for another GPU: build it on this one, and name the plans of different GPUs in cc_model_file",
        ),
        (
            double_plan(plugin="Mish"),
            "IPluginCreator not found",
            "it needs a plugin that is not there: name its library with --backend-config=tensorrt,plugins=",
        ),
        (
            double_plan(host_code=True),
            "engineHostCodeAllowed is false",
            "it brings code of its own: if you trust it, allow that with --backend-config=tensorrt,version-compatible=",
        ),
    ],
)
def test_a_plan_that_tensorrt_cannot_read(machine: Any, engine: bytes, said: str, remedy: str) -> None:
    """The text has TensorRT's reason, which it only logs, and what to do about it."""
    error = machine.refusal(engine)
    assert isinstance(error, InternalError)
    path = machine.files.version_directory / "model.plan"
    assert str(error).startswith(f"unable to load model 'm' from '{path}': unable to create TensorRT engine: ")
    assert said in str(error)
    assert f"({remedy}" in str(error)


def test_version_compatible_plans_are_read_if_that_is_allowed(machine: Any) -> None:
    machine.load(double_plan(host_code=True), options={"version-compatible": "true"})


def test_libraries_of_plugins_are_loaded(machine: Any) -> None:
    error = machine.refusal(double_plan(), options={"plugins": "/no/such.so;/nor/this.so"})
    assert isinstance(error, InvalidArgumentError)
    assert str(error).startswith("unable to load the TensorRT plugins of '/no/such.so': ")


def test_what_tensorrt_logs_is_logged(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    machine.load(double_plan())
    with caplog.at_level(logging.DEBUG):
        for severity in machine.trt.ILogger.Severity:
            machine.trt.logger.log(severity, severity.name)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "TensorRT: INTERNAL_ERROR"),
        ("ERROR", "TensorRT: ERROR"),
        ("WARNING", "TensorRT: WARNING"),
        ("INFO", "TensorRT: INFO"),
        ("DEBUG", "TensorRT: VERBOSE"),
    ]


# Devices


def test_instances_on_a_device_share_an_engine(machine: Any) -> None:
    """Each has a context of its own, on its device; another device has another engine."""
    machine.load(double_plan(), machine.config(group="gpus: [ 0, 1 ]"))
    for number, device in enumerate([0, 0, 1]):
        machine.loaded.create_instance(InstanceSpec(f"m_{number}", "KIND_GPU", device))
    first, second, third = (context.engine for context in machine.trt.contexts)
    assert first is second
    assert first is not third
    assert machine.trt.reads == [0, 1]


@pytest.mark.parametrize("kind", ["KIND_CPU", "KIND_MODEL"])
def test_gpus_only(machine: Any, kind: str) -> None:
    config = machine.config(f'max_batch_size: 8 instance_group {{ name: "c" kind: {kind} count: 1 }}')
    text = "Invalid argument: unable to load model 'm', TensorRT backend supports only GPU device"
    assert machine.refusal(double_plan(), config).status_text == text


@pytest.mark.parametrize("name", ["enable_multi_device", "multi_device_gpus", "multi_device_per_rank_engines"])
def test_engines_over_several_gpus_are_refused(machine: Any, name: str) -> None:
    parameter = f'parameters {{ key: "{name}" value {{ string_value: "1" }} }}'
    error = machine.refusal(double_plan(), machine.config(f"max_batch_size: 8 {parameter}"))
    assert isinstance(error, UnsupportedError)
    assert str(error).startswith(
        f"unable to load model 'm': the parameter '{name}' asks for an engine over several GPUs"
    )


def test_an_unknown_allocation_strategy(machine: Any) -> None:
    parameter = 'parameters { key: "execution_context_allocation_strategy" value { string_value: "LAZY" } }'
    assert machine.refusal(double_plan(), machine.config(f"max_batch_size: 8 {parameter}")).status_text == (
        "Invalid argument: Invalid value for 'execution_context_allocation_strategy': 'LAZY' for model instance 'm'. "
        "Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'."
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"version-compatible": "maybe"}, "failed to convert 'maybe' to boolean"),
        ({"coalesce-request-input": "maybe"}, "failed to convert 'maybe' to boolean"),
        ({"execution-policy": "EAGER"}, "execution-policy must be DEVICE_BLOCKING or BLOCKING, not 'EAGER'"),
    ],
)
def test_options_have_their_values(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        TensorRtBackend(options)
    assert str(caught.value) == text


def test_the_priority_of_a_model_is_that_of_its_streams(machine: Any) -> None:
    machine.start(double_plan(), machine.config("max_batch_size: 8 optimization { priority: PRIORITY_MAX }"))
    priorities = [stream.priority for stream in machine.gpus._streams.values()]
    assert sorted(priorities) == [-1, -1, -1, 0], "the last one is only asked how the device is"


# The configuration


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        (
            IN + IN.replace("IN", "X") + OUT,
            "Invalid argument: unable to load model 'm', configuration expects 2 inputs, model provides at most 1",
        ),
        (
            IN.replace("IN", "X") + OUT,
            "Invalid argument: unexpected inference input 'X', allowed inputs are: IN",
        ),
        (
            IN + OUT.replace("OUT", "Y"),
            "Invalid argument: unexpected inference output 'Y', allowed outputs are: OUT",
        ),
        (
            IN.replace("FP32", "FP64") + OUT,
            "Internal: unsupported datatype TYPE_FP64 for input 'IN' for model 'm'",
        ),
        (
            IN.replace("FP32", "INT32") + OUT,
            "Invalid argument: unexpected datatype TYPE_FP32 for inference input 'IN', expecting TYPE_INT32 for m",
        ),
        (
            IN + OUT.replace("4", "5"),
            (
                "Internal: unable to load model 'm', binding 'OUT' shape expected by framework [-1,4] doesn't match "
                "model configuration shape [-1,5]"
            ),
        ),
        (
            IN.replace("4", "2, 2") + OUT,
            (
                "Internal: unable to load model 'm', binding 'IN' shape expected by framework [-1,4] doesn't match "
                "model configuration shape [-1,2,2]"
            ),
        ),
        (
            IN.replace("]", "] is_shape_tensor: true") + OUT,
            "Internal: input 'IN' for model 'm' is incorrectly marked as a shape tensor in the model configuration.",
        ),
        (
            IN.replace("]", "] allow_ragged_batch: true") + OUT,
            (
                "Invalid argument: model 'm', tensor 'IN': for the model to support ragged input, the engine shape is: "
                "[-1,4] while the model config shape is: [4]"
            ),
        ),
        (IN, "Invalid argument: expected configuration for output 'OUT' for m"),
        (OUT, "Invalid argument: expected configuration for input 'IN' for m"),
    ],
)
def test_what_does_not_fit_the_engine_is_named(machine: Any, tensors: str, text: str) -> None:
    assert machine.refusal(double_plan(), machine.config(tensors=tensors)).status_text == text


def test_a_variable_dimension_fits_a_fixed_one(machine: Any) -> None:
    machine.load(double_plan(), machine.config(tensors=(IN + OUT).replace("4", "-1")))


def test_a_shape_tensor_must_be_marked(machine: Any) -> None:
    shape = tensor("IN", (2,), element="INT32", shape=True, values=[((1, 1), (1, 1), (1, 1))])
    engine = plan("double", [shape], [tensor("OUT", (2,), element="INT32")])
    error = machine.refusal(engine, machine.config("", (IN + OUT).replace("FP32", "INT32").replace("4", "2")))
    assert str(error) == (
        "input 'IN' for model 'm' is a shape tensor but the model configuration doesn't mark it as a shape tensor."
    )


def test_other_formats_than_linear_are_refused(machine: Any) -> None:
    engine = plan("double", [tensor("IN", (-1, 4), format="CHW4")], [tensor("OUT", (-1, 4))])
    assert str(machine.refusal(engine)) == (
        "unable to load model 'm': tensor 'IN' has the format CHW4, but only LINEAR is supported; build the engine "
        "with linear input and output formats"
    )


def test_types_that_trireme_does_not_have_are_refused(machine: Any) -> None:
    engine = plan("double", [tensor("IN", (-1, 4), element="FP8")], [tensor("OUT", (-1, 4))])
    assert str(machine.refusal(engine)) == "unsupported datatype TYPE_FP8 for input 'IN' for model 'm'"


def test_controls_are_inputs_of_one_element(machine: Any) -> None:
    start = "control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }"
    sequence = f'max_batch_size: 8 sequence_batching {{ control_input {{ name: "START" {start} }} }}'
    two = plan("double", [tensor("IN", (-1, 4)), tensor("START", (-1, 2))], [tensor("OUT", (-1, 4))])
    assert str(machine.refusal(two, machine.config(sequence))) == (
        "unable to load model 'm', binding 'START' shape expected by framework [-1,2] doesn't match model "
        "configuration shape [-1,1]"
    )
    assert str(machine.refusal(double_plan(), machine.config(sequence))) == (
        "unexpected inference input 'START', allowed inputs are: IN"
    )
