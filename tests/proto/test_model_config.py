"""The configuration schema is the one that every Triton client knows, and the committed descriptors are up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from trireme.proto import compile as proto_compile


def _committed() -> descriptor_pb2.FileDescriptorProto:
    descriptors = descriptor_pb2.FileDescriptorSet()
    descriptors.ParseFromString((proto_compile.FOLDER / "model_config.pb").read_bytes())
    (file,) = descriptors.file
    return file


def test_committed_descriptors_are_what_the_source_compiles_to(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    for source in proto_compile.SOURCES:
        target = tmp_path / "out.pb"
        proto_compile.compile_proto(source, target)
        assert target.read_bytes() == (proto_compile.FOLDER / source).with_suffix(".pb").read_bytes()


def _facts(message: Any, prefix: str = "") -> dict[str, Any]:
    """Every field and enum of a message and of those inside it, in declaration order, by full name."""
    name = prefix + message.name
    oneofs = [oneof.name for oneof in message.oneof_decl]
    facts: dict[str, Any] = {
        name: [
            (
                f.name,
                f.number,
                f.type,
                f.label,
                f.type_name,
                oneofs[f.oneof_index] if f.HasField("oneof_index") else None,
            )
            for f in message.field
        ]
    }
    for enum in message.enum_type:
        facts[f"{name}.{enum.name}"] = [(value.name, value.number) for value in enum.value]
    for nested in message.nested_type:
        facts |= _facts(nested, name + ".")
    return facts


def test_schema_equals_the_one_in_tritonclient() -> None:
    pytest.importorskip("grpc")
    from tritonclient.grpc import model_config_pb2

    theirs = descriptor_pb2.FileDescriptorProto()
    model_config_pb2.DESCRIPTOR.CopyToProto(theirs)
    ours = _committed()
    assert (ours.package, ours.syntax) == (theirs.package, theirs.syntax)
    assert [e.name for e in ours.enum_type] == [e.name for e in theirs.enum_type]
    assert list(ours.enum_type[0].value) == list(theirs.enum_type[0].value)
    our_facts: dict[str, Any] = {}
    their_facts: dict[str, Any] = {}
    for message in ours.message_type:
        our_facts |= _facts(message)
    for message in theirs.message_type:
        their_facts |= _facts(message)
    assert our_facts == their_facts


@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")])
def test_our_schema_and_tritonclient_live_in_one_process(order: tuple[str, str]) -> None:
    """Both define `inference.ModelConfig`; ours stays out of the default descriptor pool."""
    pytest.importorskip("grpc")
    lines = {
        "ours": "from trireme.engine.config.schema import ModelConfigMessage; ModelConfigMessage(name='m')",
        "theirs": "from tritonclient.grpc import model_config_pb2 as t; t.ModelConfig(name='m')",
    }
    subprocess.run([sys.executable, "-c", "\n".join(lines[which] for which in order)], check=True)
