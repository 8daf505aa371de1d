"""Our reader of load requests against protobuf's own; and that files stay where they were received."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from grpc_fakes import GrpcClient
from http_fakes import FakeServer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from infer_wire_strategies import WITHOUT_MAPS, load_wires, texts
from triton_messages import MESSAGES as PB

from trireme.actors.offload import copied_in_pieces
from trireme.api.grpc import repository
from trireme.api.grpc.codec import MAX_FIELDS
from trireme.api.grpc.repository import WireLoad, read_load_request
from trireme.api.grpc.wire import UnreadableError
from trireme.api.request_parameters import MAX_TEXT_BYTES
from trireme.engine.admission.large_requests import LARGE_BYTES
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.tensor import Buffer

WithoutMaps = WITHOUT_MAPS["inference.RepositoryModelLoadRequest"]
Parameter = PB.ModelRepositoryParameter
Said = tuple[str, str, dict[str, tuple[str, Any]]]

parameters = st.one_of(
    st.builds(Parameter),
    st.builds(Parameter, bool_param=st.booleans()),
    st.builds(Parameter, int64_param=st.integers(-(2**63), 2**63 - 1)),
    st.builds(Parameter, string_param=texts),
    st.builds(Parameter, bytes_param=st.binary(max_size=300)),
)
requests = st.builds(
    PB.RepositoryModelLoadRequest,
    repository_name=texts,
    model_name=texts,
    parameters=st.dictionaries(texts, parameters, max_size=4),
)


def said_by_protobuf(load: Any) -> Said:
    given = load.parameters
    entries = given.items() if hasattr(given, "items") else [(entry.key, entry.value) for entry in given]
    said: dict[str, tuple[str, Any]] = {}
    for name, value in entries:
        choice = value.WhichOneof("parameter_choice") or ""
        said[name] = (choice, getattr(value, choice) if choice in ("string_param", "bytes_param") else None)
    return load.repository_name, load.model_name, said


def said_by_us(load: WireLoad) -> Said:
    said = {
        name: (kind, bytes(value) if isinstance(value, memoryview) else value)
        for name, (kind, value) in load.parameters.items()
    }
    return load.repository_name, load.model_name, said


@settings(max_examples=150, deadline=None)
@given(requests)
def test_what_protobuf_writes_is_read_as_it_was_meant(load: Any) -> None:
    message = load.SerializeToString()
    assert said_by_us(read_load_request(message)) == said_by_protobuf(load)
    assert said_by_us(read_load_request(memoryview(message))) == said_by_protobuf(load)


@settings(max_examples=300, deadline=None)
@given(load_wires)
@example(b"\x1a\x00")
@example(b"\x1a\x06\x12\x04\x22\x02ab")
@example(b"\x1a\x04\x12\x02\x18\x01")
def test_any_encoding_is_read_or_refused_as_by_protobuf(message: bytes) -> None:
    try:
        theirs = said_by_protobuf(WithoutMaps.FromString(message))
    except DecodeError:
        with pytest.raises(UnreadableError):
            read_load_request(message)
    else:
        assert said_by_us(read_load_request(message)) == theirs


def test_files_are_views_on_the_message() -> None:
    content = bytes(range(256)) * 4096
    load = PB.RepositoryModelLoadRequest(parameters={"file:1/model.onnx": Parameter(bytes_param=content)})
    message = load.SerializeToString()
    kind, view = read_load_request(message).parameters["file:1/model.onnx"]
    assert kind == "bytes_param"
    assert isinstance(view, memoryview)
    assert view.obj is message
    assert view == content


def test_texts_and_fields_are_bounded() -> None:
    config = "x" * (MAX_TEXT_BYTES + 1)
    load = PB.RepositoryModelLoadRequest(parameters={"config": Parameter(string_param=config)})
    expected = f"has {MAX_TEXT_BYTES + 1} bytes, expected at most {MAX_TEXT_BYTES}$"
    with pytest.raises(InvalidArgumentError, match=expected):
        read_load_request(load.SerializeToString())
    for message in (
        b"\x1a\x00" * (MAX_FIELDS + 1),
        b"\x1a\x84\x80\x04" + b"\x12\x00" * 32_770,  # within one entry
    ):
        with pytest.raises(InvalidArgumentError, match=f"^request has more than {MAX_FIELDS} fields"):
            read_load_request(message)


@pytest.mark.parametrize(("nbytes", "on_loop"), [(100, True), (LARGE_BYTES, False)])
async def test_large_requests_are_read_on_a_thread_and_small_ones_where_they_come(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, on_loop: bool
) -> None:
    loop = threading.get_ident()
    read_on: list[bool] = []

    def read(message: Buffer) -> WireLoad:
        read_on.append(threading.get_ident() == loop)
        return read_load_request(message)

    monkeypatch.setattr(repository, "read_load_request", read)
    server = FakeServer()
    parameters = {"config": Parameter(string_param="{}"), "file:1/m": Parameter(bytes_param=bytes(nbytes))}
    load = PB.RepositoryModelLoadRequest(model_name="m", parameters=parameters)
    await GrpcClient(server).inference("RepositoryModelLoad", load.SerializeToString())
    assert read_on == [on_loop]
    ((name, got),) = server.loads
    given: Mapping[str, Any] = got
    assert (name, given["config"], given["file:1/m"]) == ("m", "{}", bytes(nbytes))
    assert isinstance(given["file:1/m"], memoryview), "and not copied, which takes the interpreter's lock"


@pytest.mark.parametrize("nbytes", [0, 1, LARGE_BYTES, 3 * LARGE_BYTES + 1])
def test_a_copy_in_pieces_is_a_copy(nbytes: int) -> None:
    data = bytearray(bytes(range(256)) * (nbytes // 256 + 1))[:nbytes]
    copied = copied_in_pieces(data)
    before = bytes(data)
    data[:1] = b"\xff" * len(data[:1])
    assert copied == before
