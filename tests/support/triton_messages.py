"""Triton's message classes and stub: tritonclient's where it is installed, else made of our own descriptors.

tritonclient does not accept protobuf 7. With what is made here, the tests of gRPC run on it all the same.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc

from trireme.proto.descriptors import descriptor_pool, message_class

MESSAGES: Any
"""The messages of ``inference_service.proto`` by name, and `DESCRIPTOR`, the file; protobuf makes the classes when they
are imported, which type checkers do not see."""

CONFIG_FILE: Any
"""The descriptor of ``model_config.proto``."""

Stub: Any
"""The client's side of ``inference.GRPCInferenceService``, for a channel."""


class _OwnStub:
    def __init__(self, channel: grpc.Channel) -> None:
        for method in _OWN_FILE.services_by_name["GRPCInferenceService"].methods:
            sides = (method.client_streaming, method.server_streaming)
            kind = "_".join("stream" if streaming else "unary" for streaming in sides)
            path = f"/{method.containing_service.full_name}/{method.name}"
            serialize = message_class(method.input_type.full_name).SerializeToString
            read = message_class(method.output_type.full_name).FromString
            setattr(self, method.name, getattr(channel, kind)(path, serialize, read))


_OWN_FILE: Any = descriptor_pool().FindFileByName("inference_service.proto")

try:
    from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
except ImportError:
    _classes = {name: message_class(each.full_name) for name, each in _OWN_FILE.message_types_by_name.items()}
    MESSAGES = SimpleNamespace(DESCRIPTOR=_OWN_FILE, **_classes)
    CONFIG_FILE = _OWN_FILE.pool.FindFileByName("model_config.proto")
    Stub = _OwnStub
else:
    MESSAGES, CONFIG_FILE = service_pb2, model_config_pb2.DESCRIPTOR
    Stub = service_pb2_grpc.GRPCInferenceServiceStub
