"""Server reflection, v1 and v1alpha: tools such as ``grpcurl`` ask which services there are and what they look like.

The answers are about our descriptors, in a pool of their own, and so are the messages: grpclib's reflection service
registers its messages in protobuf's default pool, under the names that ``grpcio-reflection`` registers there too, and
a process that imports both ends with an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from grpclib.const import Cardinality, Handler, Status

from ...proto.descriptors import descriptor_pool
from ...proto.messages.grpc.reflection import v1 as pb

if TYPE_CHECKING:
    from .streaming import StreamingCall

_V1 = "/grpc.reflection.v1."
_V1_ALPHA = "/grpc.reflection.v1alpha."


class Reflection:
    """``grpc.reflection.v1.ServerReflection``, and v1alpha, whose messages have the same fields.

    Args:
        services: the full names of the services that are listed; any number of times each.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = sorted(set(services))
        self._pool = descriptor_pool()

    def __mapping__(self) -> dict[str, Handler]:
        types = pb.ServerReflectionRequest, pb.ServerReflectionResponse
        handler = Handler(self._info, Cardinality.STREAM_STREAM, *types)
        return {f"{package}ServerReflection/ServerReflectionInfo": handler for package in (_V1, _V1_ALPHA)}

    async def _info(self, stream: StreamingCall) -> None:
        """Answers each question as it comes; a question that is none, or that has no answer, does not end the call."""
        async for question in stream:
            try:
                answer = self._answer(question)
            except KeyError:
                answer = _error(Status.NOT_FOUND, "not found")
            await stream.send_message(answer)

    def _answer(self, question: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        """Raises KeyError: there is nothing of that name. (The schema has no extensions.)"""
        pool = self._pool
        if question.list_services is not None:
            listed = pb.ListServiceResponse(service=[pb.ServiceResponse(name=name) for name in self._services])
            return pb.ServerReflectionResponse(list_services_response=listed)
        if question.file_by_filename is not None:
            return _file(pool.FindFileByName(question.file_by_filename))
        if question.file_containing_symbol is not None:
            return _file(pool.FindFileContainingSymbol(question.file_containing_symbol))
        if question.file_containing_extension is not None:
            raise KeyError(question.file_containing_extension.containing_type)
        if question.all_extension_numbers_of_type is not None:
            described = pool.FindMessageTypeByName(question.all_extension_numbers_of_type)
            return pb.ServerReflectionResponse(
                all_extension_numbers_response=pb.ExtensionNumberResponse(base_type_name=described.full_name)
            )
        return _error(Status.INVALID_ARGUMENT, "invalid argument")


def _file(described: FileDescriptor) -> pb.ServerReflectionResponse:
    file = descriptor_pb2.FileDescriptorProto()
    described.CopyToProto(file)
    return pb.ServerReflectionResponse(
        file_descriptor_response=pb.FileDescriptorResponse(file_descriptor_proto=[file.SerializeToString()])
    )


def _error(status: Status, message: str) -> pb.ServerReflectionResponse:
    return pb.ServerReflectionResponse(error_response=pb.ErrorResponse(error_code=status.value, error_message=message))
