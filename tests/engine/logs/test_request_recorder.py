"""What is recorded of requests, and how much of it may wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.access.callers import Caller
from trireme.engine.config.model import ModelConfig, ModelInput
from trireme.engine.datatypes import FP32
from trireme.engine.logs.request_log import LoggedRequest, RequestTraffic, read_traffic
from trireme.engine.logs.request_recorder import GROUP_PLACES, LINE_ARRIVALS, RequestRecorder
from trireme.engine.request import InferenceRequest, RequestForm
from trireme.engine.tensor import Tensor

CONFIG = ModelConfig("m", max_batch_size=8, input=(ModelInput("FIXED", FP32, (4,)), ModelInput("FREE", FP32, (-1,))))
BEGAN_NS = 5_000_000_000


@dataclass
class Standing:
    """A clock that is moved by hand."""

    ns: int = BEGAN_NS

    def now_ns(self) -> int:
        return self.ns

    def now_s(self) -> float:
        return self.ns / 1e9

    def wall_ms(self) -> int:
        return 1_700_000_000_007


def recorder(**settings: Any) -> RequestRecorder:
    return RequestRecorder(Standing(), b"key", **settings)


def inputs(rows: int = 2, free: int = 3) -> dict[str, Tensor]:
    shapes = {"FIXED": (rows, 4), "FREE": (rows, free)}
    return {name: Tensor(name, FP32, shape, bytes(4 * shape[0] * shape[1])) for name, shape in shapes.items()}


def tell(log: RequestRecorder, at_ms: float, request: InferenceRequest, rows: int = 2, free: int = 3) -> None:
    log.arrived(request, CONFIG, inputs(rows, free), rows, BEGAN_NS + round(at_ms * 1e6))


def lines(log: RequestRecorder) -> list[str]:
    return [line.decode() for line in log.encode(log.take())]


def read(log: RequestRecorder) -> RequestTraffic:
    return read_traffic([log.head.decode(), *lines(log)])


def test_requests_of_a_form_share_a_line() -> None:
    log, form = recorder(), RequestForm()
    for at_ms in (1, 2, 3.5):
        tell(log, at_ms, InferenceRequest("m", form=form, protocol="http"))
    tell(log, 2.5, InferenceRequest("m", 3, priority=1, timeout_us=5000, form=RequestForm(), protocol="grpc"), free=7)
    assert log.head == b'{"log":"trireme-requests","format":2,"began":"2023-11-14T22:13:20.007Z"}\n'
    first, second = lines(log)
    assert first == (
        '{"offset_s":[0.001,0.002,0.0035],"model":"m","rows":2,"bytes":56,"elements":[3],"protocol":"http"}\n'
    )
    assert second == (
        '{"offset_s":0.0025,"model":"m","version":3,"rows":2,"bytes":88,"elements":[7],"priority":1,"timeout_us":5000,'
        '"protocol":"grpc"}\n'
    )
    assert lines(log) == []
    tell(log, 4, InferenceRequest("m", form=form, protocol="http"))
    assert [request.offset_s for request in read(log).requests] == [0.004]


@dataclass(frozen=True)
class Asked:
    """A request that a test makes."""

    form: int
    sequence: int | str
    start: bool
    rows: int
    protocol: str
    steps: int = field(default=0)


ASKED = st.builds(
    Asked,
    st.integers(-1, 2),
    st.sampled_from((0, 0, 7, 2**64 - 1)),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from(("http", "grpc", "")),
    st.integers(0, 3),
)


@given(st.lists(st.lists(ASKED, max_size=20), max_size=4))
def test_what_is_recorded_is_read(rounds: list[list[Asked]]) -> None:
    """Whatever shares a form or has none, over any number of takings."""
    log = recorder()
    forms: dict[tuple[Any, ...], RequestForm] = {}
    written, expected, at_ms = [log.head.decode()], [], 0
    for asked in rounds:
        for each in asked:
            at_ms += each.steps
            form = None
            if each.form >= 0:
                form = forms.setdefault((each.form, each.start, each.rows), RequestForm())
            request = InferenceRequest(
                "m", correlation_id=each.sequence, sequence_start=each.start, form=form, protocol=each.protocol
            )
            tell(log, at_ms, request, each.rows)
            expected.append(
                LoggedRequest(
                    at_ms / 1000,
                    "m",
                    rows=each.rows,
                    nbytes=28 * each.rows,
                    elements=(3,),
                    sequence=each.sequence,
                    start=each.start,
                    protocol=each.protocol,
                )
            )
        written += lines(log)

    def order(request: LoggedRequest) -> tuple[Any, ...]:
        return request.offset_s, request.rows, request.sequence, request.start, request.protocol

    assert sorted(read_traffic(written).requests, key=order) == sorted(expected, key=order)


def test_callers_are_told_by_name_and_a_form_goes_to_the_one_who_sent_it() -> None:
    log, form = recorder(), RequestForm()
    for number, caller in enumerate((Caller("ann", 1, {}, 1), Caller("bob", 2, {}, 1), None)):
        tell(log, number, InferenceRequest("m", form=form, caller=caller))
    assert [request.tenant for request in read(log).requests] == ["ann", "bob", ""]


def test_names_of_sequences_are_not_logged() -> None:
    """But one name is one sequence, in this log only."""
    log, other = recorder(), RequestRecorder(Standing(), b"other key")
    for sequence in ("ann's", "bob's", "ann's", 12):
        for each in (log, other):
            tell(each, 1, InferenceRequest("m", correlation_id=sequence))
    ann, bob, again, number = (request.sequence for request in read(log).requests)
    assert ann == again != bob
    assert number == 12
    assert len(str(ann)) == 16
    assert read(other).requests[0].sequence != ann


def test_ids_and_contents_are_not_logged() -> None:
    log = recorder()
    tell(log, 1, InferenceRequest("m", id="a-secret", parameters={"secret": "more"}, inputs=list(inputs().values())))
    assert "secret" not in "".join(lines(log))


def test_what_waits_is_bounded_and_what_is_dropped_is_counted() -> None:
    log, form = recorder(most_waiting=100), RequestForm()
    news: list[int] = []
    log.on_news = lambda: news.append(1)
    for at_ms in range(150):
        tell(log, at_ms, InferenceRequest("m", form=form))
    assert log.dropped == 50 + GROUP_PLACES
    traffic = read(log)
    assert (len(traffic.requests), traffic.dropped) == (100 - GROUP_PLACES, 50 + GROUP_PLACES)
    tell(log, 200, InferenceRequest("m", form=form))
    assert (len(read(log).requests), len(news)) == (1, 2)


def test_requests_that_are_all_different_find_less_room() -> None:
    """Each is a group of its own, which takes more memory."""
    log = recorder(most_waiting=100)
    for free in range(1, 50):
        tell(log, free, InferenceRequest("m", form=RequestForm()), free=free)
    traffic = read(log)
    assert len(traffic.requests) == 100 // (GROUP_PLACES + 1)
    assert len(traffic.requests) + traffic.dropped == 49


def test_what_could_not_be_written_is_counted() -> None:
    log = recorder()
    tell(log, 1, InferenceRequest("m"))
    log.lost(log.take())
    tell(log, 2, InferenceRequest("m"))
    traffic = read(log)
    assert ([request.offset_s for request in traffic.requests], traffic.dropped, log.dropped) == ([0.002], 1, 1)


def test_lines_are_short() -> None:
    log, form = recorder(), RequestForm()
    for at_ms in range(LINE_ARRIVALS + 1):
        tell(log, at_ms, InferenceRequest("m", form=form, correlation_id=at_ms))
    first, second = lines(log)
    assert len(first) < 20 * LINE_ARRIVALS
    assert second.startswith(f'{{"offset_s":1.024,"sequence":{LINE_ARRIVALS},"model":"m"')


def test_a_request_of_which_nothing_is_known_but_its_model() -> None:
    log = recorder()
    log.turned_away("m", 3, "queue_full")
    log.turned_away("m", -1, "budget", "grpc")
    assert read(log).requests == [LoggedRequest(0.0, "m", 3), LoggedRequest(0.0, "m", protocol="grpc")]
