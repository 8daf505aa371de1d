"""The calls that one Python model instance makes: requests to other models, model control, metrics.

Rules:
 1. Whatever is asked is answered exactly once: by RESULT or REFUSAL, or, for a request that was accepted, by responses
    of which one is the final one.
 2. Of the responses to a request, `protocol.WINDOW` may be on their way; the model that gives them is held back until
    the asking one has taken some.
 3. A request that was made while a batch was executed is cancelled when all requests of that batch have been, for then
    no client waits for its answer. The model is told at once, and not when the request is over: it may be in the queue
    of an instance that waits for this very model.
 4. Metrics are gone when the instance is.
 5. A model may have `MOST_ASKED` questions open, beside the requests that its own side bounds, and `MOST_METRICS`
    metrics and as many families. What is more is refused. One with more requests than its side allows is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

from ..engine.backends.services import Question, Services
from ..engine.errors import CancelledError, InvalidArgumentError, TriremeError, UnavailableError
from ..engine.job import ExecutionBatch, Outcome
from ..engine.metrics.custom import MetricKind
from ..engine.request import CallingInstance, InferenceRequest, InferenceResponse
from ..engine.tracing.record import Trace
from .child import protocol
from .child.codec import MessageError, Payload
from .wire import SEQUENCE_END, SEQUENCE_START, KnownTensors, check_parameters, write_error, write_tensor

TellProcess = Callable[[tuple[Any, ...], Payload], None]
TellLarge = Callable[[tuple[Any, ...], Payload, Callable[[], None]], None]

LARGE_BYTES = 1 << 20
"""What is more is copied on a thread."""
MOST_ASKED = 1024
MOST_METRICS = 10_000
_MOST_REQUESTS = 4096
_MOST_TENSORS = 4096
_MOST_LABELS = 64
_MOST_BUCKETS = 1024
_MOST_NAME = 4096
"""Characters of a metric's name, or of one of its labels."""

_GIVEN_UP = write_error(CancelledError("All clients that this request was made for have gone."))


_TEXT, _NUMBER, _VALUE = (str,), (int,), (int, float)
_ARGUMENTS: dict[str, tuple[tuple[type, ...], ...]] = {
    "infer": ((tuple,), (bool,)),
    "load_model": (_TEXT, _TEXT, (dict,)),
    "unload_model": (_TEXT, (bool,)),
    "is_model_ready": (_TEXT, _TEXT),
    "create_family": (_TEXT, _TEXT, _TEXT),
    "delete_family": (_NUMBER,),
    "create_metric": (_NUMBER, (dict,), (tuple, type(None))),
    "delete_metric": (_NUMBER,),
    "metric_increment": (_NUMBER, _VALUE),
    "metric_set": (_NUMBER, _VALUE),
    "metric_observe": (_NUMBER, _VALUE),
    "metric_value": (_NUMBER,),
}
"""What may be asked for, and of which types the arguments are: what a process says is not trusted."""
_REQUEST = (_TEXT, _NUMBER, _TEXT, (int, str), _NUMBER, _NUMBER, (dict,), (tuple,), (int, type(None)), (tuple,))
"""A request's; see `child.wire.write_request`."""
_TRACE = 8


