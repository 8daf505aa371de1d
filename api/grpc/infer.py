"""ModelInfer: decode, admit, encode (docs/reference/grpc.md#input-tensors).

Most calls take the short way: no task waits for their answer. The reply calls back when it has the answer, on the event
loop, and the call sends it. Only while the server-wide budget is used up, or if it takes a thread to read the message,
does a call get a task, to wait in.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from grpclib.const import Status

from ...actors.reply import Reply
from ...engine.errors import TriremeError
from ...engine.logs.context import about
from ...engine.tensor import Buffer
from ..pipeline import CallbackAnswer, Encoder
from .blocks import grpc_error
from .call import UnaryCall
from .context import GrpcContext
from .infer_adapter import UnaryInferRequest
from .infer_writer import takes_long, write_infer_response
from .options import delay
from .streaming import StreamingCall

_log = logging.getLogger(__name__)

_Failure = tuple[Status, str]


class UnaryInfer:
    """Answers the calls of ModelInfer."""

    __slots__ = ("_context",)

    def __init__(self, context: GrpcContext) -> None:
        self._context = context

    def begin(self, call: UnaryCall) -> bool:
        """Take a call over, to be answered later.

        Returns:
            False if it has to wait first, for room in the server-wide budget or for a thread: then nothing has happened
            yet.

        Raises:
            TriremeError: the request is refused.
        """
        context = self._context
        adapter = _InferCall(context, call)
        reply = context.pipeline.begin(adapter)
        if reply is None:
            if adapter.trace is not None:
                adapter.trace.forget()
            return False
        adapter.reply = reply
        call.on_cancel = adapter.cancel
        reply.notify(adapter.complete)
        return True

    async def handle(self, stream: StreamingCall) -> None:
        """Answer a call in a task of its own.

        Raises:
            TriremeError: the request was refused, or failed.
        """
        context = self._context
        delays = context.options.delays
        task = _InferTask(context, stream, await stream.recv_message())
        try:
            await delay(delays.process_s, "the Process execution")
            reply = await context.pipeline.admit(task)
            stream.admitted()
            parts = await task.encoded(await reply.response())
            await delay(delays.response_completion_s, "InferResponseComplete")
            if task.trace is not None:
                task.trace.sending()
            await stream.send_message(parts)
            if task.trace is not None:
                task.trace.sent()
        finally:
            task.close()


class _InferCall(UnaryInferRequest, CallbackAnswer[list[Buffer], _Failure]):
    """A call without a task."""

    __slots__ = (
        "_call",
        "context",
        "decoded",
        "lease",
        "message",
        "model",
        "offload",
        "over",
        "reply",
        "request",
        "send",
        "source",
        "trace",
    )
    encode = staticmethod(write_infer_response)
    takes_long = staticmethod(takes_long)
    prompt: ClassVar[bool] = True

    def __init__(self, context: GrpcContext, call: UnaryCall) -> None:
        self.context = context
        self.decoded = None
        self.lease = call.lease
        self.message = call.message
        self.model = None
        self.offload = context.server.offload
        self.over = False
        self.reply: Reply | None = None
        self.request = None
        self.send = call.answer
        self.source = call.head
        self.trace = None
        self._call = call

    def waiting(self) -> AbstractContextManager[None]:
        raise AssertionError("a call that has to wait has a task")

    def fail(self, failure: _Failure) -> None:
        self._call.fail(*failure)

    def failure(self, error: TriremeError) -> _Failure:
        return grpc_error(error)

    def unexpected(self) -> _Failure:
        request = self.request
        extra = None if request is None else about(request.model_name, request.id)
        _log.exception("unexpected failure while answering %s", self._call.head.path, extra=extra)
        return Status.UNKNOWN, "Internal Server Error"


class _InferTask(UnaryInferRequest, Encoder[list[Buffer]]):
    """A call with a task."""

    __slots__ = ("context", "decoded", "lease", "message", "model", "offload", "request", "source", "trace")
    encode = staticmethod(write_infer_response)
    takes_long = staticmethod(takes_long)
    prompt: ClassVar[bool] = False

    def __init__(self, context: GrpcContext, stream: StreamingCall, message: Buffer) -> None:
        self.context = context
        self.decoded = None
        self.lease = stream.take_lease()
        self.message = message
        self.model = None
        self.offload = context.server.offload
        self.request = None
        self.source = stream
        self.trace = None

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()  # it has room to wait in (`waiting.WaitingRoom`)

    def abandon(self) -> None:
        self.close()
