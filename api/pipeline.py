"""The way of an inference request through a front end: decode → forward → trace → admit, then encode → send.

It is the same for every protocol, traced or not, with forwarded headers or not, in a task or without one. What differs
is in the protocol's adapter: one object for each request (`Adapter`), which knows how to read it, where its headers and
its trace are, and how to answer it.

Rules:
 1. Order: the trace hears that the request has come; it is decoded; headers become parameters; the trace hears what it
    asks for; it is admitted.
 2. The model is looked up once, while the request is decoded, and what was found goes with the request to `admit`.
 3. `begin` does not wait for anything. If it would have to, for a thread or for room, that is left to the adapter's
    owner: it calls `go_on` in a task; or it drops the adapter, has its trace forgotten, and offers the request again.
 4. A model that is loaded on demand is waited for when the request has been found to be for it: by `go_on`, too, or
    before, with `find_model`, while the request's body has not come. It may have left again by the time the request
    is admitted; then that is said again.
 5. A request that does not get as far as a reply is abandoned: its trace is left, its lease closed. Refusals are
    raised; who called words them, in the manner of its protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from ..actors.budget import Lease
from ..actors.facade import Facade
from ..actors.offload import Offload
from ..actors.reply import Reply
from ..engine.access.callers import Caller
from ..engine.admission.large_requests import LARGE_BYTES
from ..engine.datatypes import BYTES
from ..engine.description import ModelDescription
from ..engine.errors import ColdModelError, TriremeError
from ..engine.request import InferenceRequest, InferenceResponse, Routing
from ..engine.tensor import Tensor
from ..engine.tracing import Tracer
from ..engine.tracing.record import Trace, read_context
from .request_parameters import HeaderPattern

T = TypeVar("T")

_TRACE_PARENT, _TRACE_STATE = "traceparent", "tracestate"


class RequestTrace(ABC):
    """What a front end notes of a request that may be traced. A request that is not, in the end, costs nothing more.

    Attributes:
        trace: None while the request is not to be traced.
    """

    __slots__ = ("_came_ns", "_name", "_tracer", "trace")

    def __init__(self, tracer: Tracer) -> None:
        self.trace: Trace | None = None
        self._came_ns = tracer.clock.now_ns()
        self._name: str | None = None
        self._tracer = tracer

    def _begin(self, name: str, header: Callable[[str], str]) -> Trace | None:
        """The request is for this model, and may be traced; `header` gives the value of one, or an empty string."""
        tracer = self._tracer
        context = read_context(header(_TRACE_PARENT), header(_TRACE_STATE)) if tracer.takes_contexts else None
        self._name = name
        trace = self.trace = tracer.begin(name, context)
        if trace is not None:
            trace.on_response = self._responded
        return trace

    @abstractmethod
    def _responded(self, ns: int, has_response: bool) -> None:
        """See `Trace.on_response`."""

    @abstractmethod
    def decoded(self, request: InferenceRequest) -> None:
        """The request has been read; sets its `trace`."""

    @abstractmethod
    def sending(self) -> None:
        """A response is about to be sent."""

    @abstractmethod
    def sent(self) -> None:
        """It has been."""

    def note_refusal(self, error: TriremeError) -> None:
        """The request is refused before its model has heard of it."""
        if self.trace is not None and error.refusal_reason is not None:
            self.trace.note_refusal(error.refusal_reason.value)

    def forget(self) -> None:
        """The request was not admitted, and will come again: as if it had not come."""
        if self._name is not None:
            self._tracer.forget(self._name, self.trace)
            self.trace = None

    def finish(self) -> None:
        """Nothing more is sent, or the request was refused. Only the first time counts."""
        trace, self.trace = self.trace, None
        if trace is not None:
            trace.leave()


class Adapter(ABC):
    """One request, as its protocol has it.

    Attributes:
        protocol: see `InferenceRequest.protocol`.
        prompt: `begin` admits it, so that it is refused if its model has too much in flight. Otherwise `go_on` does,
            which then waits.
        request: None until it has been decoded.
        model: what was found of its model.
        lease: what it holds of the server-wide budget.
        trace: None while no request could be traced.
        is_cold: it could not be decoded because its model is not in memory.
        caller: who asks; None if there are no access rules. It has the right to.
    """

    __slots__ = ()
    protocol: ClassVar[str] = "http"
    prompt: ClassVar[bool] = False
    request: InferenceRequest | None = None
    model: ModelDescription | None = None
    lease: Lease | None = None
    trace: RequestTrace | None = None
    caller: Caller | None = None
    is_cold: bool = False

    @abstractmethod
    def received(self, tracer: Tracer) -> None:
        """The request has come, while requests can be traced: set `trace`."""

    @abstractmethod
    def decode(self) -> bool:
        """Set `request` and `model`. False: that may take long, and is for `decode_slowly`.

        Raises:
            TriremeError: it is no request, or for no such model.
        """

    def own_timeout_us(self) -> int:
        """How long the request may wait, as far as that can be told before its model is known; microseconds, 0 for no
        limit."""
        return 0

    @abstractmethod
    async def decode_slowly(self) -> None:
        """Set `request` and `model`, and `lease`, if that has become one.

        Raises:
            TriremeError: see `decode`.
        """

    @abstractmethod
    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        """Make parameters of the headers whose names the pattern is found in.

        Raises:
            InvalidArgumentError: such a header has a name that means something to the server.
        """

    @abstractmethod
    def header(self, name: str) -> str:
        """The value of a header, or of metadata, of this name in lower case; empty if there is none."""

    def trace_context(self) -> tuple[tuple[str, str], ...]:
        """The headers of the trace that it belongs to (W3C); nothing if it belongs to none."""
        parent = self.header(_TRACE_PARENT)
        if not parent:
            return ()
        state = self.header(_TRACE_STATE)
        return ((_TRACE_PARENT, parent), (_TRACE_STATE, state)) if state else ((_TRACE_PARENT, parent),)

    def waiting(self) -> AbstractContextManager[None]:
        """While the request waits for room or for a thread, inside the block."""
        return nullcontext()

    def abandon(self) -> None:
        """The request is refused, or its client is gone."""
        if self.trace is not None:
            self.trace.finish()


class Pipeline:
    """Takes requests from adapters to the server.

    Args:
        pattern: of the headers that become parameters; None for none.
    """

    __slots__ = ("_passes_on", "_pattern", "_server", "_tracer")

    def __init__(self, server: Facade, pattern: HeaderPattern | None) -> None:
        self._server = server
        self._pattern = pattern
        self._passes_on = server.passes_on
        self._tracer = server.tracer

    def begin(self, adapter: Adapter) -> Reply | None:
        """Decode and admit a request, as far as that goes without waiting.

        Returns:
            None if it has to wait: see rule 3.

        Raises:
            TriremeError: the request is refused.
        """
        try:
            if self._tracer.active:
                adapter.received(self._tracer)
            if not adapter.decode():
                return None
            request = adapter.request
            assert request is not None, "it has been decoded"
            request.protocol = adapter.protocol
            if adapter.caller is not None:
                request.caller = adapter.caller
            if self._pattern is not None or adapter.trace is not None:
                self._complete(adapter, request)
            if self._passes_on or (adapter.model is not None and adapter.model.key_header):
                self._take_headers(adapter, request)
            if not adapter.prompt:
                return None
            return self._server.admit_nowait(request, lease=adapter.lease, model=adapter.model)
        except ColdModelError:
            adapter.is_cold = True
            return None
        except BaseException as error:
            _note_refusal(adapter, error)
            adapter.abandon()
            raise

    async def go_on(self, adapter: Adapter) -> Reply:
        """The rest of the way for a request that `begin` gave no reply to. Waits for a thread, and for room.

        Raises:
            TriremeError: the request is refused.
        """
        try:
            with adapter.waiting():
                request = adapter.request
                if request is None:
                    request = await self._decode(adapter)
                    request.caller = adapter.caller
                    request.protocol = adapter.protocol
                    self._complete(adapter, request)
                    self._take_headers(adapter, request)
                reply = await self._server.admit(request, adapter.lease, adapter.model)
        except BaseException as error:
            _note_refusal(adapter, error)
            adapter.abandon()
            raise
        return reply

    async def _decode(self, adapter: Adapter) -> InferenceRequest:
        """Read a request, when its model is in memory."""
        while True:
            try:
                if not (adapter.is_cold and adapter.decode()):
                    await adapter.decode_slowly()
            except ColdModelError as cold:
                adapter.is_cold = True
                await self._server.management.want(cold.name, adapter.own_timeout_us())
            else:
                assert adapter.request is not None, "it has been decoded"
                return adapter.request

    async def admit(self, adapter: Adapter) -> Reply:
        """The whole way, waiting where need be, until the model has accepted the request.

        Raises:
            TriremeError: the request is refused.
        """
        reply = self.begin(adapter) or await self.go_on(adapter)
        accepted = False
        try:
            await reply.admitted()
            accepted = True
        finally:
            if not accepted:
                adapter.abandon()
        return reply

    def _complete(self, adapter: Adapter, request: InferenceRequest) -> None:
        """What comes between a request's decoding and its submission."""
        if self._pattern is not None:
            adapter.forward(self._pattern, request)
        if adapter.trace is not None:
            adapter.trace.decoded(request)

    def _take_headers(self, adapter: Adapter, request: InferenceRequest) -> None:
        """Those that mean something to a route, or to the server that executes the request."""
        if self._passes_on:
            request.passed_on = adapter.trace_context()
        key_header = "" if adapter.model is None else adapter.model.key_header
        if key_header:
            key = adapter.header(key_header)
            request.routing = Routing(key)
            if key and self._passes_on:
                request.passed_on = ((key_header, key), *request.passed_on)


