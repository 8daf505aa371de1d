"""Logs are played at their times, in the order of their sequences, and what comes of each request is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from trireme.clients.connections import RefusedError
from trireme.clients.model_inputs import InputDescription, ModelInputs
from trireme.clients.played import UNANSWERED, PlayedLog
from trireme.clients.player import LoadClient, play
from trireme.clients.prepared import RequestPreparer
from trireme.clients.target import LoadProtocol, LoadTarget
from trireme.engine.datatypes import INT32
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.request_log import LoggedLoop, LoggedRequest, RequestTraffic

Answer = Callable[[int, dict], int]
"""What a server answers to a request, of which it gets number and parameters: a status; 0 to say nothing more."""


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[LoadTarget, list[dict]]]:
    """A server, and what it was asked, in order: parameters, and from which port of the client."""
    asked: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            length = int(self.headers["Inference-Header-Content-Length"])
            body = self.rfile.read(int(self.headers["Content-Length"]))
            parameters = json.loads(body[:length])["parameters"]
            asked.append({**parameters, "port": self.client_address[1]})
            status = answer(len(asked), parameters)
            if not status:
                self.close_connection = True
                return
            content = b"{}" if status == 200 else b'{"error":"because"}'
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: object, **_named: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with closing(server.socket):
            yield LoadTarget("127.0.0.1", server.server_address[1]), asked
    finally:
        server.shutdown()
        thread.join()


def playing(requests: list[LoggedRequest], target: LoadTarget, loop: LoggedLoop | None = None, **how) -> PlayedLog:
    model = ModelInputs((InputDescription("I", INT32, (1,)),), True)
    maker = RequestPreparer(target, lambda *_: model)
    return play(RequestTraffic(requests, loop), target, maker=maker, **how)


def test_requests_are_sent_at_their_times_and_answers_told() -> None:
    requests = [LoggedRequest(10 + 0.01 * at, "m", priority=at + 1) for at in range(20)]
    with answering(lambda number, _: 503 if number % 5 == 0 else 200) as (target, asked):
        played = playing(requests, target, connections=1)
    assert [each["priority"] for each in asked] == list(range(1, 21))
    assert np.allclose(played.scheduled_s, np.arange(20) / 100)
    assert (played.sent_s >= played.scheduled_s).all()
    assert (played.latency_s >= played.sent_s - played.scheduled_s).all()
    assert played.status.tolist() == [0, 0, 0, 0, 503] * 4
    summary = played.summary()
    assert (summary.requests, summary.answered, summary.refused, summary.unanswered) == (20, 16, 4, 0)
    assert summary.reasons == (("because", 4),)
    assert summary.seconds >= 0.19


def test_a_log_can_be_played_faster() -> None:
    requests = [LoggedRequest(100.0 * at, "m") for at in range(3)]
    with answering(lambda *_: 200) as (target, _):
        assert np.allclose(playing(requests, target, speed=10_000).scheduled_s, [0.0, 0.01, 0.02])


def test_what_cannot_be_sent_in_time_counts_from_when_it_was_due() -> None:
    """All are due at once, and there is one connection: each takes as long as those before it, too."""
    with answering(lambda *_: 200) as (target, _):
        played = playing([LoggedRequest(3.0, "m") for _ in range(10)], target, connections=1)
    assert not played.scheduled_s.any()
    assert (np.diff(played.latency_s) > 0).all()
    assert (played.latency_s[:-1] <= played.sent_s[1:]).all()


def test_sequences_are_sent_in_order_over_many_connections() -> None:
    """Also if requests are due while the one before is not answered."""
    requests = [
        LoggedRequest(0.0, "m", sequence=sequence, timeout_us=step + 1, start=step == 0, end=step == 4)
        for step in range(5)
        for sequence in (7, "b")
    ]
    lock, open_now, most = threading.Lock(), set[str](), [0]
    met = threading.Barrier(2)

    def answer(_number: int, parameters: dict) -> int:
        name = str(parameters["sequence_id"])
        with lock:
            assert name not in open_now
            open_now.add(name)
            most[0] = max(most[0], len(open_now))
        if parameters["sequence_start"]:
            met.wait(30)  # both sequences are sent side by side
        with lock:
            open_now.discard(name)
        return 200

    with answering(answer) as (target, asked):
        played = playing(requests, target)
    assert not played.status.any()
    for sequence in (7, "b"):
        steps = [each["timeout"] for each in asked if each["sequence_id"] == sequence]
        assert steps == [1, 2, 3, 4, 5]
    assert most[0] == 2


def test_a_closed_loop_has_no_more_in_flight_than_clients() -> None:
    lock, open_now, most = threading.Lock(), [0], [0]
    met = threading.Barrier(3)

    def answer(number: int, _parameters: dict) -> int:
        with lock:
            open_now[0] += 1
            most[0] = max(most[0], open_now[0])
        if number <= 3:
            met.wait(30)
        with lock:
            open_now[0] -= 1
        return 200

    requests = [LoggedRequest(5.0, "m") for _ in range(12)]
    with answering(answer) as (target, asked):
        played = playing(requests, target, LoggedLoop(3, 0.001))
    assert (len(asked), most[0]) == (12, 3)
    assert (played.scheduled_s[:3] == 0).all()
    assert (played.scheduled_s[3:] > 0).all()


def test_a_client_of_a_closed_loop_finishes_its_sequence() -> None:
    requests = [
        LoggedRequest(0.0, "m", sequence=sequence, timeout_us=step + 1, start=step == 0, end=step == 1)
        for sequence in (1, 2)
        for step in range(2)
    ]
    with answering(lambda *_: 200) as (target, asked):
        playing(requests, target, LoggedLoop(1))
    assert [(each["sequence_id"], each["timeout"]) for each in asked] == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_connection_that_breaks_costs_its_request() -> None:
    requests = [LoggedRequest(0.002 * at, "m") for at in range(6)]
    with answering(lambda number, _: 0 if number == 2 else 200) as (target, asked):
        played = playing(requests, target, connections=1)
    assert len(asked) == 6
    assert played.status.tolist() == [0, UNANSWERED, 0, 0, 0, 0]
    assert np.isnan(played.latency_s[1])
    assert played.reasons[played.reason[1]] == "the server closed the connection"


def test_answers_are_not_waited_for_for_ever() -> None:
    silent = threading.Event()

    def answer(_number: int, _parameters: dict) -> int:
        silent.wait(30)
        return 200

    with answering(answer) as (target, _):
        try:
            played = playing([LoggedRequest(0.0, "m"), LoggedRequest(0.01, "m")], target, timeout_s=0.1)
        finally:
            silent.set()
    assert played.status.tolist() == [UNANSWERED] * 2
    assert played.summary().reasons == (("not answered in time", 2),)


def test_a_client_keeps_its_connections_and_what_it_knows_from_one_log_to_the_next() -> None:
    described: list[str] = []

    def describe(_target: LoadTarget, name: str, _version: int) -> ModelInputs:
        described.append(name)
        return ModelInputs((InputDescription("I", INT32, (1,)),), True)

    traffic = RequestTraffic([LoggedRequest(0.0, "m", priority=1)] * 12, LoggedLoop(3))
    with (
        answering(lambda *_: 200) as (target, asked),
        LoadClient(target, 3, RequestPreparer(target, describe)) as known,
    ):
        played = [known.play(traffic) for _ in range(3)]
    assert [each.status.tolist() for each in played] == [[0] * 12] * 3
    assert len({each["port"] for each in asked}) <= 3
    assert described == ["m"]


def test_an_answer_that_was_given_up_is_not_taken_for_that_of_a_later_log() -> None:
    release = threading.Event()

    def answer(number: int, _parameters: dict) -> int:
        if number > 1:
            return 200
        release.wait(10)
        return 503

    model = ModelInputs((InputDescription("I", INT32, (1,)),), True)
    traffic = RequestTraffic([LoggedRequest(0.0, "m")])
    with answering(answer) as (target, _), LoadClient(target, 1, RequestPreparer(target, lambda *_: model)) as client:
        first = client.play(traffic, timeout_s=0.2)
        release.set()
        second = client.play(traffic)
    assert (first.status.tolist(), second.status.tolist()) == ([UNANSWERED], [0])


def test_what_cannot_be_played_is_said() -> None:
    target = LoadTarget("127.0.0.1", 1)
    with pytest.raises(InvalidArgumentError, match="the log has no requests"):
        playing([], target)
    with pytest.raises(InvalidArgumentError, match="connections must be at least 1"):
        playing([LoggedRequest(0.0, "m")], target, connections=0)
    with pytest.raises(RefusedError, match=r"no server answers at http://127.0.0.1:1"):
        playing([LoggedRequest(0.0, "m")], target)
    with pytest.raises(RefusedError, match=r"no server answers at grpc://127.0.0.1:1"):
        play(RequestTraffic([LoggedRequest(0.0, "m")]), LoadTarget("127.0.0.1", 1, LoadProtocol.GRPC))


@pytest.mark.parametrize(
    "url", ["ftp://h:1", "http://", "http://h:x", "http://h/path", "http://h:99999", "http://[::1"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected http://HOST:PORT or grpc://HOST:PORT"):
        LoadTarget.of(url)


def test_urls() -> None:
    assert LoadTarget.of("json://h") == LoadTarget("h", 8000, LoadProtocol.JSON)
    assert LoadTarget.of("stream://h") == LoadTarget("h", 8001, LoadProtocol.STREAM)
    assert LoadTarget.of("grpc://h") == LoadTarget("h", 8001, LoadProtocol.GRPC)
    assert LoadTarget.of("h:5", LoadProtocol.GRPC) == LoadTarget("h", 5, LoadProtocol.GRPC)
    assert str(LoadTarget.of("http://h:5/")) == "http://h:5"
