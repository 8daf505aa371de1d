"""The schema is the one that every Triton client knows, and keeps out of the way of theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from trireme.proto.descriptors import SOURCES, descriptor_pool
from trireme.proto.messages.message_pool import default_message_pool

POOL = descriptor_pool()


def enum_facts(enum: Any) -> Iterator[tuple[Any, ...]]:
    yield "enum", enum.full_name, [(value.name, value.number) for value in enum.values]


def message_facts(message: Any) -> Iterator[tuple[Any, ...]]:
    """Everything about a message, and those inside it, that can be seen on the wire, in JSON or in text format."""
    yield "message", message.full_name, bool(message.GetOptions().map_entry), bool(message.GetOptions().deprecated)
    for field in message.fields:
        yield (
            "field",
            field.full_name,
            field.number,
            field.type,
            field.is_repeated,
            field.is_packed,
            field.has_presence,
            field.json_name,
            field.message_type.full_name if field.message_type else None,
            field.enum_type.full_name if field.enum_type else None,
            field.containing_oneof.full_name if field.containing_oneof else None,
        )
    for oneof in message.oneofs:
        yield "oneof", oneof.full_name, [field.name for field in oneof.fields]
    for enum in message.enum_types:
        yield from enum_facts(enum)
    for nested in sorted(message.nested_types, key=lambda nested: nested.name):
        yield from message_facts(nested)


def service_facts(service: Any) -> Iterator[tuple[Any, ...]]:
    yield "service", service.full_name
    for method in service.methods:
        streaming = (method.client_streaming, method.server_streaming)
        yield "method", method.full_name, method.input_type.full_name, method.output_type.full_name, streaming


def file_facts(file: Any) -> list[tuple[Any, ...]]:
    facts: list[tuple[Any, ...]] = [("package", file.package)]
    for enum in file.enum_types_by_name.values():
        facts += enum_facts(enum)
    for message in file.message_types_by_name.values():
        facts += message_facts(message)
    for service in file.services_by_name.values():
        facts += service_facts(service)
    return facts


@pytest.mark.parametrize(
    ("ours", "theirs"), [("model_config", "model_config_pb2"), ("inference_service", "service_pb2")]
)
def test_schema_equals_the_one_in_tritonclient(ours: str, theirs: str) -> None:
    """Names, numbers, types, labels, oneofs, maps, JSON names, declaration order; methods with their streams."""
    expected = getattr(pytest.importorskip("tritonclient.grpc"), theirs).DESCRIPTOR
    facts = file_facts(POOL.FindFileByName(f"{ours}.proto"))
    assert len(facts) > 100
    assert facts == file_facts(expected)


def test_health_is_the_standard_service_without_watch() -> None:
    """By hand: the standard's own descriptors come with a package that nothing here needs."""
    assert file_facts(POOL.FindFileByName("health.proto")) == [
        ("package", "grpc.health.v1"),
        ("message", "grpc.health.v1.HealthCheckRequest", False, False),
        ("field", "grpc.health.v1.HealthCheckRequest.service", 1, 9, *(False,) * 3, "service", None, None, None),
        ("message", "grpc.health.v1.HealthCheckResponse", False, False),
        (
            *("field", "grpc.health.v1.HealthCheckResponse.status", 1, 14, *(False,) * 3, "status"),
            *(None, "grpc.health.v1.HealthCheckResponse.ServingStatus", None),
        ),
        (
            *("enum", "grpc.health.v1.HealthCheckResponse.ServingStatus"),
            [("UNKNOWN", 0), ("SERVING", 1), ("NOT_SERVING", 2), ("SERVICE_UNKNOWN", 3)],
        ),
        ("service", "grpc.health.v1.Health"),
        (
            *("method", "grpc.health.v1.Health.Check"),
            *("grpc.health.v1.HealthCheckRequest", "grpc.health.v1.HealthCheckResponse", (False, False)),
        ),
    ]


def test_reflection_is_the_standard_service() -> None:
    """As grpclib has it, which registers its own in protobuf's default pool."""
    from grpclib.reflection.v1 import reflection_pb2

    assert file_facts(POOL.FindFileByName("reflection.proto")) == file_facts(reflection_pb2.DESCRIPTOR)


def test_every_message_has_a_class() -> None:
    """betterproto2's classes are those of the descriptors."""
    known = {url.partition("/")[2] for url in default_message_pool.url_to_type}
    files = [POOL.FindFileByName(f"{name}.proto") for name in SOURCES]
    facts = [fact for file in files for fact in file_facts(file)]
    assert known == {fact[1] for fact in facts if fact[0] == "message" and not fact[2]}


def test_default_pool_of_protobuf_stays_empty() -> None:
    """Neither the descriptors nor the classes register anything where others do."""
    code = """
from google.protobuf import descriptor_pool
from trireme.proto.descriptors import descriptor_pool as ours
from trireme.proto.messages import inference
from trireme.proto.messages.grpc.health import v1
from trireme.engine.config import model
ours()
inference.ModelInferRequest.parse(bytes(inference.ModelInferRequest(id="1")))
for name in ("inference.ModelInferRequest", "inference.ModelConfig", "grpc.health.v1.HealthCheckRequest"):
    try:
        descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:
        continue
    raise SystemExit(f"{name} is in the default pool")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")])
def test_our_schema_and_tritonclient_live_in_one_process(order: tuple[str, str]) -> None:
    """Both define `inference.ModelConfig`; ours stays out of the default descriptor pool."""
    pytest.importorskip("tritonclient.grpc")
    lines = {
        "ours": "from trireme.engine.config.model import ModelConfigMessage; ModelConfigMessage(name='m')\n"
        "from trireme.proto.messages import inference; inference.ModelInferRequest(id='1')",
        "theirs": "import tritonclient.grpc as t; t.model_config_pb2.ModelConfig(name='m')",
    }
    subprocess.run([sys.executable, "-c", "\n".join(lines[which] for which in order)], check=True)


@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")])
def test_the_server_and_grpcio_reflection_live_in_one_process(order: tuple[str, str]) -> None:
    """Ray, for one, brings it along. grpclib's own messages of reflection clash with it, so they are not ours."""
    lines = {
        "ours": "import sys, trireme.api.cli.main, trireme.api.cli.gateway, trireme.api.cli.serve\n"
        "from trireme.proto.messages.grpc.reflection import v1; bytes(v1.ServerReflectionRequest(host='h'))\n"
        "assert not [name for name in sys.modules if name.startswith('grpclib.reflection')]",
        "theirs": "from grpc_reflection.v1alpha import reflection, reflection_pb2\n"
        "reflection_pb2.ServerReflectionRequest(host='h').SerializeToString()",
    }
    subprocess.run([sys.executable, "-c", "\n".join(lines[which] for which in order)], check=True)