def _note_refusal(adapter: Adapter, error: BaseException) -> None:
    """In the request's trace, if it has one."""
    if adapter.trace is not None and isinstance(error, TriremeError):
        adapter.trace.note_refusal(error)


async def find_model(server: Facade, name: str, version: int, timeout_us: int = 0) -> ModelDescription:
    """What `describe` says of a model, which is waited for if it is loaded on demand.

    Args:
        timeout_us: how long at most, microseconds; 0 for no limit.

    Raises:
        TriremeError: there is none, or it cannot be loaded.
    """
    while True:
        try:
            return server.describe(name, version)
        except ColdModelError as cold:
            await server.management.want(cold.name, timeout_us)


def is_cold(server: Facade, name: str, version: int) -> bool:
    """Whether `find_model` would wait."""
    try:
        server.describe(name, version)
    except ColdModelError:
        return True
    except TriremeError:
        pass
    return False


# ---- which outputs take long to be put into an answer, and so are put there on a thread ----

MANY_ELEMENTS = 8_192
"""So many elements are written, sorted or packed one by one on the event loop, in some two milliseconds."""


def element_by_element(tensor: Tensor) -> bool:
    """Whether an output takes long that is written as JSON, or classified."""
    if tensor.datatype is not BYTES:
        return tensor.nbytes > MANY_ELEMENTS and tensor.element_count > MANY_ELEMENTS
    if tensor.element_count > MANY_ELEMENTS:
        return True
    nbytes = sum(map(len, tensor.array.flat)) if tensor.has_array else tensor.nbytes
    return nbytes > LARGE_BYTES


