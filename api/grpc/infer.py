"""Infer requests over gRPC as the pipeline sees them (`api.pipeline`), and ModelInfer: decode, admit, encode
(docs/reference/grpc.md#input-tensors).

Most calls take the short way: no task waits for their answer. The reply calls back when it has the answer, on the event
loop, and the call sends it. Only while the server-wide budget is used up, or if it takes a thread to read the message,
does a call get a task, to wait in.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from grpclib.const import Status

from ...actors.budget import Lease
from ...engine.access.callers import Caller, Right
from ...engine.admission.large_requests import LARGE_BYTES
from ...engine.description import ModelDescription
from ...engine.errors import RefusalReason, TriremeError, UnavailableError, UnsupportedError
from ...engine.logs.request_lines import about
from ...engine.request import InferenceRequest
from ...engine.tensor import Buffer
from ...engine.tracing import Tracer
from ...engine.tracing.record import MAX_ELEMENTS, Activity, Timestamp
from ..access import AccessChecks
from ..pipeline import Adapter, CallbackAnswer, Encoder, Pipeline, RequestTrace
from ..request_parameters import HeaderPattern, check_forwarded_name, compile_forward_pattern
from .blocks import grpc_error
from .call import UnaryCall
from .call_head import CallHead
from .infer_reader import InferReader
from .infer_request import DecodedGrpcInfer
from .infer_writer import takes_long, write_infer_response
from .options import GrpcOptions, delay
from .streaming import StreamingCall

if TYPE_CHECKING:
    from ...actors.facade import Facade
    from ..logging import LogFacade


class GrpcContext:
    """The server, the options, the reader of infer requests, their way to the server.

    Attributes:
        access: finds out who makes a call; None if there are no access rules.
        draining: no new inference is taken on, while those in flight are finished.
        passes_on: see `Facade`.
        log: whose settings clients may see and change; None where they may not.

    Raises:
        InvalidArgumentError: the header pattern is not a regular expression.
    """

    def __init__(self, server: Facade, options: GrpcOptions, log: LogFacade | None = None) -> None:
        self.server = server
        self.log = log
        self.access = AccessChecks.of(server, "grpc")
        self.options = options
        self.reader = InferReader(server.shared_memory, server.options.tensor_limits, server.offload)
        self.pipeline = Pipeline(server, compile_forward_pattern(options.header_forward_pattern))
        self.draining = False
        self.passes_on = server.passes_on


def forward_metadata(call: CallHead, pattern: HeaderPattern, request: InferenceRequest) -> None:
    """Make parameters of the call's metadata in whose keys `pattern` is found; as in Triton, the user agent is part of
    it. They come after the request's own parameters, and take the place of those of the same name.

    Raises:
        InvalidArgumentError: such a key means something to the server.
    """
    pairs = call.metadata.items()
    for key, value in pairs if call.user_agent is None else (("user-agent", call.user_agent), *pairs):
        if pattern(key):
            check_forwarded_name(key)
            request.parameters[key] = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


class GrpcTrace(RequestTrace):
    """One request, of a call of its own or on a stream."""

    __slots__ = ("_has_responded", "_metadata", "_notes")

    def __init__(self, tracer: Tracer, metadata: Mapping[str, str | bytes]) -> None:
        super().__init__(tracer)
        self._has_responded = False
        self._metadata = metadata
        self._notes: list[Timestamp] = []

    def _header(self, name: str) -> str:
        value = self._metadata.get(name)
        return value if isinstance(value, str) else ""

    def decoded(self, request: InferenceRequest) -> None:
        request.trace = self._begin(request.model_name, self._header)
        if request.trace is not None:
            self._notes = [
                Timestamp(Activity.GRPC_WAITREAD_START, self._came_ns),
                Timestamp(Activity.GRPC_WAITREAD_END, self._tracer.clock.now_ns()),
            ]

    def _responded(self, ns: int, has_response: bool) -> None:
        if not self._has_responded:  # on a stream, only the first of several
            self._has_responded = True
            self._notes.append(Timestamp(Activity.INFER_RESPONSE_COMPLETE, ns))

    def sending(self) -> None:
        self._note(Activity.GRPC_SEND_START)

    def sent(self) -> None:
        self._note(Activity.GRPC_SEND_END)

    def _note(self, activity: Activity) -> None:
        if self.trace is not None and len(self._notes) < MAX_ELEMENTS:
            self._notes.append(Timestamp(activity, self._tracer.clock.now_ns()))

    def finish(self) -> None:
        if self.trace is not None:
            for note in self._notes:
                self.trace.note(*note)
        super().finish()


_INFER = Right.INFER  # found faster here than in its class


class GrpcInfer(Adapter):
    """What all of them have in common: see `pipeline.Adapter`. `message` is empty once it has been decoded.

    Args:
        owner: the call, or the stream, that it is a request of.
    """

    protocol = "grpc"
    decoded: DecodedGrpcInfer | None = None

    def __init__(
        self, owner: object, context: GrpcContext, head: CallHead, message: Buffer, lease: Lease | None
    ) -> None:
        self.owner: Any = owner
        self.context = context
        self.head = head
        self.offload = context.server.offload
        self.message = message
        self.lease = lease
        self.trace = None  # here and below: what every request asks for is found faster in it than in its class

    def describe(self, name: str, version: int) -> ModelDescription:
        """The model; raises TriremeError: there is none, or none that takes such requests."""
        caller = self.caller
        if caller is not None and not caller.may(_INFER, name):
            self.refuse_caller(caller, name)
        model = self.model = self.context.server.describe(name, version)
        return model

    def refuse_caller(self, caller: Caller, model: str) -> None:
        """Raises TriremeError: the caller may not ask the model, which is counted and logged."""
        access = self.context.access
        if access is not None:
            access.check(caller, _INFER, model, self.head.path, self.owner.address)

    def received(self, tracer: Tracer) -> None:
        self.trace = GrpcTrace(tracer, self.head.metadata)

    def decode(self) -> bool:
        context = self.context
        if context.draining or context.server.exiting:
            raise UnavailableError(
                "GRPC server is shutting down and has stopped accepting new requests.", refusal=RefusalReason.STOPPING
            )
        decoded = context.reader.decode(self.message, self.describe)
        if decoded is None:
            return False
        self.decoded = decoded
        request = self.request = decoded.request
        if context.passes_on and not (decoded.class_counts or decoded.places or decoded.enable_empty_final_response):
            request.message = self.message  # which means the same to the replica
        self.message = b""
        return True

    async def decode_slowly(self) -> None:
        context = self.context
        lease = self.lease = self.lease or context.server.lease()
        decoded = self.decoded = await context.reader.decode_slowly(self.message, self.describe, lease)
        self.request = decoded.request
        self.message = b""

    def own_timeout_us(self) -> int:
        """Of a message that is read at once."""
        if len(self.message) > LARGE_BYTES:
            return 0
        said = self.context.reader.names(self.message)
        timeout = 0 if said is None else said.parameters.get("timeout", 0)
        return timeout if isinstance(timeout, int) else 0

    def note_refusal(self, error: TriremeError) -> None:
        """Count it, for the model that it is for, if that is known."""
        model = self.model
        if model is None:
            self.context.server.note_refusal(error)
        else:
            self.context.server.note_refusal(error, model.name, model.version)

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        forward_metadata(self.head, pattern, request)
        request.message = None  # it does not say that

    def header(self, name: str) -> str:
        value = self.head.metadata.get(name, "")
        return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")

    def abandon(self) -> None:
        """The request is over, whatever has become of it: nothing more is noted, and a lease that no request in flight
        has is given back."""
        super().abandon()
        if self.lease is not None and not self.lease.admitted:
            self.lease.close()
            self.lease = None


class UnaryInferRequest(GrpcInfer, Encoder[list[Buffer]]):
    """Of a call of ModelInfer."""

    encode = staticmethod(write_infer_response)
    takes_long = staticmethod(takes_long)

    def describe(self, name: str, version: int) -> ModelDescription:
        caller = self.caller
        if caller is not None and not caller.may(_INFER, name):
            self.refuse_caller(caller, name)
        model = self.model = self.context.server.describe(name, version)
        if model.config.decoupled:
            raise UnsupportedError("ModelInfer RPC doesn't support models with decoupled transaction policy")
        return model


_log = logging.getLogger(__name__)

_DEFECT = Status.UNKNOWN, "Internal Server Error"


def begin_infer(context: GrpcContext, call: UnaryCall) -> bool:
    """Take a call of ModelInfer over, to be answered later.

    Returns:
        False if it has to wait first, for room in the server-wide budget or for a thread: then nothing has happened
        yet.
    """
    access = context.access
    adapter = _InferCall(call, context, call.head, call.message, call.lease)
    adapter.over, adapter.send = False, call.answer
    if access is not None:
        adapter.caller = access.known(call.head.identity)
        if adapter.caller is None:
            return False
    try:
        reply = context.pipeline.begin(adapter)
    except TriremeError as error:
        adapter.note_refusal(error)
        call.fail(*grpc_error(error), error.refusal_reason)
        return True
    if reply is None:
        if adapter.trace is not None:
            adapter.trace.forget()
        return False
    adapter.reply = reply
    call.on_cancel = adapter.cancel
    reply.notify(adapter.complete)
    return True


async def identify(context: GrpcContext, stream: StreamingCall) -> Caller | None:
    """Who makes a call of inference; None if there are no access rules.

    Raises:
        TriremeError: it is not known.
    """
    access = context.access
    if access is None:
        return None
    return await access.identify(stream.head.identity, stream.head.path, stream.address)


async def answer_infer(context: GrpcContext, stream: StreamingCall) -> None:
    """Answer a call of ModelInfer in a task of its own.

    Raises:
        TriremeError: the request was refused, or failed.
    """
    delays = context.options.delays
    caller = await identify(context, stream)
    message = await stream.recv_message()
    task = UnaryInferRequest(stream, context, stream.head, message, stream.take_lease())
    task.caller = caller
    try:
        await delay(delays.process_s, "the Process execution")
        try:
            reply = await context.pipeline.admit(task)
        except TriremeError as error:
            task.note_refusal(error)
            stream.refused = error.refusal_reason
            raise
        stream.admitted()
        parts = await task.encoded(await reply.response())
        await delay(delays.response_completion_s, "InferResponseComplete")
        if task.trace is not None:
            task.trace.sending()
        await stream.send_message(parts)
        if task.trace is not None:
            task.trace.sent()
    finally:
        task.abandon()


class _InferCall(UnaryInferRequest, CallbackAnswer[list[Buffer]]):
    """A call without a task. Who makes it sets `over` and `send`: a constructor that calls another takes longer."""

    prompt: ClassVar[bool] = True
    owner: UnaryCall
    reply = None

    def fail(self, error: TriremeError | None, refused: bool = False) -> None:
        if error is None:
            self.owner.fail(*_DEFECT)
        else:
            self.owner.fail(*grpc_error(error), error.refusal_reason if refused else None)

    def log_defect(self) -> None:
        request = self.request
        extra = None if request is None else about(request.model_name, request.id)
        _log.exception("unexpected failure while answering %s", self.head.path, extra=extra)
