"""The model and the repository as actors: both are told by mail, and what breaks a model costs that one alone."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import trio

from trireme.actors.messages import Drain, Hold, LetGo, Serve
from trireme.actors.model import Model
from trireme.actors.repository import EndLoads, Repository
from trireme.actors.scheduler import Scheduler
from trireme.engine.description import ModelState
from trireme.engine.errors import NotFoundError, TriremeError, UnavailableError
from trireme.simulations.models import Profile


def repository_of(server) -> Repository:
    return server._repository


async def test_a_version_that_is_held_drains_when_it_is_let_go(autojump_clock, open_server, simulated) -> None:
    async with open_server(simulated(Profile(0.1))) as server:
        model = repository_of(server).find("m")
        model.tell(Hold())
        model.tell(Drain())
        assert (model.state, model.serving, model.held) == (ModelState.UNLOADING, True, True)
        assert not server.model_ready("m")
        model.tell(LetGo())
        await trio.testing.wait_all_tasks_blocked()
        assert (model.state, model.ended) == (ModelState.UNAVAILABLE, True)


async def test_what_is_told_in_one_turn_is_received_in_that_order(autojump_clock, open_server, simulated) -> None:
    async with open_server(simulated(Profile(0.1))) as server:
        model = repository_of(server).find("m")
        with server.turn:
            model.mailbox.send_nowait(Drain())
            model.tell(Serve())
            assert model.ready, "nothing is received before the turn ends"
        assert model.state is ModelState.UNLOADING, "one that drains does not serve again"


async def test_every_change_of_state_is_told_once_and_in_order(autojump_clock, simulated, open_server) -> None:
    told: list[str] = []
    async with open_server(simulated(Profile(0.1))) as server:
        repository = repository_of(server)
        repository._on_progress = lambda _name, _version, state: told.append(state)
        with server.turn:
            repository.find("m").mailbox.send_nowait(Drain())
            repository.find("m").mailbox.send_nowait(Drain(unloads=True))
        await trio.testing.wait_all_tasks_blocked()
    assert told == ["UNLOADING", "UNAVAILABLE"]


async def test_a_defect_of_a_model_actor_costs_that_model(
    autojump_clock, open_server, simulated, request_for, monkeypatch, caplog
) -> None:
    """Its supervisor's policy: the model is unready with the reason, what was in flight is answered, others go on."""
    async with open_server(simulated(Profile(5.0), "a"), simulated(Profile(0.1), "b")) as server:
        answers: list[str] = []

        async def ask() -> None:
            try:
                answers.append((await server.infer(request_for("a"))).model_name)
            except TriremeError as error:
                answers.append(error.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            model = repository_of(server).find("a")

            def broken(_model: Model, message: object) -> None:
                raise ZeroDivisionError(type(message).__name__)

            with caplog.at_level(logging.ERROR, "trireme.model"):
                monkeypatch.setattr(Model, "receive", broken)
                model.tell(Hold())
                monkeypatch.undo()
        assert answers == ["model 'a' died: Hold", "a"], "what was queued, and what was being executed"
        assert (model.state, model.reason) == (ModelState.UNAVAILABLE, "Internal: model 'a' died: Hold")
        with pytest.raises(NotFoundError):
            await server.infer(request_for("a"))
        assert (await server.infer(request_for("b"))).model_name == "b"
        assert server.budget_statistics().requests == 0


async def test_nothing_is_loaded_once_the_repository_was_told_to_end_loads(
    autojump_clock, open_server, simulated
) -> None:
    async with open_server(simulated(Profile(0.1))) as server:
        repository = repository_of(server)
        repository.tell(EndLoads())
        assert repository.stopping
        assert server.model_ready("m"), "what serves goes on"
        model = repository.find("m")
        with pytest.raises(UnavailableError, match="not loaded or unloaded any more"):
            await repository.replace(model.source, model.config, (1,))


async def test_one_that_dies_while_it_drains_answers_what_is_queued(
    autojump_clock, open_server, simulated, request_for, monkeypatch
) -> None:
    async with open_server(simulated(Profile(5.0))) as server:
        errors: list[str] = []

        async def ask() -> None:
            try:
                await server.infer(request_for("m"))
            except TriremeError as error:
                errors.append(error.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            model = repository_of(server).find("m")
            model.tell(Drain())
            await trio.testing.wait_all_tasks_blocked()
            with monkeypatch.context() as patched:
                patched.setattr(Model, "receive", lambda _model, _message: [].remove(0))
                model.tell(Hold())
            await trio.testing.wait_all_tasks_blocked()
            assert errors == ["model 'm' died: list.remove(x): x not in list"], "not when the first is over"


async def test_a_version_that_still_loads_is_not_told_to_serve(autojump_clock, open_server, simulated) -> None:
    source = simulated(Profile(0.1))
    async with open_server(source) as server:
        repository = repository_of(server)
        served = repository.find("m")
        find = partial(repository.find_member, "")
        version = Model(source, served.config, 2, repository._context, find, repository.continuing)
        version.state = ModelState.LOADING
        version.tell(Serve())
        assert (version.state, version.loaded) == (ModelState.LOADING, False)


async def test_a_defect_of_a_scheduler_costs_its_model(
    autojump_clock, open_server, simulated, request_for, monkeypatch
) -> None:
    async with open_server(simulated(Profile(5.0), "a"), simulated(Profile(0.1), "b")) as server:
        model = repository_of(server).find("a")
        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, "admit", lambda _scheduler, _job: [].remove(0))
            with pytest.raises(TriremeError, match="the scheduler of model 'a' died"), trio.fail_after(60):
                await server.infer(request_for("a"))
        await trio.testing.wait_all_tasks_blocked()
        reason = "Internal: the scheduler of model 'a' died: list.remove(x): x not in list"
        assert (model.state, model.reason) == (ModelState.UNAVAILABLE, reason)
        assert (await server.infer(request_for("b"))).model_name == "b"