def as_bytes(tensor: Tensor, copied: bool) -> bool:
    """Whether an output takes long of which the bytes are wanted.

    Args:
        copied: they are copied, instead of being sent from where they lie.
    """
    if tensor.datatype is BYTES and tensor.has_array:
        return tensor.element_count > MANY_ELEMENTS
    return copied and tensor.nbytes > LARGE_BYTES


def may_take_long(tensors: Sequence[Tensor]) -> bool:
    """Whether outputs are worth a closer look; asked of every answer."""
    for tensor in tensors:  # noqa: SIM110 - a generator costs more than what it asks
        if tensor.datatype is BYTES or tensor.nbytes > MANY_ELEMENTS:
            return True
    return False


class Encoder(Adapter, Generic[T]):
    """The end of the way: what an adapter whose request gets one answer makes of it.

    `encode` and `takes_long` are static methods since a small request would notice one more call.

    Attributes:
        decoded: the request, for the forms in which it wants its outputs.
        in_pieces: a large answer is made in pieces (`Offload.in_pieces`).
    """

    __slots__ = ()
    decoded: Any
    in_pieces: ClassVar[bool] = False
    offload: Offload

    @staticmethod
    @abstractmethod
    def encode(response: InferenceResponse, decoded: Any) -> Any:
        """The answer.

        Raises:
            TriremeError: the response cannot be given in the form asked for.
        """

    @staticmethod
    @abstractmethod
    def takes_long(response: InferenceResponse, decoded: Any) -> bool:
        """Whether to make it on a thread; asked only if it `may_take_long`."""

    async def encoded(self, response: InferenceResponse) -> T:
        """The answer; made on a thread if that takes long.

        Raises:
            TriremeError: the response cannot be given in the form asked for.
        """
        if may_take_long(response.outputs) and self.takes_long(response, self.decoded):
            offload = self.offload.in_pieces if self.in_pieces else self.offload
            return await offload(self.encode, response, self.decoded)
        return self.encode(response, self.decoded)


