"""Server reflection, walked the way ``grpcurl`` does: services, the file of each, the files that those need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpclib.const import Status
from grpclib.reflection.v1 import reflection_pb2 as v1
from grpclib.reflection.v1alpha import reflection_pb2 as v1alpha
from scripted_server import ScriptedServer, scripted_server

from trireme.proto.descriptors import message_classes

SERVICES = ["grpc.health.v1.Health", "inference.GRPCInferenceService"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture
def channel(server: ScriptedServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.url) as opened:
        yield opened


class Reflection:
    """A client of one version of the protocol."""

    def __init__(self, channel: grpc.Channel, messages: Any) -> None:
        self._messages = messages
        self._call = channel.stream_stream(
            f"/{messages.DESCRIPTOR.package}.ServerReflection/ServerReflectionInfo",
            request_serializer=messages.ServerReflectionRequest.SerializeToString,
            response_deserializer=messages.ServerReflectionResponse.FromString,
        )

    def ask(self, **question: Any) -> Any:
        (answer,) = self._call(iter([self._messages.ServerReflectionRequest(**question)]), timeout=10)
        return answer

    def files(self, **question: Any) -> list[descriptor_pb2.FileDescriptorProto]:
        answer = self.ask(**question).file_descriptor_response
        return [descriptor_pb2.FileDescriptorProto.FromString(text) for text in answer.file_descriptor_proto]


@pytest.fixture(params=[v1, v1alpha], ids=["v1", "v1alpha"])
def reflection(channel: grpc.Channel, request: pytest.FixtureRequest) -> Reflection:
    return Reflection(channel, request.param)


def test_the_services_are_listed(reflection: Reflection) -> None:
    answer = reflection.ask(list_services="*").list_services_response
    assert sorted(service.name for service in answer.service) == SERVICES


@pytest.mark.parametrize("service", SERVICES)
def test_a_tool_that_knows_nothing_can_call_every_method(reflection: Reflection, service: str) -> None:
    """From the answers alone it builds the messages of every method."""
    pool = DescriptorPool()
    wanted = reflection.files(file_containing_symbol=service)
    known: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    while wanted:
        file = wanted.pop()
        known[file.name] = file
        for name in file.dependency:
            if name not in known:
                wanted += reflection.files(file_by_filename=name)

    def add(name: str) -> None:
        for dependency in known[name].dependency:
            add(dependency)
        pool.Add(known[name])  # pyright: ignore[reportAttributeAccessIssue] - missing from protobuf's stubs

    for name in known:
        add(name)
    described = pool.FindServiceByName(service)
    methods = {method.name: method for method in described.methods}
    assert len(methods) == {"grpc.health.v1.Health": 1, "inference.GRPCInferenceService": 20}[service]
    classes = message_classes(pool.FindFileByName(name) for name in known)
    for method in methods.values():
        classes[method.input_type.full_name]()
        classes[method.output_type.full_name]()
    if service == "inference.GRPCInferenceService":
        assert methods["ModelStreamInfer"].client_streaming
        assert methods["ModelStreamInfer"].server_streaming


def test_what_was_learnt_can_be_used(channel: grpc.Channel, reflection: Reflection) -> None:
    pool = DescriptorPool()
    (file,) = reflection.files(file_containing_symbol="grpc.health.v1.Health")
    pool.Add(file)  # pyright: ignore[reportAttributeAccessIssue] - missing from protobuf's stubs
    method = pool.FindMethodByName("grpc.health.v1.Health.Check")
    classes: Any = message_classes([method.containing_service.file])
    question, answers = classes[method.input_type.full_name], classes[method.output_type.full_name]
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=question.SerializeToString,
        response_deserializer=answers.FromString,
    )
    answer: Any = check(question(), timeout=10)
    assert answer.status == 1


@pytest.mark.parametrize(
    "symbol", ["inference.ModelInferRequest.InferInputTensor", "inference.ModelConfig", "inference.DataType"]
)
def test_messages_can_be_asked_for_by_name(reflection: Reflection, symbol: str) -> None:
    (file,) = reflection.files(file_containing_symbol=symbol)
    assert file.package == "inference"


@pytest.mark.parametrize("question", [{"file_containing_symbol": "no.such.Thing"}, {"file_by_filename": "no.proto"}])
def test_what_there_is_not_is_not_found(reflection: Reflection, question: dict[str, str]) -> None:
    answer = reflection.ask(**question)
    assert answer.error_response.error_code == Status.NOT_FOUND.value


def test_a_question_that_is_none_is_refused_and_the_next_one_answered(channel: grpc.Channel) -> None:
    call: Any = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=v1.ServerReflectionRequest.SerializeToString,
        response_deserializer=v1.ServerReflectionResponse.FromString,
    )
    questions = [v1.ServerReflectionRequest(), v1.ServerReflectionRequest(list_services="")]
    first, second = call(iter(questions), timeout=10)
    assert first.error_response.error_code == Status.INVALID_ARGUMENT.value
    assert len(second.list_services_response.service) == 2


def test_extensions_there_are_none(reflection: Reflection) -> None:
    numbers = reflection.ask(all_extension_numbers_of_type="inference.ModelConfig").all_extension_numbers_response
    assert (numbers.base_type_name, list(numbers.extension_number)) == ("inference.ModelConfig", [])
    question = {"containing_type": "inference.ModelConfig", "extension_number": 1}
    answer = reflection.ask(file_containing_extension=question)
    assert answer.error_response.error_code == Status.NOT_FOUND.value


OURS = "from trireme.api.grpc.application import GrpcApplication"
THEIRS = "from grpc_reflection.v1alpha import reflection_pb2"


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "theirs first"])
def test_grpcs_own_reflection_lives_in_one_process_with_ours(order: tuple[str, str]) -> None:
    """Both define ``grpc.reflection.v1alpha``; ours stays out of protobuf's default pool."""
    pytest.importorskip("grpc_reflection", exc_type=ImportError)
    subprocess.run([sys.executable, "-c", "\n".join(order)], check=True)


def test_protobufs_default_pool_stays_as_it_was() -> None:
    code = f"""
{OURS}
from google.protobuf import descriptor_pool
for name in ("grpc.reflection.v1.ErrorResponse", "grpc.reflection.v1alpha.ErrorResponse"):
    try:
        descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:
        continue
    raise SystemExit(f"{{name}} is in the default pool")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
