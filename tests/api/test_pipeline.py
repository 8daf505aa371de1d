"""The one way of an inference request through a front end, with adapters that note what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, cast

import pytest
import trio

from trireme.actors import InferenceServer
from trireme.actors.budget import Lease
from trireme.actors.reply import Reply
from trireme.api.pipeline import Adapter, CallbackAnswer, Pipeline
from trireme.api.request_parameters import HeaderPattern
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import BYTES
from trireme.engine.description import ModelDescription
from trireme.engine.errors import InvalidArgumentError, TriremeError, UnavailableError
from trireme.engine.request import LATEST, InferenceRequest, InferenceResponse, Routing
from trireme.engine.tensor import Tensor
from trireme.engine.tracing import Tracer

MODEL = ModelDescription("m", 1, (1,), ModelConfig("m"), {})
ROUTE = ModelDescription("m", LATEST, (1,), ModelConfig("m"), {}, "x-user")
PATTERN: HeaderPattern = "x".__eq__


class Admitted:
    """A reply whose request its model accepts, or not."""

    def __init__(self, noted: Noted) -> None:
        self.full: TriremeError | None = None
        self._noted = noted

    async def admitted(self) -> None:
        if self.full is not None:
            raise self.full


class Noted:
    """What was done, in order; also the trace, and the server's part."""

    def __init__(self, *, active: bool = False, room: bool = True, passes_on: bool = False) -> None:
        self.steps: list[str] = []
        self.passes_on = passes_on
        self.active = active
        self.room = room
        self.submitted: list[tuple[Any, ...]] = []
        self.refused: TriremeError | None = None
        self.traced: list[TriremeError] = []
        self.reply = Admitted(self)

    def note_refusal(self, error: TriremeError) -> None:
        """The trace's part."""
        self.traced.append(error)

    # The server.

    @property
    def tracer(self) -> Any:
        return self

    def admit_nowait(self, request: Any, *, lease: Any, model: Any) -> Any:
        self.steps.append("admit now")
        self._submit(request, lease, model)
        return self.reply if self.room else None

    async def admit(self, request: Any, lease: Any, model: Any) -> Any:
        await trio.lowlevel.checkpoint()
        self.steps.append("admit")
        self._submit(request, lease, model)
        return self.reply

    def _submit(self, *given: Any) -> None:
        self.submitted.append(given)
        if self.refused is not None:
            raise self.refused

    # The trace.

    def decoded(self, request: InferenceRequest) -> None:
        self.steps.append("trace decoded")

    def sending(self) -> None:
        self.steps.append("sending")

    def sent(self) -> None:
        self.steps.append("sent")

    def finish(self) -> None:
        self.steps.append("finish")

    def forget(self) -> None:
        self.steps.append("forget")


class FakeAdapter(Adapter):
    """Says what it does.

    Args:
        slow: it cannot be decoded at once.
        broken: raised while it is decoded.
    """

    prompt: ClassVar[bool] = True

    def __init__(
        self, noted: Noted, *, slow: bool = False, broken: BaseException | None = None, model: ModelDescription = MODEL
    ) -> None:
        self._noted = noted
        self._described = model
        self._slow = slow
        self._broken = broken
        self.request: InferenceRequest | None = None
        self.model: ModelDescription | None = None
        self.lease: Lease | None = None
        self.trace: Any = None

    def received(self, tracer: Tracer) -> None:
        self._noted.steps.append("received")
        self.trace = self._noted

    def decode(self) -> bool:
        self._noted.steps.append("decode")
        if self._broken is not None:
            raise self._broken
        if not self._slow:
            self.request, self.model = InferenceRequest("m"), self._described
        return not self._slow

    async def decode_slowly(self) -> None:
        await trio.lowlevel.checkpoint()
        self._noted.steps.append("decode slowly")
        self.request, self.model = InferenceRequest("m"), self._described

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        assert pattern is PATTERN
        assert request is self.request
        self._noted.steps.append("forward")

    def header(self, name: str) -> str:
        return f"the {name}"

    @contextmanager
    def _wait(self) -> Iterator[None]:
        self._noted.steps.append("waits")
        yield
        self._noted.steps.append("waited")

    def waiting(self) -> AbstractContextManager[None]:
        return self._wait()

    def abandon(self) -> None:
        self._noted.steps.append("abandon")


