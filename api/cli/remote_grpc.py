"""A server over gRPC (see `remote`), on the connections of the load client."""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import betterproto2

from ...clients.connections import BUFFER_BYTES, RefusedError
from ...clients.grpc_connection import NO_GRPC, GrpcLoadConnection
from ...proto.messages import inference
from .parser import UNREACHABLE, CommandError
from .remote import GotTensor, ModelInfo, RemoteError, SentTensor, ServerConnection, TensorInfo, read_array

_SERVICE = "/inference.GRPCInferenceService/"
_NOT_FOUND, _UNAUTHENTICATED = 5, 16

M = TypeVar("M", bound=betterproto2.Message)


class GrpcRemote(ServerConnection):
    """Each method on a connection of its own, which stays open."""

    def __init__(
        self,
        url: str,
        host: str,
        port: int,
        headers: Sequence[tuple[str, str]],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(url, host, port, headers, timeout_s, tls)
        self._connections: dict[str, GrpcLoadConnection] = {}
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def model(self, name: str, version: str = "") -> ModelInfo:
        asked = inference.ModelMetadataRequest(name=name, version=version)
        try:
            about = self._call("ModelMetadata", asked, inference.ModelMetadataResponse)
        except RemoteError as error:
            if "unknown model" in error.text or "not found" in error.text:
                raise self.unknown_model(name, error.text) from error
            raise
        found = self._call(
            "ModelConfig", inference.ModelConfigRequest(name=name, version=version), inference.ModelConfigResponse
        )
        config = found.config or inference.ModelConfig()
        optional = {each.name for each in config.input if each.optional}
        return ModelInfo(
            about.name,
            tuple(about.versions),
            about.platform,
            tuple(TensorInfo(i.name, i.datatype, tuple(i.shape), i.name in optional) for i in about.inputs),
            tuple(TensorInfo(o.name, o.datatype, tuple(o.shape)) for o in about.outputs),
            _as_json(config),
        )

    def index(self) -> list[dict[str, Any]]:
        found = self._call("RepositoryIndex", inference.RepositoryIndexRequest(), inference.RepositoryIndexResponse)
        return [
            {"name": each.name, "version": each.version, "state": each.state, "reason": each.reason}
            for each in found.models
        ]

    def infer(
        self,
        model: str,
        version: str,
        inputs: Sequence[SentTensor],
        *,
        parameters: Mapping[str, Any],
        outputs: Sequence[str],
        classes: int = 0,
    ) -> list[GotTensor]:
        request = _request(model, version, inputs, parameters, outputs, classes)
        return _tensors(self._call("ModelInfer", request, inference.ModelInferResponse))

    def stream(
        self, model: ModelInfo, version: str, inputs: Sequence[SentTensor], *, parameters: Mapping[str, Any]
    ) -> Iterator[list[GotTensor]]:
        """See `ServerConnection`."""
        method = "ModelStreamInfer"
        connection = self._asked(method, _request(model.name, version, inputs, parameters, (), 0))
        over = False
        try:
            while not over:
                over = self._step(connection, time.monotonic() + self._timeout_s)
                while (message := connection.next_message()) is not None:
                    answer = inference.ModelStreamInferResponse.parse(message)
                    if answer.error_message:
                        raise RemoteError(answer.error_message, "")
                    if answer.infer_response is not None:
                        yield _tensors(answer.infer_response)
        except RefusedError as error:
            raise self.unreachable(error) from error
        finally:
            if not over:
                connection.close()
                self._connections.pop(method, None)
        self._check(connection)

    def _call(self, method: str, request: betterproto2.Message, response: type[M]) -> M:
        connection = self._asked(method, request)
        try:
            end_s = time.monotonic() + self._timeout_s
            while not self._step(connection, end_s):
                pass
        except (OSError, RefusedError) as error:
            self._connections.pop(method, None)
            raise self.unreachable(error) from error
        self._check(connection)
        return response().parse(connection.next_message() or b"")

    def _check(self, connection: GrpcLoadConnection) -> None:
        if connection.reason == NO_GRPC:
            raise CommandError(f"what answers at {self.url} speaks no gRPC", "correct --url", UNREACHABLE)
        if connection.status:
            hint = "give a key with --api-key" if connection.status == _UNAUTHENTICATED else ""
            raise RemoteError(connection.reason, hint)

    def _asked(self, method: str, request: betterproto2.Message) -> GrpcLoadConnection:
        """A connection on which a call has begun."""
        try:
            connection = self._connections.get(method)
            if connection is None or not connection.usable:
                connection = GrpcLoadConnection(self._port, 0, self._host, _SERVICE + method, self._headers, self._tls)
                connection.keeps_messages = True
                self._connections[method] = connection
            connection.ask((bytes(request),))
            return connection
        except (OSError, RefusedError) as error:
            self._connections.pop(method, None)
            raise self.unreachable(error) from error

    def _step(self, connection: GrpcLoadConnection, end_s: float) -> bool:
        """Wait until something has come, or could be sent; whether the answer is complete."""
        poller = select.poll()
        events = select.POLLIN | (select.POLLOUT if connection.wanted & select.EPOLLOUT else 0)
        poller.register(connection.socket, events)
        ready = poller.poll(max(0.0, end_s - time.monotonic()) * 1000)
        if not ready:
            raise self.too_late()
        ((_, what),) = ready
        if what & select.POLLOUT:
            connection.flush()
        return bool(what & ~select.POLLOUT) and connection.receive(self._buffer)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def _request(
    model: str,
    version: str,
    inputs: Sequence[SentTensor],
    parameters: Mapping[str, Any],
    outputs: Sequence[str],
    classes: int,
) -> inference.ModelInferRequest:
    wanted = {"classification": inference.InferParameter(int64_param=classes)} if classes else {}
    return inference.ModelInferRequest(
        model_name=model,
        model_version=version,
        parameters={name: _parameter(value) for name, value in parameters.items()},
        inputs=[
            inference.ModelInferRequestInferInputTensor(name=each.name, datatype=each.datatype, shape=list(each.shape))
            for each in inputs
        ],
        outputs=[
            inference.ModelInferRequestInferRequestedOutputTensor(name=name, parameters=dict(wanted))
            for name in outputs
        ],
        raw_input_contents=[each.data for each in inputs],
    )


def _tensors(answer: inference.ModelInferResponse) -> list[GotTensor]:
    return [
        GotTensor(each.name, each.datatype, read_array(each.datatype, each.shape, raw))
        for each, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    ]


def _as_json(config: inference.ModelConfig) -> dict[str, Any]:
    """What commands look at, as the configuration's JSON has it."""
    found: dict[str, Any] = {
        "max_batch_size": config.max_batch_size,
        "output": [{"name": each.name, "label_filename": each.label_filename} for each in config.output],
    }
    if config.sequence_batching is not None:
        found["sequence_batching"] = {}
    if config.model_transaction_policy is not None and config.model_transaction_policy.decoupled:
        found["model_transaction_policy"] = {"decoupled": True}
    return found


def _parameter(value: Any) -> inference.InferParameter:
    if isinstance(value, bool):
        return inference.InferParameter(bool_param=value)
    if isinstance(value, int):
        return inference.InferParameter(int64_param=value)
    if isinstance(value, float):
        return inference.InferParameter(double_param=value)
    return inference.InferParameter(string_param=str(value))
