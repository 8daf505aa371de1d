"""The request log of a server: who stands in it, what came of them, and the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio
import trio.testing
from ensembles import ensemble, step

from trireme.actors.request_log import RequestLog, RequestLogSettings
from trireme.engine.clock import SystemClock
from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.errors import NotFoundError, UnavailableError
from trireme.engine.logs.request_log import LoggedRequest, LoggedResult, read_traffic
from trireme.engine.logs.request_recorder import RequestRecorder
from trireme.simulations.clock import VirtualClock
from trireme.simulations.models import Profile, SimulatedModel

WORK = Profile(1.0)


def read(recorder: RequestRecorder) -> list[LoggedRequest]:
    lines = [line.decode() for line in recorder.encode(recorder.take())]
    return list(read_traffic(lines).requests)


async def test_only_what_clients_ask_is_logged(autojump_clock, open_server, simulated, request_for) -> None:
    """Not the steps of an ensemble, nor what models ask."""
    recorder = RequestRecorder(VirtualClock(), b"")
    steps = [step("m", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})]
    config = ensemble(steps, ["INPUT0 FP32 4"], ["OUTPUT0 FP32 4"], max_batch_size=8)
    models = [simulated(WORK), SimulatedModel(config, WORK)]
    async with open_server(*models, request_log=recorder) as server:
        await trio.sleep(0.5)
        await server.infer(request_for("e", protocol="grpc"))
        server._calls.ask(request_for(), False, lambda _question: None)
        await server.infer(request_for(rows=3, priority=0, timeout_us=7))
    first, second = read(recorder)
    assert (first.model, first.offset_s, first.ensemble, first.protocol) == ("e", 0.5, True, "grpc")
    assert (second.model, second.rows, second.timeout_us, second.ensemble) == ("m", 3, 7, False)
    assert second.nbytes == 3 * request_for().inputs[0].nbytes


async def test_refusals_for_lack_of_room_are_arrivals(autojump_clock, open_server, simulated, request_for) -> None:
    """Those for other reasons are not: they are no load that a server could be made for."""
    recorder = RequestRecorder(VirtualClock(), b"")
    queue = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))
    async with open_server(simulated(WORK, batching=queue), request_log=recorder) as server:
        replies = [server.admit_nowait(request_for()) for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UnavailableError):
            server.check_room("m")
        assert server.admit_nowait(request_for()) is not None  # refused by the queue
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UnavailableError):
            server.admit_nowait(request_for())  # before anything is made of it
        for reply in replies:
            assert reply is not None
            await reply.response()
        with pytest.raises(NotFoundError):
            await server.infer(request_for("gone"))
    logged = read(recorder)
    assert sorted(request.nbytes > 0 for request in logged) == [False, True, True, True, True]


async def test_a_model_that_has_its_share_of_the_budget_in_flight(
    autojump_clock, open_server, simulated, request_for
) -> None:
    recorder = RequestRecorder(VirtualClock(), b"", results=True)
    async with open_server(simulated(WORK), request_log=recorder, max_inflight_requests=1) as server:
        first = server.admit_nowait(request_for())
        with pytest.raises(UnavailableError):
            server.admit_nowait(request_for(protocol="http"))
        (logged,) = read(recorder)
        assert (logged.protocol, logged.rows, logged.result) == ("http", 1, LoggedResult(0.0, outcome="model_share"))
        assert first is not None
        await first.response()
    assert read(recorder)[0].result is not None


async def test_results_are_logged_with_their_times(autojump_clock, open_server, simulated, request_for) -> None:
    recorder = RequestRecorder(VirtualClock(), b"", results=True)
    policy = QueuePolicy(max_queue_size=1)
    async with open_server(
        simulated(WORK, batching=DynamicBatching(default_queue_policy=policy)), request_log=recorder
    ) as server:
        first = await server.admit(request_for(rows=2))
        await trio.sleep(0.25)
        waiting = await server.admit(request_for())
        refused = await server.admit(request_for())
        await first.response()
        await waiting.response()
        assert refused.final
    done, *others = read(recorder)
    assert (done.offset_s, done.rows) == (0.0, 2)
    assert done.result == LoggedResult(1e6, 0.0, 125_000.0, 625_000.0, 250_000.0, 2, "m_0")
    results = {each.result.outcome: each.result for each in others if each.result is not None}
    assert sorted(results) == ["", "queue_full"]
    assert (results[""].total_us, results[""].queue_us, results[""].batch) == (1_750_000.0, 750_000.0, 1)
    assert results["queue_full"].total_us == 0.0


async def test_all_that_is_recorded_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("of another day\n")
    log = RequestLog(RequestLogSettings(path), SystemClock(), b"")
    log.begin()
    assert (tmp_path / "log.1").read_text() == "of another day\n"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        log.recorder.turned_away("one", -1, "")
        with trio.fail_after(30):
            while path.read_bytes().count(b"\n") < 2:
                await trio.lowlevel.checkpoint()
            log.recorder.turned_away("two", -1, "")
            await log.close(30)
    head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert head["format"] == 2
    assert [line["model"] for line in lines] == ["one", "two"]


async def test_files_are_rotated(tmp_path: Path) -> None:
    """And each can be read by itself."""
    path = tmp_path / "log"
    log = RequestLog(RequestLogSettings(path, file_bytes=200, files=2), SystemClock(), b"")
    log.begin()
    for number in range(5):
        log.recorder.turned_away(f"model {number}" * 9, -1, "")
        await log._write()
    for name in ("log", "log.1", "log.2"):
        with (tmp_path / name).open() as lines:
            assert len(read_traffic(lines).requests) == 1
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1", "log.2"]


async def test_a_disk_that_is_full_is_told_of_once_and_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog(RequestLogSettings(Path("/dev/full")), SystemClock(), b"")
    log.begin()
    for _ in range(2):
        log.recorder.turned_away("m", -1, "")
        await log._write()
    assert log.recorder.dropped == 2
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "cannot write the request log '/dev/full': No space left on device"
    assert len([text for text in messages if "cannot write" in text]) == 1
