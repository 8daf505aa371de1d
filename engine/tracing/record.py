"""What is noted of one traced request.

A trace has *holders*: the front end that took the request, and every job that it became, its own and those of an
ensemble's steps. Each of them notes what it does and then leaves; when the last has left, the trace is complete.

Rules:
 1. Elements stand in the order in which they were noted. Any thread may note; only the event loop enters and leaves.
 2. A trace of a step is a trace of its own, with the ensemble's as its parent; it goes with the one that the request
    began.
 3. A trace holds at most `MAX_ELEMENTS` elements, `MAX_TENSOR_BYTES` of tensors, and `MAX_CALLS` traces under it that
    models' own requests have begun; what is beyond is left out.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..datatypes import DataType
from .settings import TraceLevel

if TYPE_CHECKING:
    from ..tensor import Tensor
    from .settings import TraceSetting

MAX_ELEMENTS = 20_000
MAX_TENSOR_BYTES = 64 << 20
MAX_CALLS = 1000


class Activity(enum.StrEnum):
    """What traces tell of, other than what backends name themselves."""

    HTTP_RECV_START = "HTTP_RECV_START"
    HTTP_RECV_END = "HTTP_RECV_END"
    HTTP_SEND_START = "HTTP_SEND_START"
    HTTP_SEND_END = "HTTP_SEND_END"
    GRPC_WAITREAD_START = "GRPC_WAITREAD_START"
    GRPC_WAITREAD_END = "GRPC_WAITREAD_END"
    GRPC_SEND_START = "GRPC_SEND_START"
    GRPC_SEND_END = "GRPC_SEND_END"
    REQUEST_START = "REQUEST_START"
    QUEUE_START = "QUEUE_START"
    COMPUTE_START = "COMPUTE_START"
    COMPUTE_INPUT_END = "COMPUTE_INPUT_END"
    COMPUTE_OUTPUT_START = "COMPUTE_OUTPUT_START"
    COMPUTE_END = "COMPUTE_END"
    INFER_RESPONSE_COMPLETE = "INFER_RESPONSE_COMPLETE"
    REQUEST_END = "REQUEST_END"
    TENSOR_QUEUE_INPUT = "TENSOR_QUEUE_INPUT"
    TENSOR_BACKEND_INPUT = "TENSOR_BACKEND_INPUT"
    TENSOR_BACKEND_OUTPUT = "TENSOR_BACKEND_OUTPUT"


class Timestamp(NamedTuple):
    """Something happened at `ns` of the server's clock."""

    name: str
    ns: int


class Subject(NamedTuple):
    """From here on the request is one to this model."""

    model_name: str
    model_version: int
    request_id: str


class TensorData(NamedTuple):
    """A tensor, copied: `data` in its wire form."""

    activity: str
    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: bytes


class BatchNote(NamedTuple):
    """The batch in which the request was executed: why it was closed, as ``trireme_batch_sealed_count`` names it."""

    reason: str
    rows: int
    requests: int
    instance: str


class GenerationNote(NamedTuple):
    """What text was generated: tokens of the prompt, those of them that were in memory already, and tokens that were
    drawn; how often its texts had to make room for others."""

    prompt_tokens: int
    prefix_hit_tokens: int
    tokens: int
    preemptions: int


class RefusalNote(NamedTuple):
    """The request was refused, for a reason of ``trireme_refused_total``."""

    reason: str


Element = Timestamp | Subject | TensorData | BatchNote | GenerationNote | RefusalNote


class Identities(NamedTuple):
    """Give identities of spans that nothing else has: of 128 and 64 bits."""

    new_trace_id: Callable[[], int]
    new_span_id: Callable[[], int]