class Waiting(FakeAdapter):
    """Is admitted in a task only."""

    prompt: ClassVar[bool] = False


def pipeline(noted: Noted, pattern: HeaderPattern | None = None) -> Pipeline:
    return Pipeline(cast(InferenceServer, noted), pattern)


@pytest.mark.parametrize(
    ("active", "pattern", "steps"),
    [
        (False, None, ["decode", "admit now"]),
        (False, PATTERN, ["decode", "forward", "admit now"]),
        (True, None, ["received", "decode", "trace decoded", "admit now"]),
        (True, PATTERN, ["received", "decode", "forward", "trace decoded", "admit now"]),
    ],
)
def test_the_order_is_the_same_traced_or_not(active: bool, pattern: HeaderPattern | None, steps: list[str]) -> None:
    noted = Noted(active=active)
    adapter = FakeAdapter(noted)
    assert cast(object, pipeline(noted, pattern).begin(adapter)) is noted.reply
    assert noted.steps == steps
    assert noted.submitted == [(adapter.request, None, MODEL)]


async def test_a_request_that_has_to_wait_for_room_is_decoded_once() -> None:
    noted = Noted(active=True, room=False)
    adapter = FakeAdapter(noted)
    assert cast(object, await pipeline(noted, PATTERN).admit(adapter)) is noted.reply
    begun = ["received", "decode", "forward", "trace decoded", "admit now"]
    assert noted.steps == [*begun, "waits", "admit", "waited"]
    assert [given[-1] for given in noted.submitted] == [MODEL, MODEL]


async def test_what_takes_long_to_decode_goes_the_rest_of_the_way_in_a_task() -> None:
    noted = Noted(active=True)
    assert pipeline(noted, PATTERN).begin(FakeAdapter(noted, slow=True)) is None
    assert noted.steps == ["received", "decode"]
    noted.steps.clear()
    await pipeline(noted, PATTERN).admit(FakeAdapter(noted, slow=True))
    rest = ["waits", "decode slowly", "forward", "trace decoded", "admit", "waited"]
    assert noted.steps == ["received", "decode", *rest]


async def test_who_waits_anyway_is_not_submitted_at_once() -> None:
    """So it waits for its model's share of the budget, where others are refused."""
    noted = Noted()
    await pipeline(noted).admit(Waiting(noted))
    assert noted.steps == ["decode", "waits", "admit", "waited"]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("passes_on", [False, True])
async def test_a_gateway_passes_headers_on_that_mean_something_elsewhere(slow: bool, passes_on: bool) -> None:
    """The trace context, and the header that a route is sticky by."""
    noted = Noted(passes_on=passes_on)
    plain, routed = FakeAdapter(noted, slow=slow), FakeAdapter(noted, slow=slow, model=ROUTE)
    for adapter in (plain, routed):
        await pipeline(noted).admit(adapter)
    assert plain.request is not None
    assert routed.request is not None
    context = (("traceparent", "the traceparent"), ("tracestate", "the tracestate")) if passes_on else ()
    assert plain.request.passed_on == context
    assert routed.request.passed_on == ((("x-user", "the x-user"), *context) if passes_on else ())
    assert (plain.request.routing, routed.request.routing) == (None, Routing("the x-user"))


@pytest.mark.parametrize("error", [InvalidArgumentError("bad"), ZeroDivisionError()])
def test_what_cannot_be_decoded_is_abandoned(error: Exception) -> None:
    noted = Noted(active=True)
    with pytest.raises(type(error)):
        pipeline(noted).begin(FakeAdapter(noted, broken=error))
    assert noted.steps == ["received", "decode", "abandon"]