@dataclass(eq=False)
class Calls:
    """The calls of one instance. `tell_large` is `tell` where that takes long, and calls back when it has been sent;
    `trace_of` tells what is noted of the request with a key, if it is open and traced."""

    services: Services
    tell: TellProcess
    tell_large: TellLarge
    trace_of: Callable[[int], Trace | None]

    def __post_init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self._known = KnownTensors()
        self._families: dict[int, None] = {}
        self._metrics: dict[int, int] = {}  # of which family
        self._questions = 0
        self._closed = False
        metrics = self.services.custom_metrics
        self._at_once: dict[str, Callable[..., Any]] = {
            "create_family": self._create_family,
            "delete_family": self._delete_family,
            "create_metric": self._create_metric,
            "delete_metric": self._delete_metric,
            "metric_increment": metrics.increment,
            "metric_set": metrics.set,
            "metric_observe": metrics.observe,
            "metric_value": metrics.value,
        }

    def call(
        self,
        payload: memoryview,
        batch: ExecutionBatch | None,
        callers: tuple[CallingInstance, ...],
        number: int,
        method: str,
        arguments: tuple[Any, ...],
    ) -> None:
        """The model asks for something, for `callers`, while `batch` is executed, if one is. KeyError if there is no
        such call, MessageError if its arguments are of other types."""
        _check(method, arguments, _ARGUMENTS[method])
        if number.__class__ is not int or len(self._asked) > _MOST_REQUESTS:
            raise MessageError(f"{len(self._asked)} requests are open")
        try:
            if method == "infer":
                self._ask(payload, batch, callers, number, *arguments)
            elif method == "load_model":
                self._question(partial(self._load_model, payload, number, *arguments))
            elif method == "unload_model":
                name, dependents = arguments
                self._question(
                    partial(self.services.models.unload_model, name, dependents, partial(self._done, number))
                )
            elif method == "is_model_ready":
                name, version = arguments
                self._question(partial(self.services.models.model_ready, name, version, partial(self._ready, number)))
            else:
                self._answer(number, self._at_once[method](*arguments))
        except TriremeError as error:
            self._refuse(number, error)

    def cancel(self, number: int) -> None:
        """The model does not want the responses any more."""
        asked = self._asked.get(number)
        if asked is not None:
            asked.question.cancel()

    def taken(self, number: int, count: int) -> None:
        """The model has taken responses, so that others may come."""
        asked = self._asked.get(number)
        if asked is not None:
            asked.room += count
            self._pass_on(number, asked.question)

    def cancel_made_for(self, batch: ExecutionBatch) -> None:
        """Rule 3."""
        for number, asked in list(self._asked.items()):
            if asked.batch is batch:
                del self._asked[number]
                asked.question.cancel()
                self.tell((protocol.CALL_RESPONSE, number, True, _GIVEN_UP), Payload())

    def close(self) -> None:
        """The process is gone."""
        self._closed = True
        for asked in list(self._asked.values()):
            asked.question.cancel()
        self._asked.clear()
        for family in self._families:
            self.services.custom_metrics.delete_family(family)
        self._families.clear()

    def _ask(
        self,
        payload: memoryview,
        batch: ExecutionBatch | None,
        callers: tuple[CallingInstance, ...],
        number: int,
        wire: tuple[Any, ...],
        many: bool,
    ) -> None:
        request = _read_request(wire, payload, callers, self._known)
        key = wire[_TRACE]
        trace = None if key is None else self.trace_of(key)
        if trace is not None and not trace.full:
            request.trace = trace.child()
        question = self.services.models.ask(request, many, partial(self._pass_on, number))
        self._asked[number] = _Asked(question, batch)

    def _pass_on(self, number: int, question: Question) -> None:
        """Send what a model has answered (rule 2)."""
        asked = self._asked.get(number)
        if asked is None:
            question.take()  # the answer is not needed any more
            return
        if asked.room > 0 and not asked.answers:
            asked.answers.extend(question.take())
            self._send_answers(number, asked)

    def _send_answers(self, number: int, asked: _Asked) -> None:
        """Send them in order; while a large one is copied, the others wait."""
        while asked.answers:
            outcome, final = asked.answers[0]
            payload = Payload()
            wire = None
            if isinstance(outcome, TriremeError):
                wire = write_error(outcome)
            elif outcome is not None:
                wire = _write_response(outcome, payload)
            head = (protocol.CALL_RESPONSE, number, final, wire)
            if payload.nbytes > LARGE_BYTES:
                self.tell_large(head, payload, partial(self._sent, number, asked))
                return
            self.tell(head, payload)
            self._check_off(number, asked)

    def _sent(self, number: int, asked: _Asked) -> None:
        if self._asked.get(number) is asked:
            self._check_off(number, asked)
            self._send_answers(number, asked)
            self._pass_on(number, asked.question)

    def _check_off(self, number: int, asked: _Asked) -> None:
        _, final = asked.answers.pop(0)
        asked.room -= 1
        if final:
            self._asked.pop(number, None)

    def _load_model(
        self, payload: memoryview, number: int, name: str, config: str, files: dict[str, tuple[int, int]]
    ) -> None:
        parameters: dict[str, str | memoryview] = {"config": config} if config else {}
        for path, (at, size) in files.items():
            _check("load_model", (path, at, size), (_TEXT, _NUMBER, _NUMBER))
            parameters[path] = payload[at : at + size]
        self.services.models.load_model(name, parameters, partial(self._done, number))

    def _question(self, ask: Callable[[], None]) -> None:
        """Ask what takes time, within rule 5. TriremeError if too many are open, or it is refused."""
        if self._questions >= MOST_ASKED:
            raise UnavailableError(f"{MOST_ASKED} questions of this model are open, and no more can be")
        self._questions += 1
        try:
            ask()
        except TriremeError:
            self._questions -= 1
            raise

    def _ready(self, number: int, ready: bool) -> None:
        self._questions -= 1
        self._answer(number, ready)

    def _done(self, number: int, error: TriremeError | None) -> None:
        self._questions -= 1
        if error is None:
            self._answer(number, None)
        elif not self._closed:
            self._refuse(number, error)

    def _answer(self, number: int, result: Any) -> None:
        if not self._closed:
            self.tell((protocol.RESULT, number, result), Payload())

    def _refuse(self, number: int, error: TriremeError) -> None:
        self.tell((protocol.REFUSAL, number, error.message), Payload())

    def _create_family(self, name: str, description: str, kind: str) -> int:
        try:
            wanted = MetricKind(kind)
        except ValueError:
            raise InvalidArgumentError(f"a metric cannot be of kind '{kind}'") from None
        self._check_metric(len(self._families), name, description)
        family = self.services.custom_metrics.create_family(name, description, wanted)
        self._families[family] = None
        return family

    def _create_metric(self, family: int, labels: dict[str, str], buckets: tuple[float, ...] | None) -> int:
        self._check_metric(len(self._metrics), *labels, *labels.values())
        if len(labels) > _MOST_LABELS or len(buckets or ()) > _MOST_BUCKETS:
            raise InvalidArgumentError(f"a metric has at most {_MOST_LABELS} labels and {_MOST_BUCKETS} buckets")
        metric = self.services.custom_metrics.create_metric(family, labels, buckets)
        self._metrics[metric] = family
        return metric

    def _delete_metric(self, metric: int) -> None:
        self.services.custom_metrics.delete_metric(metric)
        self._metrics.pop(metric, None)

    def _check_metric(self, count: int, *texts: str) -> None:
        """Rule 5. InvalidArgumentError for too many, or a text that is too long; MessageError for a text that is
        none."""
        if not all(text.__class__ is str for text in texts):
            raise MessageError("a metric whose labels are no texts")
        if count >= MOST_METRICS:
            raise InvalidArgumentError(f"an instance may have {MOST_METRICS} metrics, and has them")
        if any(len(text) > _MOST_NAME for text in texts):
            raise InvalidArgumentError(f"names and labels of metrics have at most {_MOST_NAME} characters")

    def _delete_family(self, family: int) -> None:
        self.services.custom_metrics.delete_family(family)
        self._families.pop(family, None)
        self._metrics = {metric: of for metric, of in self._metrics.items() if of != family}


