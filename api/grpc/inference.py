"""`inference.GRPCInferenceService` of an `InferenceServer`: every RPC, and the function that answers it.

The two infer RPCs and RepositoryModelLoad read their messages themselves; all others get and give betterproto2's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from grpclib.const import Cardinality, Handler

from ...proto.messages import inference as pb
from . import about, repository, settings, shared_memory
from .codec import RawMessage
from .context import GrpcContext
from .infer import UnaryInfer
from .stream_infer import InferStream

if TYPE_CHECKING:
    from ...actors.budget import Lease
    from ...actors.offload import Offload
    from ...engine.admission.client_bytes import ClientAccounts
    from .call import UnaryCall
    from .streaming import StreamingCall

_PREFIX = "/inference.GRPCInferenceService/"
MODEL_INFER: Final = f"{_PREFIX}ModelInfer"
MODEL_STREAM_INFER: Final = f"{_PREFIX}ModelStreamInfer"

_ANSWERS: Mapping[str, tuple[str, Callable[[GrpcContext, Any], Any]]] = {
    "ServerLive": ("health", about.server_live),
    "ServerReady": ("health", about.server_ready),
    "ServerMetadata": ("metadata", about.server_metadata),
    "ModelReady": ("health", about.model_ready),
    "ModelMetadata": ("metadata", about.model_metadata),
    "ModelConfig": ("model-config", about.model_config),
    "ModelStatistics": ("statistics", about.statistics),
    "RepositoryIndex": ("model-repository", repository.index),
    "RepositoryModelLoad": ("model-repository", repository.load),
    "RepositoryModelUnload": ("model-repository", repository.unload),
    "SystemSharedMemoryStatus": ("shared-memory", shared_memory.system_status),
    "SystemSharedMemoryRegister": ("shared-memory", shared_memory.register_system),
    "SystemSharedMemoryUnregister": ("shared-memory", shared_memory.unregister_system),
    "CudaSharedMemoryStatus": ("shared-memory", shared_memory.cuda_status),
    "CudaSharedMemoryRegister": ("shared-memory", shared_memory.register_cuda),
    "CudaSharedMemoryUnregister": ("shared-memory", shared_memory.unregister_cuda),
    "TraceSetting": ("trace", settings.change_trace),
    "LogSettings": ("logging", settings.change_log),
}
"""Calls with one message each way: the category that a restriction names them by, and what answers them. That takes the
message of the request, and gives that of the response, or an awaitable of it."""


def paths_of(category: str) -> list[str]:
    """The paths of the calls that belong to a category of `restrictions.RESTRICTABLE`."""
    if category == "inference":
        return [MODEL_INFER, MODEL_STREAM_INFER]
    paths = [_PREFIX + name for name, (its_category, _) in _ANSWERS.items() if its_category == category]
    return [*paths, "/grpc.health.v1.Health/Check"] if category == "health" else paths


class InferenceService:
    """The inference service.

    Attributes:
        immediate: calls that are begun without a task of their own; see `UnaryInfer.begin`.
        lease, offload, client_accounts: the server's.
        delays: what is held up, for tests of clients.
    """

    def __init__(self, context: GrpcContext) -> None:
        self._context = context
        self._unary = UnaryInfer(context)
        self.delays = context.options.delays
        self.immediate: Mapping[str, Callable[[UnaryCall], bool]] = {MODEL_INFER: self._unary.begin}
        if self.delays.of_model_infer:
            self.immediate = {}
        self.lease: Callable[..., Lease] = context.server.lease
        self.offload: Offload = context.server.offload
        self.client_accounts: ClientAccounts = context.server.client_accounts

    def __mapping__(self) -> dict[str, Handler]:
        mapping: dict[str, Handler] = {}
        for path, promised in pb.GrpcInferenceServiceBase().__mapping__().items():
            name = path.removeprefix(_PREFIX)
            request_type = RawMessage if name == "RepositoryModelLoad" else promised.request_type
            if name in _ANSWERS:
                answer = partial(self._answer, _ANSWERS[name][1])
                mapping[path] = Handler(answer, promised.cardinality, request_type, promised.reply_type)
        mapping[MODEL_INFER] = Handler(self._unary.handle, Cardinality.UNARY_UNARY, RawMessage, RawMessage)
        mapping[MODEL_STREAM_INFER] = Handler(self._infer_stream, Cardinality.STREAM_STREAM, RawMessage, RawMessage)
        return mapping

    async def _answer(self, answer: Callable[[GrpcContext, Any], Any], stream: StreamingCall) -> None:
        message = answer(self._context, await stream.recv_message())
        await stream.send_message(await message if isawaitable(message) else message)

    async def _infer_stream(self, stream: StreamingCall) -> None:
        await InferStream(self._context, stream).serve()
