"""Opens calls, runs handlers, and makes of every way in which they can end a status for the client.

A call with one request message whose method is `immediate` has no task. It begins when its message is complete, in the
connection's task, and is answered from wherever its answer comes (call.py). Every other call has a task (streaming.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from ...engine.errors import TriremeError
from ..http2.events import RequestReceived
from . import blocks, call_log
from .blocks import grpc_error
from .call import DEADLINE_EXCEEDED, UnaryCall
from .call_head import CallHead
from .call_log import CallStory
from .compression import CompressionLevel
from .framing import Framed
from .host import CallHost, Method
from .options import GrpcServiceOptions, delay
from .streaming import StreamingCall

log = logging.getLogger(__name__)

INTERNAL_SERVER_ERROR = "Internal Server Error"

_UNKNOWN_METHOD = blocks.trailers_only(Status.UNIMPLEMENTED)
_TOO_LATE = blocks.trailers_only(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)


class Servable(Protocol):
    """A grpclib service. It may also have ``immediate``, a mapping of paths to functions that begin a `UnaryCall`:
    True says that the function has taken the call over, False that the method's `Handler` has to run. And it may have,
    one of them for all, ``lease``, which makes what a message takes of the server's budget, ``offload``, which does on
    a thread what takes long (`actors.offload`), ``client_accounts`` (`ClientAccounts`), and ``delays``."""

    def __mapping__(self) -> Mapping[str, Handler]: ...


def methods_of(services: Iterable[Servable], options: GrpcServiceOptions) -> dict[str, Method]:
    """Every method of the services by its path."""
    methods: dict[str, Method] = {}
    packs = options.compression_level is not CompressionLevel.NONE
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
                options.message_limit(path),
                packs and path in options.infer_paths,
            )
    return methods


class GrpcConnection(CallHost):
    """Opens the calls of one connection."""

    __slots__ = ()

    def _open(self, event: RequestReceived[CallHead]) -> None:
        head = event.head
        stream_id = event.stream_id
        refusal = head.refusal
        if refusal is not None:
            status, message, http_status = refusal
            packed = status is Status.UNIMPLEMENTED
            block = blocks.trailers_only(status, message, http_status=http_status, tell_encodings=packed)
            self.core.send_headers(stream_id, block, True)
            return
        if call_log.log.isEnabledFor(logging.DEBUG):
            self.stories[stream_id] = CallStory(head.path)
        method = self.surroundings.methods.get(head.path)
        if method is None:
            self._refuse(stream_id, _UNKNOWN_METHOD)
            return
        try:
            for guard in self.surroundings.guards:
                guard(head)
        except GRPCError as error:
            self._refuse(stream_id, blocks.trailers_only(error.status, error.message))
            return
        self._roster.requests += 1
        timeout_s = head.timeout_s
        if timeout_s is not None and timeout_s <= 0:
            self._refuse(stream_id, _TOO_LATE)
            return
        call: UnaryCall | StreamingCall
        if method.client_streaming:
            call = StreamingCall(self, stream_id, head, method)
        else:
            call = UnaryCall(self, stream_id, head, method)
        self.calls[stream_id] = call
        if timeout_s is not None:
            call.deadline_entry = self.surroundings.deadlines.add(trio.current_time() + timeout_s, call)
        if isinstance(call, StreamingCall):
            self.start(self._run, call)
        if event.end_stream:
            call.request_ended()

    def _refuse(self, stream_id: int, block: bytes) -> None:
        self.core.send_headers(stream_id, block, True)
        self.forget(stream_id, None)

    def begin(self, call: UnaryCall) -> None:
        begin = call.method.begin
        try:
            if begin is not None and begin(call):
                return
        except GRPCError as error:
            call.fail(error.status, error.message or "")
            return
        except TriremeError as error:
            call.fail(*grpc_error(error))
            return
        except Exception:
            # The boundary to handlers: a defect in one costs its call, never the connection.
            log.exception("error in %s", call.method.path)
            call.fail(Status.UNKNOWN, INTERNAL_SERVER_ERROR)
            return
        self.serve_as_task(call, Framed(False, call.message))

    def serve_as_task(self, call: UnaryCall, left: Framed | None = None) -> None:
        # What came without a lease, of a method that has nothing against none, waits for room.
        waits = left is not None and not left.compressed and call.method.begin is not None and call.lease is None
        waiting_bytes = len(call.message) if waits else 0
        try:
            self.surroundings.waiting.enter(waiting_bytes)
        except GRPCError as error:
            call.fail(error.status, error.message or "")
            return
        deadline, inbox = call.hand_over()
        served = StreamingCall(self, call.stream_id, call.head, call.method, inbox, left, deadline)
        served.waiting_bytes = waiting_bytes
        self.calls[call.stream_id] = served
        self.start(self._run, served)

    def cancel_handler(self, on_cancel: Callable[[], None]) -> None:
        try:
            on_cancel()
        except Exception:
            # The boundary to handlers, see `begin`: this is called by the task of all deadlines, too.
            log.exception("error while cancelling a call")

    # ---- calls with a task ----

    async def _run(self, call: StreamingCall) -> None:
        """Serves a call from the first message to the status."""
        delays = self.surroundings.delays
        infers = call.method.path in self.surroundings.options.infer_paths
        try:
            with call.scope:
                await trio.lowlevel.checkpoint_if_cancelled()
                status, message = await self._outcome(call)
                if delays.answer_s and not infers:
                    await delay(delays.answer_s, "the write of the response")
                call.end(status, message)
            if delays.enqueue_s and call.scope.cancelled_caught and infers:
                await delay(delays.enqueue_s, "PutTaskBackToQueue")
        finally:
            call.finish()

    async def _outcome(self, call: StreamingCall) -> tuple[Status, str | None]:
        """How the handler ended."""
        try:
            await call.method.function(call)
        except GRPCError as error:
            return error.status, error.message
        except TriremeError as error:
            return grpc_error(error)
        except Exception:
            # The boundary to handlers, see `begin`.
            log.exception("error in %s", call.method.path)
            return Status.UNKNOWN, INTERNAL_SERVER_ERROR
        return Status.OK, None
