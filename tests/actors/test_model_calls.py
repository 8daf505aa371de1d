"""What models ask of the server while they serve, without a process between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio
import trio.testing

from trireme.actors.model_calls import OnDone
from trireme.engine.backends.services import Question
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError
from trireme.engine.options import ControlMode
from trireme.simulations.models import Profile

WORK = Profile(1.0)


async def test_a_request_holds_its_share_of_the_budget_and_is_never_refused_one(
    autojump_clock, open_server, simulated, request_for
) -> None:
    heard: list[Question] = []
    async with open_server(simulated(WORK), max_inflight_requests=1) as server:
        replies = [server._calls.ask(request_for(), False, heard.append) for _ in range(2)]
        held = server.budget_statistics()
        assert (held.requests, held.bytes) == (2, 32)
        await trio.sleep(2.5)
        assert all(reply.final for reply in replies)
        held = server.budget_statistics()
        assert (held.requests, held.bytes) == (0, 0)
    assert len(heard) == 2


async def test_a_model_that_is_not_there_or_answers_several_times_is_refused(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(WORK), simulated(WORK, "many", decoupled=True)) as server:
        with pytest.raises(UnavailableError, match="Model 'gone' is not ready"):
            server._calls.ask(request_for("gone"), False, lambda _: None)
        with pytest.raises(InvalidArgumentError, match="Model many is using the decoupled"):
            server._calls.ask(request_for("many"), False, lambda _: None)
        server._calls.ask(request_for("many"), True, lambda _: None)
        assert server.budget_statistics().requests == 1


async def test_readiness_is_asked_by_name_and_version(autojump_clock, open_server, simulated) -> None:
    said: list[bool] = []
    async with open_server(simulated(WORK)) as server:
        for name, version in (("m", ""), ("m", "1"), ("m", "2"), ("gone", "")):
            server._calls.model_ready(name, version, said.append)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(InternalError, match="failed to get model version from specified version string 'new'"):
            server._calls.model_ready("m", "new", said.append)
    assert said == [True, True, False, False]


async def told(ask: Callable[[OnDone], None]) -> TriremeError | None:
    """What is said when it is done."""
    done = trio.Event()
    said: list[TriremeError | None] = []

    def on_done(error: TriremeError | None) -> None:
        said.append(error)
        done.set()

    ask(on_done)
    await done.wait()
    return said[0]


async def test_models_are_unloaded_and_loaded_and_errors_are_told(autojump_clock, open_server, simulated) -> None:
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("*",)}
    async with open_server(simulated(WORK), **options) as server:
        calls = server._calls
        assert await told(lambda on_done: calls.unload_model("m", False, on_done)) is None
        assert not server.model_ready("m")
        assert await told(lambda on_done: calls.load_model("m", {}, on_done)) is None
        assert server.model_ready("m")
        assert isinstance(await told(lambda on_done: calls.load_model("gone", {}, on_done)), TriremeError)


async def test_a_request_that_only_some_instances_wait_for_is_executed(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(WORK, count=2)) as server:
        request = request_for()
        request.callers = ((("m", 1), 1), (("other", 1), 1), (("m", 2), 2))
        assert not server._calls.ask(request, False, lambda _: None).final
        request.callers = ((("m", 1), 1), (("m", 1), 2))
        with pytest.raises(UnavailableError, match="all 2 instances of model 'm' wait"):
            server._calls.ask(request, False, lambda _: None)


async def test_an_answer_goes_out_before_it_is_counted(autojump_clock, open_server, simulated, request_for) -> None:
    async with open_server(simulated(WORK)) as server:
        counts: list[tuple[int, int]] = []

        def count(_question: object = None) -> None:
            counts.append((server.turn.number, server.statistics("m")[0].statistics.inference_count))

        server._calls.ask(request_for("m"), False, count)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(10)
        count()
    (turn, before), (_, after) = counts
    assert turn > 0
    assert (before, after) == (0, 1)


async def test_nothing_is_answered_when_the_server_has_stopped(autojump_clock, open_server, simulated) -> None:
    """A thread that the server gave up may still come to ask."""
    async with open_server(simulated(WORK)) as server:
        calls = server.services.models
    for ask in (partial(calls.load_model, "m", {}), partial(calls.unload_model, "m", False)):
        with pytest.raises(UnavailableError, match="Server not ready"):
            ask(lambda _error: None)
    ready: list[bool] = []
    calls.model_ready("m", "", ready.append)
    assert ready == [False]
