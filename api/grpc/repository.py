"""The RPCs about the model repository: index, load, unload (docs/reference/grpc.md#repository-calls).

A ``RepositoryModelLoadRequest`` may bring along files of gigabytes, which stay where they were received: protobuf's own
reader copies all of a message in one piece, and holds the interpreter's lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...engine.admission.large_requests import LARGE_BYTES
from ...engine.errors import InvalidArgumentError, UnsupportedError
from ...engine.tensor import Buffer
from ...proto.messages import inference as pb
from ..model_routes import ROUTE_PARAMETER, RouteChange
from .codec import MAX_FIELDS, too_many_fields
from .infer import GrpcContext
from .management import Fields
from .wire import LENGTH, VARINT, fields, read_text, tag

Choice = tuple[str, str | memoryview | None]
"""Which choice a parameter has made, and the value, if that is a text or bytes; an empty name for none."""

_REPOSITORY_NAME, _MODEL_NAME, _PARAMETERS = (tag(n, LENGTH) for n in range(1, 4))
_KEY, _VALUE = tag(1, LENGTH), tag(2, LENGTH)
_STRING_PARAM, _BYTES_PARAM = tag(3, LENGTH), tag(4, LENGTH)
_CHOICES = {
    tag(1, VARINT): "bool_param",
    tag(2, VARINT): "int64_param",
    _STRING_PARAM: "string_param",
    _BYTES_PARAM: "bytes_param",
}
_FIELDS_AN_ENTRY = 4  # the entry, its key and its value, and what that holds


@dataclass(slots=True)
class WireLoad:
    """The fields of a ``RepositoryModelLoadRequest``.

    Attributes:
        parameters: by name. Bytes are views on the message.
    """

    repository_name: str = ""
    model_name: str = ""
    parameters: dict[str, Choice] = field(default_factory=dict)


def read_load_request(message: Buffer) -> WireLoad:
    """The request that a message holds. Of a field, map entry or choice that is there twice, the last one counts.

    Raises:
        UnreadableError: it holds none.
        InvalidArgumentError: it has too many fields, or a text is too long.
    """
    data = memoryview(message)
    left = MAX_FIELDS * _FIELDS_AN_ENTRY

    def inside(at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Fields, which count however deep they are: a few bytes may be one."""
        nonlocal left
        for found in fields(data, at, end):
            left -= 1
            if left < 0:
                raise too_many_fields()
            yield found

    def read_choice(at: int, end: int, choice: Choice) -> Choice:
        for kind, start, stop in inside(at, end):
            if kind == _BYTES_PARAM:
                choice = (_CHOICES[kind], data[start:stop])
            elif kind in _CHOICES:
                choice = (_CHOICES[kind], read_text(data, start, stop) if kind == _STRING_PARAM else None)
        return choice

    load = WireLoad()
    for count, (key, start, stop) in enumerate(inside(0, len(data))):
        if count == MAX_FIELDS:
            raise too_many_fields()
        if key == _PARAMETERS:
            name = ""
            choice: Choice = ("", None)
            for part, at, end in inside(start, stop):
                if part == _KEY:
                    name = read_text(data, at, end)
                elif part == _VALUE:
                    choice = read_choice(at, end, choice)
            load.parameters[name] = choice
        elif key == _REPOSITORY_NAME:
            load.repository_name = read_text(data, start, stop)
        elif key == _MODEL_NAME:
            load.model_name = read_text(data, start, stop)
    return load


_UNLOAD_DEPENDENTS = "unload_dependents"


async def index(context: GrpcContext, message: pb.RepositoryIndexRequest) -> Fields:
    """RepositoryIndex. Unlike HTTP, this refuses the name of a repository."""
    _refuse_repository_name(message.repository_name)
    return {"models": await context.server.management.repository_index(message.ready)}


async def read_load(context: GrpcContext, message: Buffer) -> WireLoad:
    """`read_load_request`, on a thread if that takes long."""
    if len(message) > LARGE_BYTES:
        return await context.server.offload(read_load_request, message)
    return read_load_request(message)


async def load(context: GrpcContext, request: WireLoad) -> None:
    """RepositoryModelLoad: answered when the model is loaded."""
    _refuse_repository_name(request.repository_name)
    if change := route_of_load(request):
        await change.make(context.server.management)
        return
    await context.server.management.load_model(request.model_name, _load_parameters(request.parameters))


async def unload(context: GrpcContext, message: pb.RepositoryModelUnloadRequest) -> None:
    """RepositoryModelUnload: answered when unloading has begun."""
    _refuse_repository_name(message.repository_name)
    if change := route_of_unload(message):
        await change.make(context.server.management)
        return
    await context.server.management.unload_model(message.model_name, _unload_dependents(message.parameters))


def has_content(request: WireLoad) -> bool:
    """Whether a load brings a configuration or files."""
    return bool(request.parameters)


def unloads_others(message: pb.RepositoryModelUnloadRequest) -> bool:
    """Whether an unload is for more than its model."""
    return _unload_dependents(message.parameters)


def route_of_load(request: WireLoad) -> RouteChange | None:
    """What a load sets, if that is a route.

    Raises:
        InvalidArgumentError: it brings no document of a route, or more.
    """
    if ROUTE_PARAMETER not in request.parameters:
        return None
    return RouteChange.of_load(request.model_name, request.parameters, request.parameters[ROUTE_PARAMETER][1])


def route_of_unload(message: pb.RepositoryModelUnloadRequest) -> RouteChange | None:
    """What an unload removes or stops, if that is a route's.

    Raises:
        InvalidArgumentError: a parameter is not a bool.
    """
    return RouteChange.of_unload(
        message.model_name, {name: parameter.bool_param for name, parameter in message.parameters.items()}
    )


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


def _unload_dependents(given: Mapping[str, pb.ModelRepositoryParameter]) -> bool:
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
