"""ModelInfer: decode, submit, encode (docs/reference/grpc.md#input-tensors).

Most calls take the short way: no task waits for their answer. The reply calls back when it has the answer, on the event
loop, and the call sends it. Only while the server-wide budget is used up, or if it takes a thread to read the message,
does a call get a task, to wait in.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from grpclib.const import Status

from ...actors.offload import Offload
from ...actors.reply import Reply
from ...engine.description import ModelDescription
from ...engine.errors import TriremeError, UnsupportedError
from ...engine.log_context import about
from ...engine.response import InferenceResponse
from ...engine.tensor import Buffer
from .context import GrpcContext
from .delays import delay
from .forwarding import forward_metadata
from .infer_request import DecodedGrpcInfer
from .infer_writer import takes_long, write_infer_response
from .statuses import grpc_error
from .tracing import GrpcTrace, begin_trace

if TYPE_CHECKING:
    from .call import UnaryCall
    from .stream import Stream

_log = logging.getLogger(__name__)


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
        if context.tracer.active:
            return self._begin_traced(call)
        context.refuse_when_draining()
        decoded = context.reader.decode(call.message, self._describe)
        if decoded is None:
            return False
        if context.forward_pattern is not None:
            forward_metadata(call.head, context.forward_pattern, decoded.request)
        reply = context.server.submit_nowait(decoded.request, attended=True, lease=call.lease)
        if reply is None:
            return False
        call.on_cancel = reply.cancel
        reply.notify(_Pending(call, decoded, context.server.offload).answer)
        return True

    def _begin_traced(self, call: UnaryCall) -> bool:
        """`begin`, of a request that may be traced."""
        context = self._context
        context.refuse_when_draining()
        waited_ns = context.tracer.clock.now_ns()
        decoded = context.reader.decode(call.message, self._describe)
        if decoded is None:
            return False
        if context.forward_pattern is not None:
            forward_metadata(call.head, context.forward_pattern, decoded.request)
        traced = begin_trace(context.tracer, decoded.request.model_name, call.head.metadata, waited_ns)
        if traced is None:
            pending = _Pending(call, decoded, context.server.offload)
        else:
            decoded.request.trace = traced.trace
            pending = _TracedPending(call, decoded, context.server.offload, traced)
        try:
            reply = context.server.submit_nowait(decoded.request, attended=True, lease=call.lease)
        except TriremeError:
            if traced is not None:
                traced.finish()
            raise
        if reply is None:
            context.tracer.forget(decoded.request.model_name, decoded.request.trace)
            return False
        call.on_cancel = reply.cancel
        reply.notify(pending.answer)
        return True

    async def handle(self, stream: Stream) -> None:
        """Answer a call in a task of its own.

        Raises:
            TriremeError: the request was refused, or failed.
        """
        context = self._context
        message = await stream.recv_message()
        lease = stream.take_lease()
        delays = context.options.delays
        traced: GrpcTrace | None = None
        try:
            await delay(delays.process_s, "the Process execution")
            context.refuse_when_draining()
            decoded = context.reader.decode(message, self._describe)
            if decoded is None:
                lease = lease or context.server.lease()
                decoded = await context.reader.decode_slowly(message, self._describe, lease)
            del message
            if context.forward_pattern is not None:
                forward_metadata(stream, context.forward_pattern, decoded.request)
            if context.tracer.active:
                now_ns = context.tracer.clock.now_ns()
                traced = begin_trace(context.tracer, decoded.request.model_name, stream.metadata, now_ns)
            if traced is not None:
                decoded.request.trace = traced.trace
            reply = await context.server.submit(decoded.request, lease)
            stream.admitted()
            response = await reply.response()
            if takes_long(response, decoded):
                parts = await context.server.offload(write_infer_response, response, decoded)
            else:
                parts = write_infer_response(response, decoded)
            await delay(delays.response_completion_s, "InferResponseComplete")
            if traced is not None:
                traced.sending()
            await stream.send_message(parts)
            if traced is not None:
                traced.sent()
        finally:
            if traced is not None:
                traced.finish()
            if lease is not None and not lease.submitted:
                lease.close()

    def _describe(self, name: str, version: int) -> ModelDescription:
        """The model, if it is one that answers once."""
        model = self._context.server.describe(name, version)
        if model.config.decoupled:
            raise UnsupportedError("ModelInfer RPC doesn't support models with decoupled transaction policy")
        return model


class _Pending:
    """A call that waits for its reply."""

    __slots__ = ("_call", "_decoded", "_deferred", "_offload")

    def __init__(self, call: UnaryCall, decoded: DecodedGrpcInfer, offload: Offload) -> None:
        self._call = call
        self._decoded = decoded
        self._offload = offload
        self._deferred = False

    def answer(self, reply: Reply) -> None:
        """The reply is final."""
        call = self._call
        if call.over:
            return  # and the shared memory meant for the answer may be in use for something else
        try:
            response = reply.answer()
            if takes_long(response, self._decoded):
                self._deferred = True
                self._offload.later(partial(self._written, response), self._send)
                return
            parts = write_infer_response(response, self._decoded)
        except TriremeError as error:
            call.fail(*grpc_error(error))
            error.__traceback__ = None  # leads here, and so to the reply that holds the error: a cycle
        except Exception:  # noqa: BLE001 - this runs inside the model's scheduler: a defect must cost its own call only
            call.fail(*self._unexpected())
        else:
            call.answer(parts)

    def _written(self, response: InferenceResponse) -> list[Buffer] | tuple[Status, str]:
        """On a thread, the parts of the answer, or how the call has failed."""
        try:
            return write_infer_response(response, self._decoded)
        except TriremeError as error:
            return grpc_error(error)
        except Exception:  # noqa: BLE001 - as above
            return self._unexpected()

    def _send(self, written: list[Buffer] | tuple[Status, str]) -> None:
        call = self._call
        if call.over:
            return
        if isinstance(written, tuple):
            call.fail(*written)
        else:
            call.answer(written)

    def _unexpected(self) -> tuple[Status, str]:
        asked = self._decoded.request
        _log.exception(
            "unexpected failure while answering %s", self._call.head.path, extra=about(asked.model_name, asked.id)
        )
        return Status.UNKNOWN, "Internal Server Error"


class _TracedPending(_Pending):
    """The same, traced."""

    __slots__ = ("_traced",)

    def __init__(self, call: UnaryCall, decoded: DecodedGrpcInfer, offload: Offload, traced: GrpcTrace) -> None:
        super().__init__(call, decoded, offload)
        self._traced = traced

    def answer(self, reply: Reply) -> None:
        if not self._call.over:
            self._traced.sending()
            super().answer(reply)
            if self._deferred:
                return
            self._traced.sent()
        self._traced.finish()

    def _send(self, written: list[Buffer] | tuple[Status, str]) -> None:
        super()._send(written)
        self._traced.sent()
        self._traced.finish()
