"""Runs handlers, and makes of every way in which they can end a status for the client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

import trio
from grpclib.const import Status
from grpclib.encoding.base import CodecBase, StatusDetailsCodecBase
from grpclib.exceptions import GRPCError, ProtocolError

from ...actors.offload import Offload
from ...engine.errors import TriremeError
from .call import UnaryCall
from .call_head import CallHead
from .delays import NO_DELAYS, GrpcDelays, delay
from .framing import INT32_MAX
from .methods import Servable, methods_of
from .statuses import grpc_error
from .stream import Peer, Stream
from .streaming import StreamingCall

log = logging.getLogger(__name__)

Guard = Callable[[CallHead], None]
"""Looks at every call when it begins; raises `GRPCError` to refuse it."""

INTERNAL_SERVER_ERROR = "Internal Server Error"


class Dispatcher:
    """The services of a front end.

    Args:
        services: see `methods.Servable`.
        codec: reads and writes messages, by the types that the services' handlers name.
        guards: asked in this order.
        compressed_paths: methods to whose responses the compression level applies.
        max_message_bytes: the largest request message, by path.
        offload: where messages are read that take long.
        delays: for tests of clients; methods of inference are those of `compressed_paths`.
        details_codec: writes the details of a `GRPCError`; without it they are not sent.

    Attributes:
        methods: every method by its path.
    """

    __slots__ = (
        "_codec",
        "_delays",
        "_details_codec",
        "_guards",
        "_inference",
        "_offload",
        "methods",
    )

    def __init__(
        self,
        services: Iterable[Servable],
        codec: CodecBase,
        *,
        guards: Sequence[Guard] = (),
        compressed_paths: Collection[str] = (),
        max_message_bytes: Callable[[str], int] = lambda _path: INT32_MAX,
        offload: Offload | None = None,
        delays: GrpcDelays = NO_DELAYS,
        details_codec: StatusDetailsCodecBase | None = None,
    ) -> None:
        self.methods = methods_of(services, compressed_paths, max_message_bytes)
        self._offload = offload or Offload()
        self._delays = delays
        self._inference = frozenset(compressed_paths)
        self._codec = codec
        self._details_codec = details_codec
        self._guards = tuple(guards)

    def __repr__(self) -> str:
        return f"<Dispatcher of {len(self.methods)} methods>"

    def refusal(self, head: CallHead) -> GRPCError | None:
        """Why a guard refuses the call, if one does."""
        try:
            for guard in self._guards:
                guard(head)
        except GRPCError as error:
            return error
        return None

    def begin(self, call: UnaryCall) -> bool:
        """Has the call taken over by its method's function. False: it needs a task."""
        begin = call.method.begin
        if begin is None:
            return False
        try:
            return begin(call)
        except GRPCError as error:
            call.fail(error.status, error.message or "")
        except TriremeError as error:
            call.fail(*grpc_error(error))
        except Exception:
            # The boundary to handlers: a defect in one costs its call, never the connection.
            log.exception("error in %s", call.method.path)
            call.fail(Status.UNKNOWN, INTERNAL_SERVER_ERROR)
        return True

    def cancel(self, on_cancel: Callable[[], None]) -> None:
        """Tells a handler that its call is over."""
        try:
            on_cancel()
        except Exception:
            # The same boundary: the caller is a connection, or the task of all deadlines.
            log.exception("error while cancelling a call")

    async def run(self, call: StreamingCall, peer: Peer) -> None:
        """Serves a call from the first message to the status."""
        try:
            with call.scope:
                await trio.lowlevel.checkpoint_if_cancelled()
                stream = Stream(call, peer, self._codec, self._details_codec, self._offload)
                status, message, details = await self._outcome(call, stream)
                if self._delays.answer_s and call.method.path not in self._inference:
                    await delay(self._delays.answer_s, "the write of the response")
                if not stream.finished:
                    stream.end(status, message, details)
            if self._delays.enqueue_s and call.scope.cancelled_caught and call.method.path in self._inference:
                await delay(self._delays.enqueue_s, "PutTaskBackToQueue")
        finally:
            call.finish()

    async def _outcome(self, call: StreamingCall, stream: Stream) -> tuple[Status, str | None, object]:
        """How the handler ended: (status, message, details)."""
        try:
            await call.method.function(stream)
            if not stream.finished and stream.lacks_message:
                raise ProtocolError("Unary response with OK status requires a single message to be sent")
        except GRPCError as error:
            return error.status, error.message, error.details
        except TriremeError as error:
            return (*grpc_error(error), None)
        except Exception:
            # The boundary to handlers, see `begin`.
            log.exception("error in %s", call.method.path)
            return Status.UNKNOWN, INTERNAL_SERVER_ERROR, None
        return Status.OK, None, None
