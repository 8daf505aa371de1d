"""The RPCs about the model repository: index, load, unload (docs/reference/grpc.md#repository-calls)."""

from __future__ import annotations

from collections.abc import Mapping

from ...actors.offload import LARGE_BYTES
from ...engine.errors import InvalidArgumentError, UnsupportedError
from ...engine.tensor import Buffer
from ...proto.messages.inference import (
    ModelRepositoryParameter,
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    RepositoryIndexResponseModelIndex,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
)
from .context import GrpcContext
from .load_request import Choice, read_load_request

_UNLOAD_DEPENDENTS = "unload_dependents"


async def index(context: GrpcContext, message: RepositoryIndexRequest) -> RepositoryIndexResponse:
    """RepositoryIndex. Unlike HTTP, this refuses the name of a repository."""
    _refuse_repository_name(message.repository_name)
    await context.server.rescan()
    return RepositoryIndexResponse(
        models=[
            RepositoryIndexResponseModelIndex(
                name=entry.name,
                version=entry.version,
                state=entry.state.value if entry.state is not None else "",
                reason=entry.reason,
            )
            for entry in context.server.repository_index(message.ready)
        ]
    )


async def load(context: GrpcContext, message: Buffer) -> RepositoryModelLoadResponse:
    """RepositoryModelLoad: answered when the model is loaded."""
    if len(message) > LARGE_BYTES:
        request = await context.server.offload(read_load_request, message)
    else:
        request = read_load_request(message)
    _refuse_repository_name(request.repository_name)
    await context.server.load_model(request.model_name, _load_parameters(request.parameters))
    return RepositoryModelLoadResponse()


async def unload(context: GrpcContext, message: RepositoryModelUnloadRequest) -> RepositoryModelUnloadResponse:
    """RepositoryModelUnload: answered when unloading has begun."""
    _refuse_repository_name(message.repository_name)
    await context.server.unload_model(message.model_name, _unload_dependents(message.parameters))
    return RepositoryModelUnloadResponse()


def _refuse_repository_name(name: str) -> None:
    if name:
        raise UnsupportedError("'repository_name' specification is not supported")


def _load_parameters(given: Mapping[str, Choice]) -> dict[str, str | Buffer]:
    """``config`` as text, files as bytes.

    Raises:
        InvalidArgumentError: a value of the wrong type, or an unknown name.
    """
    parameters: dict[str, str | Buffer] = {}
    for name, (kind, value) in given.items():
        if name == "config":
            expected = "string_param"
        elif name.startswith("file:"):
            expected = "bytes_param"
        else:
            raise InvalidArgumentError(f"unrecognized load parameter '{name}'.")
        if kind != expected or value is None:
            raise InvalidArgumentError(f"invalid value type for load parameter '{name}', expected {expected}.")
        parameters[name] = value
    return parameters


def _unload_dependents(given: Mapping[str, ModelRepositoryParameter]) -> bool:
    """Whether the models that only this one needs go too; other parameters are ignored.

    Raises:
        InvalidArgumentError: it is not a bool.
    """
    parameter = given.get(_UNLOAD_DEPENDENTS)
    if parameter is None:
        return False
    if parameter.bool_param is None:
        raise InvalidArgumentError(f"invalid value type for '{_UNLOAD_DEPENDENTS}' parameter, expected bool_param.")
    return parameter.bool_param
