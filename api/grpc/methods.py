"""What can be called: the methods of the services, by path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from grpclib.const import Cardinality, Handler

from .call import UnaryCall


class Servable(Protocol):
    """A grpclib service. It may also have ``immediate``, a mapping of paths to functions that begin a `UnaryCall`:
    True says that the function has taken the call over, False that the method's `Handler` has to run. And it may have,
    one of them for all, ``lease``, which makes what a message takes of the server's budget, ``offload``, which does on
    a thread what takes long (`actors.offload`), ``client_accounts`` (`actors.client_bytes`), and ``delays``."""

    def __mapping__(self) -> Mapping[str, Handler]: ...


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        path: ``/package.Service/Method``.
        function: grpclib's handler: takes a `Stream`.
        client_streaming, server_streaming: whether either side may send any number of messages.
        request_type, reply_type: for the codec.
        begin: see `Servable`.
        max_message_bytes: the largest request message, as sent and unpacked.
        compresses: whether the server's compression level applies to its responses.
    """

    path: str
    function: Callable[[Any], Awaitable[None]]
    client_streaming: bool
    server_streaming: bool
    request_type: Any
    reply_type: Any
    begin: Callable[[UnaryCall], bool] | None
    max_message_bytes: int
    compresses: bool


def methods_of(
    services: Iterable[Servable], compressed_paths: Collection[str], max_message_bytes: Callable[[str], int]
) -> dict[str, Method]:
    """Every method of the services by its path."""
    methods: dict[str, Method] = {}
    for service in services:
        immediate: Mapping[str, Callable[[UnaryCall], bool]] = getattr(service, "immediate", {})
        for path, handler in service.__mapping__().items():
            cardinality: Cardinality = handler.cardinality
            methods[path] = Method(
                path,
                handler.func,
                cardinality.client_streaming,
                cardinality.server_streaming,
                handler.request_type,
                handler.reply_type,
                immediate.get(path),
                max_message_bytes(path),
                path in compressed_paths,
            )
    return methods
