"""`inference.GRPCInferenceService` of an `InferenceServer`: every RPC, and where its body is.

The two infer RPCs read and write their messages themselves; all others get and give betterproto2's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from grpclib.const import Cardinality, Handler

from ...proto.messages import inference as pb
from . import log_settings, models, repository, server, shared_memory, trace_settings
from .codec import RawMessage
from .context import GrpcContext
from .infer import UnaryInfer
from .stream_infer import InferStream

if TYPE_CHECKING:
    from ...actors.client_bytes import ClientAccounts
    from ...actors.lease import Lease
    from ...actors.offload import Offload
    from .call import UnaryCall
    from .streaming import StreamingCall

MODEL_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
MODEL_LOAD: Final = "/inference.GRPCInferenceService/RepositoryModelLoad"
MODEL_STREAM_INFER: Final = "/inference.GRPCInferenceService/ModelStreamInfer"


class InferenceService(pb.GrpcInferenceServiceBase):
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
        mapping = super().__mapping__()
        mapping[MODEL_INFER] = Handler(self._unary.handle, Cardinality.UNARY_UNARY, RawMessage, RawMessage)
        mapping[MODEL_LOAD] = Handler(self._load, Cardinality.UNARY_UNARY, RawMessage, pb.RepositoryModelLoadResponse)
        mapping[MODEL_STREAM_INFER] = Handler(self._infer_stream, Cardinality.STREAM_STREAM, RawMessage, RawMessage)
        return mapping

    async def _infer_stream(self, stream: StreamingCall) -> None:
        await InferStream(self._context, stream).serve()

    # The server.

    async def server_live(self, message: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return server.live(self._context)

    async def server_ready(self, message: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return await server.ready(self._context)

    async def server_metadata(self, message: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return server.metadata(self._context)

    # Its models.

    async def model_ready(self, message: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        return await models.ready(self._context, message)

    async def model_metadata(self, message: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        return models.metadata(self._context, message)

    async def model_config(self, message: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        return models.config(self._context, message)

    async def model_statistics(self, message: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        return models.statistics(self._context, message)

    # Its repository.

    async def repository_index(self, message: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        return await repository.index(self._context, message)

    async def _load(self, stream: StreamingCall) -> None:
        await stream.send_message(await repository.load(self._context, await stream.recv_message()))

    async def repository_model_unload(
        self, message: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        return await repository.unload(self._context, message)

    # Memory that client and server share.

    async def system_shared_memory_status(
        self, message: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        return shared_memory.system_status(self._context, message)

    async def system_shared_memory_register(
        self, message: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        return shared_memory.register_system(self._context, message)

    async def system_shared_memory_unregister(
        self, message: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        return shared_memory.unregister_system(self._context, message)

    async def cuda_shared_memory_status(
        self, message: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        return shared_memory.cuda_status(self._context, message)

    async def cuda_shared_memory_register(
        self, message: pb.CudaSharedMemoryRegisterRequest
    ) -> pb.CudaSharedMemoryRegisterResponse:
        return shared_memory.register_cuda(self._context, message)

    async def cuda_shared_memory_unregister(
        self, message: pb.CudaSharedMemoryUnregisterRequest
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        return shared_memory.unregister_cuda(self._context, message)

    # What it records.

    async def trace_setting(self, message: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        return trace_settings.change(self._context, message)

    async def log_settings(self, message: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        return log_settings.change(self._context, message)