@dataclass(slots=True, eq=False)
class _Asked:
    """A request that the model has made while a batch was executed: responses that may be sent before it has taken
    some, and those that were taken and have not been sent."""

    question: Question
    batch: ExecutionBatch | None
    room: int = protocol.WINDOW
    answers: list[tuple[Outcome, bool]] = field(default_factory=list)


def _check(what: str, values: tuple[Any, ...], types: tuple[tuple[type, ...], ...]) -> None:
    if len(values) != len(types) or not all(map(isinstance, values, types)):
        found = ", ".join(type(value).__name__ for value in values)
        raise MessageError(f"'{what}' with arguments of the types {found}")


def _read_request(
    wire: tuple[Any, ...], payload: memoryview, callers: tuple[CallingInstance, ...], known: KnownTensors
) -> InferenceRequest:
    _check("infer", wire, _REQUEST)
    name, version, request_id, correlation_id, flags, timeout_us, parameters, wanted, _trace, tensors = wire
    if len(tensors) > _MOST_TENSORS or len(wanted) > _MOST_TENSORS or not all(isinstance(each, str) for each in wanted):
        raise MessageError(f"a request with {len(tensors)} inputs and {len(wanted)} names of outputs")
    if parameters:
        check_parameters(parameters)
    return InferenceRequest(
        name,
        version,
        request_id,
        list(map(known.read, repeat(payload), tensors)),
        tuple(wanted),
        parameters,
        timeout_us=timeout_us,
        correlation_id=correlation_id,
        sequence_start=bool(flags & SEQUENCE_START),
        sequence_end=bool(flags & SEQUENCE_END),
        callers=callers,
    )


def _write_response(response: InferenceResponse, payload: Payload) -> tuple[Any, ...]:
    return None, response.parameters, tuple([write_tensor(tensor, payload) for tensor in response.outputs])