async def test_refusals_are_raised_and_the_request_is_abandoned_once() -> None:
    for kind, steps in ((FakeAdapter, ["admit now"]), (Waiting, ["waits", "admit"])):
        noted = Noted()
        noted.refused = UnavailableError("full")
        with pytest.raises(UnavailableError, match="full"):
            await pipeline(noted).admit(kind(noted))
        assert noted.steps == ["decode", *steps, "abandon"]


async def test_a_client_that_leaves_while_its_request_waits_abandons_it(autojump_clock: trio.abc.Clock) -> None:
    noted = Noted()

    class Endless(Waiting):
        async def decode_slowly(self) -> None:
            await trio.sleep_forever()

    with trio.move_on_after(1):
        await pipeline(noted).admit(Endless(noted, slow=True))
    assert noted.steps == ["decode", "waits", "abandon"]


class FakeOffload:
    """Runs nothing before it is told to."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], None]] = []

    def later(self, function: Callable[[], Any], done: Callable[[Any], None], *, in_pieces: bool = False) -> None:
        self.pending.append(lambda: done(function()))


class Answer(CallbackAnswer[str]):
    """Notes what it sends.

    Args:
        long: its answers are encoded on a thread.
    """

    def __init__(self, noted: Noted, *, long: bool = False, traced: bool = False) -> None:
        self.decoded: Any = long
        self.offload: Any = FakeOffload()
        self.over = False
        self.reply: Any = None
        self.trace: Any = noted if traced else None
        self.send = lambda answer: noted.steps.append(f"send {answer}")
        self._noted = noted

    @staticmethod
    def encode(response: InferenceResponse, decoded: Any) -> str:
        if response.id == "unfit":
            raise InvalidArgumentError("unfit")
        if response.id == "broken":
            raise ZeroDivisionError
        return response.id

    @staticmethod
    def takes_long(response: InferenceResponse, decoded: Any) -> bool:
        return decoded

    def received(self, tracer: Tracer) -> None: ...

    def decode(self) -> bool:
        return True

    async def decode_slowly(self) -> None: ...

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None: ...

    def header(self, name: str) -> str:
        return ""

    def fail(self, error: TriremeError | None, refused: bool = False) -> None:
        self._noted.steps.append(f"fail {'defect' if error is None else error.message}")

    def log_defect(self) -> None: ...


def reply_of(name: str) -> Reply:
    """One that is final."""

    class Final:
        accepted = name != "refused"

        def answer(self) -> InferenceResponse:
            if name in ("failed", "refused"):
                raise UnavailableError(name)
            return InferenceResponse("m", 1, name, [Tensor("OUT", BYTES, (0,), b"")], {})

    return cast(Reply, Final())


ENDS = [("a", "send a"), ("failed", "fail failed"), ("unfit", "fail unfit"), ("broken", "fail defect")]


@pytest.mark.parametrize(("name", "end"), ENDS)
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("long", [False, True])
def test_every_reply_becomes_one_answer(name: str, end: str, traced: bool, long: bool) -> None:
    """Whatever goes wrong, wherever it is encoded, traced or not."""
    noted = Noted()
    answer = Answer(noted, long=long, traced=traced)
    answer.complete(reply_of(name))
    for pending in answer.offload.pending:
        assert not noted.steps
        pending()
    assert noted.steps == (["sending", end, "sent", "finish"] if traced else [end])


def test_a_request_that_its_model_does_not_accept_is_refused_and_its_trace_left() -> None:
    noted = Noted()
    Answer(noted, traced=True).complete(reply_of("refused"))
    assert noted.steps == ["finish", "fail refused"]


@pytest.mark.parametrize("long", [False, True])
def test_nothing_is_sent_to_a_client_that_has_left(long: bool) -> None:
    """What the answer would be put into may be in use for something else by then; the trace ends all the same."""
    noted = Noted()
    answer = Answer(noted, long=long, traced=True)
    if long:
        answer.complete(reply_of("a"))
    answer.cancel()
    if long:
        answer.offload.pending.pop()()
    else:
        answer.complete(reply_of("a"))
    assert noted.steps == ["finish"]
