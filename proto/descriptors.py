"""The compiled schema: which files there are, and a descriptor pool that holds them.

The pool is never protobuf's default one: `tritonclient` registers the same names there, and protobuf refuses two
definitions of one name in one pool. (betterproto2's classes need no descriptors; theirs is a registry of its own.)
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

FOLDER = Path(__file__).parent

SOURCES = ("model_config", "inference_service", "health", "reflection")
"""The .proto files, without their ending; a file stands behind those that it imports."""


def descriptor_pool() -> DescriptorPool:
    """A new pool with every message and service of the schema."""
    pool = DescriptorPool()
    for source in SOURCES:
        descriptors = descriptor_pb2.FileDescriptorSet()
        descriptors.ParseFromString((FOLDER / f"{source}.pb").read_bytes())
        for file in descriptors.file:
            pool.Add(file)
    return pool
