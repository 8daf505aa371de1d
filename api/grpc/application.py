"""What gRPC serves of a server: every RPC, the function that answers it, and what guards them.

It knows no connections: it is what the gRPC service hosts, as the HTTP application is what the HTTP service hosts. The
two infer RPCs and RepositoryModelLoad read their messages themselves; all others get and give betterproto2's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from betterproto2 import Message
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from ...engine.access.callers import Right
from ...engine.errors import InvalidArgumentError
from ...engine.memory.regions import RegionKind
from ...proto.messages import inference as pb
from ..access import OTHERS_TOO, AccessChecks, Identity, needed, readable
from ..model_routes import RouteChange
from ..pipeline import find_model, is_cold
from ..request_parameters import Restriction
from . import fleet, management, repository
from .codec import RawMessage
from .infer import GrpcContext, answer_infer, begin_infer
from .infer_request import model_of
from .options import GrpcOptions
from .reflection import Reflection
from .stream_infer import InferStream

if TYPE_CHECKING:
    from ...actors.facade import Facade
    from ...engine.access.callers import Caller
    from ..logging import LogFacade
    from .call import UnaryCall
    from .call_head import CallHead
    from .streaming import StreamingCall

_KEY_PREFIX = "triton-grpc-protocol-"
_PREFIX = "/inference.GRPCInferenceService/"
MODEL_INFER: Final = f"{_PREFIX}ModelInfer"
MODEL_STREAM_INFER: Final = f"{_PREFIX}ModelStreamInfer"

_CHANGES = frozenset(
    {
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
    }
)
"""Calls that always change something; those about settings do if they bring some."""

_ANSWERS: Mapping[str, tuple[str, Callable[[GrpcContext, Any], Any]]] = {
    "ServerLive": ("health", management.server_live),
    "ServerReady": ("health", management.server_ready),
    "ServerMetadata": ("metadata", management.server_metadata),
    "ModelReady": ("health", management.model_ready),
    "ModelMetadata": ("metadata", management.model_metadata),
    "ModelConfig": ("model-config", management.model_config),
    "ModelStatistics": ("statistics", management.statistics),
    "RepositoryIndex": ("model-repository", repository.index),
    "RepositoryModelLoad": ("model-repository", repository.load),
    "RepositoryModelUnload": ("model-repository", repository.unload),
    "SystemSharedMemoryStatus": ("shared-memory", partial(management.region_status, RegionKind.SYSTEM)),
    "SystemSharedMemoryRegister": ("shared-memory", management.register_system),
    "SystemSharedMemoryUnregister": ("shared-memory", partial(management.unregister_region, RegionKind.SYSTEM)),
    "CudaSharedMemoryStatus": ("shared-memory", partial(management.region_status, RegionKind.CUDA)),
    "CudaSharedMemoryRegister": ("shared-memory", management.register_cuda),
    "CudaSharedMemoryUnregister": ("shared-memory", partial(management.unregister_region, RegionKind.CUDA)),
    "TraceSetting": ("trace", management.change_trace),
    "LogSettings": ("logging", management.change_log),
}
"""Calls `X` with one message each way, `XRequest` and `XResponse`: the category that a restriction names them by, and
what answers them. That takes the message of the request, and gives that of the response, or its fields, or an awaitable
of them."""


def paths_of(category: str) -> list[str]:
    """The paths of the calls that belong to a category of `request_parameters.RESTRICTABLE`."""
    if category == "inference":
        return [MODEL_INFER, MODEL_STREAM_INFER]
    paths = [_PREFIX + name for name, (its_category, _) in _ANSWERS.items() if its_category == category]
    if category == fleet.CATEGORY:
        paths.append(fleet.WATCH)
    return [*paths, "/grpc.health.v1.Health/Check"] if category == "health" else paths


_CONCERNS_OTHERS: Mapping[str, Callable[[Any], bool]] = {
    "RepositoryModelLoad": repository.has_content,
    "RepositoryModelUnload": repository.unloads_others,
}
"""See `access.OTHERS_TOO`."""

_ROUTE_CHANGES: Mapping[str, Callable[[Any], RouteChange | None]] = {
    "RepositoryModelLoad": repository.route_of_load,
    "RepositoryModelUnload": repository.route_of_unload,
}


class RestrictedProtocols:
    """A guard: it looks at every call when it begins, so at a stream once."""

    def __init__(self, restrictions: Sequence[Restriction]) -> None:
        self._needed = {
            path: (_KEY_PREFIX + restriction.key, restriction)
            for restriction in restrictions
            for category in restriction.categories
            for path in paths_of(category)
        }

    def __call__(self, head: CallHead) -> None:
        """Raises GRPCError: the call lacks the key, or has it with another value."""
        needed = self._needed.get(head.path)
        if needed is not None:
            key, restriction = needed
            given = head.metadata.get(key.lower())
            if given is None or not restriction.admits(str(given).encode("utf-8", "surrogateescape")):
                raise GRPCError(Status.UNAVAILABLE, f"This protocol is restricted, expecting header '{key}'")


class GrpcApplication:
    """The KServe/Triton gRPC interface (docs/reference/grpc.md); itself the inference service (`call.Servable`).

    Args:
        server: the facade that does the work.
        options: of this front end.
        log: whose settings clients may see and change; None where they may not.

    Attributes:
        services: all of them.
        guards: see `host.Guard`.
        immediate: calls that are begun without a task of their own; see `begin_infer`.

    Raises:
        InvalidArgumentError: the options name a header pattern that is none.
    """

    def __init__(self, server: Facade, options: GrpcOptions, log: LogFacade | None = None) -> None:
        context = self._context = GrpcContext(server, options, log)
        self.delays = options.delays
        self.immediate: Mapping[str, Callable[[UnaryCall], bool]] = (
            {} if self.delays.of_model_infer else {MODEL_INFER: partial(begin_infer, context)}
        )
        self.lease = server.lease
        self.model_of = model_of
        self.is_cold = self._is_cold
        self.find_model = partial(find_model, server)
        if context.access is not None:
            self.knows = context.access.known
        self.offload = server.offload
        self.client_accounts = server.client_accounts
        self.refusals = server.refusals
        self.guards = (RestrictedProtocols(options.restrictions),) if options.restrictions else ()
        served = (self, management.Health(context))
        self.services = (
            *served,
            fleet.FleetWatch(context),
            Reflection(path.split("/")[1] for each in served for path in each.__mapping__()),
        )

    def _is_cold(self, identity: Identity, name: str, version: int) -> bool:
        """See `Surroundings.find_model`."""
        access = self._context.access
        caller = None if access is None else access.known(identity)
        may = access is None or (caller is not None and caller.may(Right.INFER, name))
        return may and is_cold(self._context.server, name, version)

    def __mapping__(self) -> dict[str, Handler]:
        mapping: dict[str, Handler] = {}
        for name, (_, its_answer) in _ANSWERS.items():
            request_type = RawMessage if name == "RepositoryModelLoad" else getattr(pb, f"{name}Request")
            reply_type = getattr(pb, f"{name}Response")
            answer = partial(self._answer, name, its_answer, reply_type)
            mapping[_PREFIX + name] = Handler(answer, Cardinality.UNARY_UNARY, request_type, reply_type)
        infer = partial(answer_infer, self._context)
        mapping[MODEL_INFER] = Handler(infer, Cardinality.UNARY_UNARY, RawMessage, RawMessage)
        mapping[MODEL_STREAM_INFER] = Handler(self._infer_stream, Cardinality.STREAM_STREAM, RawMessage, RawMessage)
        return mapping

    async def _answer(
        self, name: str, answer: Callable[[GrpcContext, Any], Any], reply_type: type[Message], stream: StreamingCall
    ) -> None:
        context = self._context
        caller: Caller | None = None
        if context.access is None:
            message = await stream.recv_message()
            if name == "RepositoryModelLoad":
                message = await repository.read_load(context, message)
        else:
            message, caller = await self._receive(context.access, name, stream)
        reply = answer(context, message)
        if isawaitable(reply):
            reply = await reply
        if name == "RepositoryIndex":
            reply["models"] = readable(caller, reply["models"])
        await stream.send_message(reply if isinstance(reply, Message) else reply_type.from_dict(reply or {}))

    async def _receive(self, access: AccessChecks, name: str, stream: StreamingCall) -> tuple[Any, Caller | None]:
        """The message of a call, and who makes it, who may. Without a known caller no message is let come."""
        category = _ANSWERS[name][0]
        identity, address = stream.head.identity, stream.address
        if category != "health":
            await access.identify(identity, name, address)
        message = await stream.recv_message()
        if name == "RepositoryModelLoad":
            message = await repository.read_load(self._context, message)
        model = "" if category == "shared-memory" else getattr(message, "model_name", getattr(message, "name", ""))
        need = needed(category, model, changes=name in _CHANGES or bool(getattr(message, "settings", None)))
        try:
            change = _ROUTE_CHANGES[name](message) if name in _ROUTE_CHANGES else None
        except InvalidArgumentError:
            await access.authorise(identity, category, need, name, address)  # who lacks the right is told only that
            raise
        if change is None and name in _CONCERNS_OTHERS and _CONCERNS_OTHERS[name](message):
            need = (*OTHERS_TOO, False)
        caller = await access.authorise(identity, category, need, name, address)
        if change is not None and caller is not None:
            for each in await change.models(self._context.server.management):
                access.check(caller, Right.MANAGE, each, name, address)
        return message, caller

    async def _infer_stream(self, stream: StreamingCall) -> None:
        await InferStream(self._context, stream).serve()

    def stop_accepting(self) -> None:
        """Refuse new inferences, on open streams too; those in flight go on
        (docs/reference/command-line.md#shutdown)."""
        self._context.draining = True