@dataclass(slots=True, eq=False, repr=False)
class Trace:
    """The trace of a request, or of a step of an ensemble.

    Args:
        on_complete: called once, with the trace that the request began, when all its holders have left.
        begun: that trace, if it is another.
        parent_id: of the trace that this one hangs under; 0 for none.
        context: the caller's span (mode opentelemetry).
        identities: for spans; None in the mode triton.

    Attributes:
        id: from 1, across the server.
        descendants: of the trace that the request began: all under it, in order.
        trace_id, span_id: of the trace's spans, and of the one that stands for the model; 0 until they are asked for.
        has_steps: it is an ensemble's, which computes nothing itself.
        refused: it has been noted why the request was refused.
        on_response: called with the time of each answer, and whether there is a response in it; set by the front end.
    """

    setting: TraceSetting
    new_id: Callable[[], int]
    on_complete: Callable[[Trace], None]
    begun: Trace | None = None
    parent_id: int = 0
    context: SpanContext | None = None
    identities: Identities | None = None
    id: int = field(init=False)
    elements: list[Element] = field(default_factory=list, init=False)
    descendants: list[Trace] = field(default_factory=list, init=False)
    nbytes: int = field(default=0, init=False)
    trace_id: int = field(default=0, init=False)
    span_id: int = field(default=0, init=False)
    has_steps: bool = field(default=False, init=False)
    refused: bool = field(default=False, init=False)
    on_response: Callable[[int, bool], None] | None = field(default=None, init=False)
    _holders: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.id = self.new_id()

    def step(self) -> Trace:
        """The trace of a step of this one, which is an ensemble's."""
        self.has_steps = True
        return self.child()

    @property
    def full(self) -> bool:
        """No more requests of models are noted."""
        return len((self.begun or self).descendants) >= MAX_CALLS

    def child(self) -> Trace:
        """The trace of a request that the model of this one makes."""
        begun = self.begun or self
        child = Trace(self.setting, self.new_id, self.on_complete, begun, self.id, identities=self.identities)
        begun.descendants.append(child)
        return child

    def headers(self) -> dict[str, str]:
        """What a model that calls others tells them, so that their spans hang under its own (W3C Trace Context);
        nothing in the mode triton."""
        if self.identities is None:
            return {}
        begun = self.begun or self
        if not begun.trace_id:
            begun.trace_id = begun.context.trace_id if begun.context else self.identities.new_trace_id()
        self.span_id = self.span_id or self.identities.new_span_id()
        headers = {"traceparent": f"00-{begun.trace_id:032x}-{self.span_id:016x}-01"}
        if begun.context and begun.context.state:
            headers["tracestate"] = ",".join(f"{key}={value}" for key, value in begun.context.state)
        return headers

    # Notes.

    def note(self, name: str, ns: int) -> None:
        """Something happened."""
        if self.setting.notes & TraceLevel.TIMESTAMPS and len(self.elements) < MAX_ELEMENTS:
            self.elements.append(Timestamp(name, ns))

    def note_subject(self, model_name: str, model_version: int, request_id: str) -> None:
        """A model has taken the request."""
        self.elements.append(Subject(model_name, model_version, request_id))

    def note_batch(self, batch: BatchNote) -> None:
        """It was executed in this batch."""
        if self.setting.notes & TraceLevel.TIMESTAMPS and len(self.elements) < MAX_ELEMENTS:
            self.elements.append(batch)

    def note_generation(self, generation: GenerationNote) -> None:
        """This has come of it; from any thread."""
        if self.setting.notes & TraceLevel.TIMESTAMPS and len(self.elements) < MAX_ELEMENTS:
            self.elements.append(generation)

    def note_refusal(self, reason: str) -> None:
        """It is refused; only the first time counts."""
        if self.setting.notes and not self.refused:
            self.refused = True
            self.elements.append(RefusalNote(reason))

    def note_tensor(self, activity: Activity, tensor: Tensor) -> None:
        """A tensor was given or made. It is copied: what it lies in may change, or go."""
        if not self.setting.notes & TraceLevel.TENSORS or len(self.elements) >= MAX_ELEMENTS:
            return
        nbytes = tensor.nbytes
        begun = self.begun or self
        if begun.nbytes + nbytes <= MAX_TENSOR_BYTES:
            begun.nbytes += nbytes
            data = bytes(tensor.buffer)
            self.elements.append(TensorData(activity, tensor.name, tensor.datatype, tensor.shape, data))

    # Holders.

    def enter(self) -> None:
        """A holder has something to note."""
        (self.begun or self)._holders += 1

    def leave(self) -> None:
        """A holder has noted everything."""
        begun = self.begun or self
        begun._holders -= 1
        assert begun._holders >= 0, "left more often than entered"
        if not begun._holders:
            begun.on_response = None
            begun.on_complete(begun)

    def __repr__(self) -> str:
        return f"<Trace {self.id}: {len(self.elements)} elements, {self._holders} holders>"


# -- The caller's span, from the headers of a request (W3C Trace Context, level 1)


_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
_MAX_MEMBERS = 32
_MAX_STATE_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class SpanContext:
    """A span of the caller's.

    Attributes:
        trace_id: 128 bits; never 0.
        span_id: 64 bits; never 0.
        flags: 8 bits; the lowest says that the caller keeps its span.
        state: ``key=value`` pairs of tracing systems, to be passed on.
    """

    trace_id: int
    span_id: int
    flags: int = 0
    state: tuple[tuple[str, str], ...] = ()


def read_context(traceparent: str | None, tracestate: str = "") -> SpanContext | None:
    """The span that ``traceparent`` names, with what ``tracestate`` says; None if it names none. A state that cannot be
    read is dropped, and the context holds without it, as the standard has it."""
    found = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or int(trace, 16) == 0 or int(span, 16) == 0:
        return None
    return SpanContext(int(trace, 16), int(span, 16), int(flags, 16), _read_state(tracestate))


def _read_state(text: str) -> tuple[tuple[str, str], ...]:
    if len(text) > _MAX_STATE_CHARACTERS:
        return ()
    members = [member.strip() for member in text.split(",") if member.strip()]
    pairs: dict[str, str] = {}
    for member in members:
        key, _, value = member.partition("=")
        if _MEMBER.fullmatch(member) is None or key in pairs:
            return ()
        pairs[key] = value
    return tuple(pairs.items()) if len(pairs) <= _MAX_MEMBERS else ()
