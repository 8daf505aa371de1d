"""The codec reads what protobuf reads, refuses what protobuf refuses, and leaves raw messages alone."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from grpc_requests import PB
from grpclib.encoding.base import CodecBase
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.grpc.codec import MAX_FIELDS, MessageCodec, RawMessage
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.proto.messages import inference
from trireme.proto.messages.grpc.health.v1 import HealthCheckRequest

CODEC = MessageCodec()


def test_it_is_a_codec_for_grpclib() -> None:
    assert isinstance(CODEC, CodecBase)
    assert CODEC.__content_subtype__ == "proto"


def test_messages_come_back() -> None:
    message = inference.RepositoryIndexResponse(
        models=[inference.RepositoryIndexResponseModelIndex(name="m", version="1", state="READY")]
    )
    data = CODEC.encode(message, inference.RepositoryIndexResponse)
    assert PB.RepositoryIndexResponse.FromString(data).models[0].state == "READY"
    assert CODEC.decode(data, inference.RepositoryIndexResponse) == message
    assert CODEC.decode(memoryview(data), inference.RepositoryIndexResponse) == message


def test_oneofs_and_maps_arrive() -> None:
    theirs = PB.LogSettingsRequest()
    theirs.settings["log_info"].bool_param = False
    theirs.settings["log_file"].string_param = ""
    ours = CODEC.decode(theirs.SerializeToString(), inference.LogSettingsRequest)
    assert ours.settings["log_info"].bool_param is False
    assert ours.settings["log_info"].uint32_param is None
    assert ours.settings["log_file"].string_param == ""


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0a", b"\xff", b"\x0a\x02\xff\xfe", b"\x0b", b"\x00\x00", b"\x0c"])
@pytest.mark.parametrize("kind", [inference.ModelReadyRequest, HealthCheckRequest])
def test_what_is_no_protobuf_is_refused(data: bytes, kind: type) -> None:
    """Some of it betterproto2 would read as something else."""
    with pytest.raises(InternalError, match=r"^Unable to parse request$"):
        CODEC.decode(data, kind)


def test_known_fields_of_the_wrong_type_are_unknown() -> None:
    ready = inference.ModelReadyRequest(version="1")
    assert CODEC.decode(b"\x08\x05\x12\x011\x7a\x01x\x0d\x00\x00\x00\x00", inference.ModelReadyRequest) == ready


@settings(deadline=None)
@given(st.binary(max_size=12))
def test_bytes_are_read_or_refused_as_by_protobuf(data: bytes) -> None:
    try:
        theirs: Any = PB.ModelReadyRequest.FromString(data)
    except DecodeError:
        with pytest.raises(InternalError):
            CODEC.decode(data, inference.ModelReadyRequest)
    else:
        ours = CODEC.decode(data, inference.ModelReadyRequest)
        assert (ours.name, ours.version) == (theirs.name, theirs.version)


@pytest.mark.parametrize(("count", "taken"), [(MAX_FIELDS, True), (MAX_FIELDS + 1, False)])
def test_fields_are_counted_before_they_are_objects(count: int, taken: bool) -> None:
    entry = inference.RepositoryModelLoadRequest(parameters={"": inference.ModelRepositoryParameter()})
    data = bytes(entry) * count
    if taken:
        assert len(CODEC.decode(data, inference.RepositoryModelLoadRequest).parameters) == 1
    else:
        with pytest.raises(InvalidArgumentError, match=f"^request has more than {MAX_FIELDS} fields"):
            CODEC.decode(data, inference.RepositoryModelLoadRequest)
    with pytest.raises(InternalError, match="Unable to parse request"):
        CODEC.decode(bytes(10_000), inference.RepositoryModelLoadRequest)


def test_raw_messages_pass_through() -> None:
    for data in (b"\xff\xff", memoryview(b"\xff")):
        assert CODEC.decode(data, RawMessage) is data


def test_another_type_than_promised_is_a_defect() -> None:
    with pytest.raises(TypeError, match="must be of type ModelReadyResponse, not ModelReadyRequest"):
        CODEC.encode(inference.ModelReadyRequest(), inference.ModelReadyResponse)