class CallbackAnswer(Encoder[T]):
    """The same without a task: encode and send when the reply calls back.

    Attributes:
        over: the answer is not needed any more.
        reply: of the request, once it has been admitted.
        send: sends an answer, from wherever it comes; must not raise.
    """

    __slots__ = ()
    over: bool
    reply: Reply | None
    send: Callable[[T], None]

    @abstractmethod
    def fail(self, error: TriremeError | None, refused: bool = False) -> None:
        """Send what says that the request has failed; must not raise.

        Args:
            error: None for a defect.
            refused: the model has not accepted it.
        """

    @abstractmethod
    def log_defect(self) -> None:
        """Log the exception in flight, for which the answer could not be made."""

    def cancel(self) -> None:
        """The client does not want the answer any more."""
        self.over = True
        if self.reply is not None:
            self.reply.cancel()

    def complete(self, reply: Reply) -> None:
        """The reply is final (`Reply.notify`)."""
        if self.over:  # and the shared memory meant for the answer may be in use for something else
            self.abandon()
            return
        try:
            response = reply.answer()
            if may_take_long(response.outputs) and self.takes_long(response, self.decoded):
                self.offload.later(partial(self._encode, response), self._end, in_pieces=self.in_pieces)
                return
            answer = self.encode(response, self.decoded)
        except TriremeError as error:
            error.__traceback__ = None  # leads here, and so to the reply that holds the error: a cycle
            if not reply.accepted:
                self.abandon()
                self.fail(error, refused=True)
                return
            end = partial(self.fail, error)
        except Exception:  # noqa: BLE001 - a defect must cost its own request
            self.log_defect()
            end = partial(self.fail, None)
        else:
            if self.trace is None:
                self.send(answer)
                return
            end = partial(self.send, answer)
        self._end(end)

    def _encode(self, response: InferenceResponse) -> Callable[[], None]:
        """On a thread, how to end the request: whatever goes wrong is an answer, too."""
        try:
            return partial(self.send, self.encode(response, self.decoded))
        except TriremeError as error:
            error.__traceback__ = None
            return partial(self.fail, error)
        except Exception:  # noqa: BLE001 - as above
            self.log_defect()
            return partial(self.fail, None)

    def _end(self, end: Callable[[], None]) -> None:
        """The answer is ready, or it is known how the request has failed."""
        trace = self.trace
        if self.over:
            self.abandon()
        elif trace is None:
            end()
        else:
            trace.sending()
            end()
            trace.sent()
            trace.finish()
