"""The compiled schema: which files there are, a descriptor pool that holds them, and the classes of their messages.

Rules:
 1. The pool is never protobuf's default one: `tritonclient` registers the same names there, and protobuf refuses two
    definitions of one name in one pool. (betterproto2's classes need no descriptors; theirs is a registry of its own.)
 2. There is one pool, and every message class of it lives as long as the process, classes of nested messages and of map
    entries too. Protobuf finds its classes in a table that does not hold them, so the garbage collector may take one
    that is not held elsewhere, and clears it piece by piece. A thread that reads a message meanwhile is given the
    cleared class, and the process crashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

FOLDER = Path(__file__).parent

SOURCES = ("model_config", "inference_service", "health", "reflection", "trireme_fleet")
"""The .proto files, without their ending; a file stands behind those that it imports."""


@lru_cache(maxsize=1)
def descriptor_pool() -> DescriptorPool:
    """The pool with every message and service of the schema."""
    pool = DescriptorPool()
    for source in SOURCES:
        descriptors = descriptor_pb2.FileDescriptorSet()
        descriptors.ParseFromString((FOLDER / f"{source}.pb").read_bytes())
        for file in descriptors.file:
            pool.Add(file)
    return pool


def message_class(name: str) -> type[Any]:
    """Protobuf's class of a message of the schema (rule 2).

    Args:
        name: its full name, as in ``inference.ModelConfig``.

    Raises:
        KeyError: the schema has no such message.
    """
    return _schema_classes()[name]


@lru_cache(maxsize=1)
def _schema_classes() -> Mapping[str, type[Message]]:
    return message_classes(descriptor_pool().FindFileByName(f"{source}.proto") for source in SOURCES)


def message_classes(files: Iterable[FileDescriptor]) -> Mapping[str, type[Message]]:
    """The class of every message of some files by its full name, nested messages and map entries too.

    Who uses one of them holds all (rule 2).
    """
    described = [each for file in files for top in file.message_types_by_name.values() for each in _with_nested(top)]
    return MappingProxyType({each.full_name: GetMessageClass(each) for each in described})


def _with_nested(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for nested in message.nested_types:
        yield from _with_nested(nested)
