"""The rest of `triton_python_backend_utils`: types, serialising, looking up, logging, loading models."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_host import RecordingHost

from trireme.engine.datatypes import BF16, DATATYPES
from trireme.engine.tensor import pack_bytes
from trireme.python_backend.child.utils import context
from trireme.python_backend.child.utils import triton_python_backend_utils as pb_utils

pb: Any = pb_utils  # some tests hand over what type checkers would refuse


def test_types_agree_with_the_servers_table() -> None:
    for datatype in DATATYPES:
        if datatype is not BF16:
            numpy_type = pb_utils.triton_to_numpy_type(datatype.number)
            assert np.dtype(numpy_type) == datatype.storage
            assert pb_utils.numpy_to_triton_type(numpy_type) == datatype.number
            assert pb_utils.numpy_to_triton_type(np.dtype(numpy_type)) == datatype.number
            assert np.dtype(pb_utils.triton_string_to_numpy(datatype.config_name)) == datatype.storage


def test_unknown_types() -> None:
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert [pb_utils.numpy_to_triton_type(kind) for kind in (np.str_, np.complex64, bool)] == [None] * 3
    assert [pb_utils.triton_to_numpy_type(number) for number in (0, 14, 99)] == [None] * 3
    assert pb_utils.TRITON_STRING_TO_NUMPY["TYPE_BOOL"] is bool
    with pytest.raises(KeyError, match="TYPE_BF16"):
        pb_utils.triton_string_to_numpy("TYPE_BF16")


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5))
def test_bytes_are_serialised_as_on_the_wire(elements: list[bytes]) -> None:
    packed = pb.serialize_byte_tensor(np.array(elements, object))
    assert packed == pack_bytes(elements)
    assert pb_utils.deserialize_bytes_tensor(packed).tolist() == elements


@pytest.mark.parametrize(
    ("array", "packed"),
    [
        (np.array([]), ()),
        (np.array([b"ab", "cé", 5], object), b"\2\0\0\0ab\3\0\0\0c\xc3\xa9\1\0\0\0005"),
        (np.array([b"ab", b"c"]), b"\2\0\0\0ab\1\0\0\0c"),
        (np.array([[b"a", b"b"], [b"c", b"d"]], object), b"".join(b"\1\0\0\0" + c for c in (b"a", b"b", b"c", b"d"))),
        (np.array(["ab"]), None),
        (np.array([1]), None),
    ],
)
def test_other_arrays_are_serialised_as_triton_does(array: np.ndarray, packed: object) -> None:
    assert pb_utils.serialize_byte_tensor(array) == packed


def test_nothing_is_deserialised_to_an_empty_array() -> None:
    assert pb_utils.deserialize_bytes_tensor(b"").shape == (0,)


@pytest.mark.parametrize("data", [b"\1\0\0", b"\5\0\0\0a"])
def test_cut_off_elements_are_refused(data: bytes) -> None:
    with pytest.raises(struct.error):
        pb_utils.deserialize_bytes_tensor(data)


def test_tensors_are_found_by_name(host: RecordingHost) -> None:
    a, b = pb_utils.Tensor("A", np.zeros(1)), pb_utils.Tensor("B", np.zeros(1))
    request = host.request(1, a, b)
    assert pb_utils.get_input_tensor_by_name(request, "B") is b
    assert pb_utils.get_input_tensor_by_name(request, "C") is None
    response = pb_utils.InferenceResponse([a, b])
    assert pb_utils.get_output_tensor_by_name(response, "A") is a
    assert pb_utils.get_output_tensor_by_name(response, "C") is None


def test_configurations_are_read() -> None:
    config = {"input": [{"name": "A", "dims": [1]}], "output": [{"name": "B"}]}
    assert pb_utils.get_input_config_by_name(config, "A") == {"name": "A", "dims": [1]}
    assert pb_utils.get_output_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_input_config_by_name(config, "B") is None
    assert pb_utils.get_output_config_by_name({}, "B") is None
    assert pb_utils.using_decoupled_model_transaction_policy({"model_transaction_policy": {"decoupled": True}}) is True
    assert pb_utils.using_decoupled_model_transaction_policy({}) is False


def test_constants_are_those_of_triton() -> None:
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert (pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL, pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) == (1, 2)
    assert pb_utils.TRITONSERVER_MEMORY_GPU.name == "TRITONSERVER_MEMORY_GPU"
    assert pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)


@pytest.mark.usefixtures("model")
def test_log_lines_carry_the_callers_file_and_line(host: RecordingHost) -> None:
    logger = pb_utils.Logger
    calls: list[Callable[[str], None]] = [logger.log, logger.log_info, logger.log_warn, logger.log_error]
    calls.append(logger.log_verbose)
    for call in calls:
        call("text")
    line = test_log_lines_carry_the_callers_file_and_line.__code__.co_firstlineno + 6
    levels = ["INFO", "INFO", "WARNING", "ERROR", "VERBOSE"]
    assert host.logged == [(level, __file__, line, "text") for level in levels]


@pytest.mark.usefixtures("model")
def test_log_level_can_be_given(host: RecordingHost) -> None:
    pb_utils.Logger.log("text", pb_utils.Logger.ERROR)
    pb_utils.Logger.log(message="text", level=pb_utils.Logger.VERBOSE)
    assert [level for level, *_ in host.logged] == ["ERROR", "VERBOSE"]
    with pytest.raises(TypeError):
        pb.Logger.log(5)


@pytest.mark.usefixtures("model")
def test_models_are_loaded_and_unloaded(host: RecordingHost) -> None:
    pb_utils.load_model("a")
    pb_utils.load_model(model_name="a", config="{}", files={"file:1/x": b"y"})
    pb_utils.unload_model("a")
    pb_utils.unload_model("a", True)
    assert pb_utils.is_model_ready("ready")
    assert not pb_utils.is_model_ready("other", "1")
    assert host.calls == [
        ("load_model", "a", "", {}),
        ("load_model", "a", "{}", {"file:1/x": b"y"}),
        ("unload_model", "a", False),
        ("unload_model", "a", True),
        ("is_model_ready", "ready", ""),
        ("is_model_ready", "other", "1"),
    ]


@pytest.mark.usefixtures("model")
def test_refusals_to_load_are_told_with_what_failed(host: RecordingHost) -> None:
    host.refusals = dict.fromkeys(("load_model", "unload_model", "is_model_ready"), "no")
    for call, what in (
        (lambda: pb_utils.load_model("a"), "Failed to load model"),
        (lambda: pb_utils.unload_model("a"), "Failed to unload model"),
        (lambda: pb_utils.is_model_ready("a"), "Failed to check model readiness"),
    ):
        with pytest.raises(pb_utils.TritonModelException) as caught:
            call()
        assert str(caught.value) == f"{what}: Failed to process the request for model 'm_0', message: no"


@pytest.mark.usefixtures("model")
def test_files_must_be_bytes_by_path() -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb.load_model("a", files=5)
    assert str(caught.value) == (
        "failed to load model 'a', files should be a dictionary of file paths and file contents"
    )
    with pytest.raises(TypeError, match="files must be bytes by str"):
        pb.load_model("a", files={"file:x": 5})


def test_directory_is_that_of_the_running_model(host: RecordingHost, model: context.ModelContext) -> None:
    other = context.ModelContext(host, "models/other/3")
    with context.entered(other):
        assert pb_utils.get_model_dir() == "models/other/3"
    assert pb_utils.get_model_dir() == "models/m/1"
    context.uninstall(other)
    assert pb_utils.get_model_dir() == "models/m/1"


def test_utilities_outside_of_a_model_say_so() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="outside of a model"):
        pb_utils.get_model_dir()
