"""The protobuf message class of a model configuration, and what is asked of its fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ...proto.descriptors import message_class

ModelConfigMessage: type[Any] = message_class("inference.ModelConfig")
"""The class of `inference.ModelConfig`; nested messages are reached through its fields."""


Field = Any
"""A field's descriptor. Protobuf's stubs make its message and enum types optional, also where they cannot be."""


def is_map(field: Field) -> bool:
    """Whether a field is a map, whose message type is then that of its entries."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def wide_fields() -> list[str]:
    """The 64-bit fields of a configuration, sorted: ``ModelConfig::input::dims`` and the like."""
    return sorted(set(_wide_fields(ModelConfigMessage.DESCRIPTOR, "ModelConfig")))


def _wide_fields(descriptor: Any, prefix: str) -> Iterator[str]:
    for field in descriptor.fields:
        path = f"{prefix}::{field.name}"
        if field.message_type is not None:
            yield from _wide_fields(field.message_type, path)
        elif field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
            yield path


def copy_message(message: Message) -> Any:
    """An independent copy, for a caller that changes it."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
