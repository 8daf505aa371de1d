"""Models on demand (`actors.residents`), in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
from ensembles import ensemble, step

from trireme.actors import InferenceServer, StartupError
from trireme.engine.description import ModelState
from trireme.engine.errors import ColdModelError, NotFoundError, RefusalReason, TriremeError, UnsupportedError
from trireme.engine.options import ControlMode
from trireme.engine.repository.source import Scan
from trireme.engine.request import InferenceResponse
from trireme.simulations.models import Profile, SimulatedModel, simple_model, simple_request
from trireme.simulations.world import World, run_world

Test = Callable[[World, InferenceServer, list[SimulatedModel]], Awaitable[None]]


def model(name: str, nbytes: int = 10, work_s: float = 0.01) -> SimulatedModel:
    made = simple_model(name, Profile(work_s))
    made.nbytes = nbytes
    return made


def chain(name: str, *members: str) -> SimulatedModel:
    """An ensemble: each member is asked when the one before has answered."""
    tensors = ["INPUT0", *(f"T{number}" for number in range(1, len(members))), "OUTPUT0"]
    ways = zip(members, tensors, tensors[1:], strict=False)
    steps = [step(each, {"INPUT0": taken}, {"OUTPUT0": given}) for each, taken, given in ways]
    return SimulatedModel(ensemble(steps, ["INPUT0 FP32 4"], ["OUTPUT0 FP32 4"], 8, name=name), Profile(0.0))


def served(test: Test, *models: SimulatedModel, limit: int = 20, load_s: float = 1.0, **options: Any) -> None:
    """Run a test with a server that has room for so many bytes of models."""
    given = list(models or (model("a"), model("b"), model("c")))

    async def scenario(world: World) -> None:
        world.load_s = load_s
        settings = {"model_control_mode": ControlMode.ON_DEMAND, "model_memory_limit": limit, **options}
        async with world.serve(*given, **settings) as server:
            await test(world, server, given)

    run_world(scenario, seed=1)


async def ask_all(world: World, names: list[str]) -> list[InferenceResponse | TriremeError]:
    """One request for each, side by side."""
    answers: list[InferenceResponse | TriremeError] = []

    async def ask(name: str) -> None:
        answers.append(await world.ask(simple_request(name)))

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(ask, name)
    return answers


def in_memory(models: list[SimulatedModel]) -> list[str]:
    return [each.name for each in models if each.copies]


def states(server: InferenceServer) -> dict[str, tuple[ModelState | None, str]]:
    return {entry.name: (entry.state, entry.reason) for entry in server.repository_index()}


def refused(answer: InferenceResponse | TriremeError, reason: RefusalReason) -> str:
    assert isinstance(answer, TriremeError)
    assert answer.refusal is reason
    return answer.message


def metrics(server: InferenceServer) -> dict[str, float]:
    assert server.residents is not None
    samples = [sample for family in server.residents.families(None) for sample in family.samples]
    return {" ".join((each.name, *each.labels.values())): each.value for each in samples}


def test_requests_for_a_model_wait_for_one_load() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        assert in_memory(models) == []
        assert server.ready()
        assert server.model_ready("a"), "it answers, if it is asked"
        assert states(server)["a"] == (ModelState.UNAVAILABLE, "on demand: not in memory")
        answers = await ask_all(world, ["a"] * 5)
        assert all(isinstance(each, InferenceResponse) for each in answers)
        assert (in_memory(models), models[0].copies) == (["a"], 1)
        assert states(server)["a"][0] is ModelState.READY
        await world.ask(simple_request("a"))
        found = metrics(server)
        assert found["trireme_on_demand_requests_total miss"] == 5
        assert found["trireme_on_demand_requests_total hit"] == 1
        assert found["trireme_on_demand_loads_total success"] == 1
        assert (found["trireme_on_demand_bytes"], found["trireme_on_demand_limit_bytes"]) == (10, 20)
        assert found["trireme_on_demand_wait_seconds_count"] == 5

    served(test)


def test_the_model_used_least_recently_makes_room_and_comes_back() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        for name in ("a", "b", "a", "c"):
            assert isinstance(await world.ask(simple_request(name)), InferenceResponse)
            await trio.sleep(20)
        assert in_memory(models) == ["a", "c"]
        assert isinstance(await world.ask(simple_request("b")), InferenceResponse)
        assert in_memory(models) == ["b", "c"]
        assert metrics(server)["trireme_on_demand_unloads_total"] == 2

    served(test)


def test_a_model_that_executes_does_not_leave() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        await world.ask(simple_request("a"))
        await trio.sleep(20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.ask, simple_request("a"))
            await trio.sleep(1)
            nursery.start_soon(world.ask, simple_request("b"))
            await trio.sleep(30)
            assert in_memory(models) == ["a"]
            with pytest.raises(ColdModelError):
                server.describe("a")  # it is drained: there is somebody who waits for its room
            await trio.sleep(50)
            assert in_memory(models) == ["b"]

    served(test, model("a", work_s=40.0), model("b"), limit=10)


def test_a_request_waits_no_longer_than_it_says_and_may_be_given_up() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        text = refused(await world.ask(simple_request("a", timeout_us=500_000)), RefusalReason.LOAD_WAIT)
        assert text == "model 'a' was not in memory within the 500000 us that the request may wait"
        with trio.move_on_after(0.5):  # the first eighth of a second goes into a look at its configuration
            await world.ask(simple_request("b"))
        await trio.sleep(20)
        assert in_memory(models) == ["a", "b"], "a load that has begun comes to its end"
        assert metrics(server)["trireme_on_demand_waiting"] == 0
        with pytest.raises(TriremeError, match="'c' was not in memory within the 1000 us"):
            await server.want("c", 1_000)

    served(test)


def test_a_request_that_holds_room_of_the_server_waits_for_a_limited_time() -> None:
    """Else it could wait for the room of a model whose requests wait for that of the server."""

    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        began_s = world.clock.now_s()
        with pytest.raises(TriremeError, match="was not in memory within the 30000000 us") as refusal:
            await server.admit(simple_request("a"), server.lease())
        assert refusal.value.refusal is RefusalReason.LOAD_WAIT
        assert world.clock.now_s() - began_s == pytest.approx(42.5), "12.5 s go into a look at its configuration"
        assert server.budget_statistics().requests == 0

    served(test, load_s=100.0)


def test_a_load_that_fails_is_the_answer_and_is_tried_again_later() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        models[0].is_broken = True
        assert "'a' cannot be loaded" in refused(await world.ask(simple_request("a")), RefusalReason.LOAD_FAILED)
        models[0].is_broken = False
        assert "next try in 1.0 s" in refused(await world.ask(simple_request("a")), RefusalReason.LOAD_FAILED)
        assert not server.model_ready("a")
        assert "'a' cannot be loaded" in states(server)["a"][1]
        assert server.ready(), "the server serves what it can"
        await trio.sleep(1)
        assert isinstance(await world.ask(simple_request("a")), InferenceResponse)
        assert metrics(server)["trireme_on_demand_loads_total failure"] == 1

    served(test)


def test_a_model_that_is_too_large_is_refused_at_once() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        text = refused(await world.ask(simple_request("a")), RefusalReason.MODEL_MEMORY)
        assert text == "model 'a' needs 21 bytes of memory, the limit for models is 20"
        assert "'nothing'" in str(await world.ask(simple_request("nothing")))

    served(test, model("a", 21))


def test_pinned_models_are_there_from_the_start_and_stay() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        assert in_memory(models) == ["b"]
        for name in ("a", "c", "a"):
            await trio.sleep(20)
            await world.ask(simple_request(name))
        assert in_memory(models) == ["a", "b"]

    served(test, model_pins=("b",))
    with pytest.RaisesGroup(StartupError, flatten_subgroups=True, allow_unwrapped=True):
        served(test, model_pins=("b",), limit=9)


def test_circles_of_ensembles_are_refused_and_cost_no_loads() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        circle = "circular dependency between ensembles: x -> ... -> y -> x"
        for name, why in {
            "x": circle,
            "self": "circular dependency between ensembles: self -> ... -> self -> self",
        }.items():
            said = refused(await world.ask(simple_request(name)), RefusalReason.LOAD_FAILED)
            assert said == f"model '{name}' was not loaded: {why}"
            assert "next try in" in refused(await world.ask(simple_request(name)), RefusalReason.LOAD_FAILED)
            assert states(server)[name] == (ModelState.UNAVAILABLE, why)
            assert not server.model_ready(name)
        said = refused(await world.ask(simple_request("outer")), RefusalReason.LOAD_FAILED)
        assert said.endswith(f"depends on 'x' which is not valid. Model 'x' failed with error: {circle}")
        assert "nothing" in refused(await world.ask(simple_request("lacks")), RefusalReason.LOAD_FAILED)
        with pytest.raises(TriremeError, match="circular dependency between ensembles: x -> "):
            await server.load_model("x", {})
        assert in_memory(models) == []
        assert metrics(server)["trireme_on_demand_loads_total failure"] == 0
        assert isinstance(await world.ask(simple_request("good")), InferenceResponse)
        assert in_memory(models) == ["a", "b"]

    circles = chain("x", "a", "y"), chain("y", "b", "x"), chain("self", "self"), chain("outer", "a", "x")
    served(test, model("a"), model("b"), *circles, chain("lacks", "a", "nothing"), chain("good", "a", "b"))


def test_an_ensemble_that_was_changed_is_loaded_with_what_it_needs_now() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        changing = models[-1]
        assert "x -> ... -> x" in refused(await world.ask(simple_request("x")), RefusalReason.LOAD_FAILED)
        for members in (("a", "b"), ("b", "c")):
            changing.config = chain("x", *members).config
            changing.touch()
            await trio.sleep(1)
            assert isinstance(await world.ask(simple_request("x")), InferenceResponse)
            assert server.residents is not None
            assert server.residents.core["x"].needs == members
            await server.unload_model("x")
            await trio.sleep(20)

    served(test, model("a"), model("b"), model("c"), chain("x", "x"))


def test_a_model_that_is_added_is_found_by_its_first_request() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        late = models[1]
        late.is_gone = True
        await server.rescan()
        assert "unknown model: 'late'" in str(await world.ask(simple_request("late")))
        late.is_gone = False
        assert "unknown model: 'late'" in str(await world.ask(simple_request("late"))), "not looked for so soon"
        await trio.sleep(20)
        assert all(isinstance(each, InferenceResponse) for each in await ask_all(world, ["late"] * 3))

    served(test, model("a"), model("late"))


def test_a_model_that_is_removed_while_it_leaves_is_waited_for_and_then_unknown() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        world.nursery.start_soon(world.ask, simple_request("a"))
        await trio.sleep(10)
        await server.unload_model("a")  # it executes still
        models[0].is_gone = True
        await server.rescan()
        with pytest.raises(ColdModelError):
            server.describe("a")
        with pytest.raises(NotFoundError, match="unknown model: 'a'"):
            await server.want("a")
        with pytest.raises(NotFoundError):
            server.describe_known("a")

    served(test, model("a", work_s=40.0))


def test_loads_do_not_look_through_the_repositories(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands of models in them. Whether one is gone is looked for when its load fails."""
    looks: list[None] = []

    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        scan = world.repository.scan
        monkeypatch.setattr(world.repository, "scan", lambda: looks.append(None) or scan())
        for name in ("a", "b", "c", "a"):
            assert isinstance(await world.ask(simple_request(name)), InferenceResponse)
        assert not looks
        models[1].damage()
        refused(await world.ask(simple_request("b")), RefusalReason.LOAD_FAILED)
        assert len(looks) == 1

    served(test, load_s=0.01)


def test_a_load_looks_at_no_model_that_has_nothing_to_do_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands that were in memory once, and the event loop has requests to answer."""
    asked: set[str] = set()

    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        for name in "abcdefgh":
            assert isinstance(await world.ask(simple_request(name)), InferenceResponse)
        repository = server._control.repository
        versions = repository._versions
        monkeypatch.setattr(repository, "_versions", lambda identity: asked.add(identity) or versions(identity))
        assert isinstance(await world.ask(simple_request("a")), InferenceResponse)
        await trio.sleep(1)
        assert "a" in asked
        assert len(asked) <= 3, "it, one that leaves, and one that may have sequences"

    served(test, *(model(name) for name in "abcdefgh"), load_s=0.01)


def test_names_that_are_unknown_are_looked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        scan = world.repository.scan

        def counted() -> Scan:
            looks.append(world.clock.now_s())
            return scan()

        monkeypatch.setattr(world.repository, "scan", counted)
        assert isinstance(await world.ask(simple_request("a")), InferenceResponse)
        first = len(looks)
        for _ in range(30):
            answers = await ask_all(world, [f"unknown{number}" for number in range(100)])
            assert all("unknown model" in str(each) for each in answers)
            await trio.sleep(0.1)
        assert 2 <= len(looks) - first <= 4

    served(test, load_s=0.01)


def test_a_model_that_was_removed_is_unknown_when_it_has_left() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        await ask_all(world, ["a", "b"])
        models[0].is_gone = models[2].is_gone = True
        assert isinstance(await world.ask(simple_request("a")), InferenceResponse), "it is in memory"
        await server.unload_model("a")
        await trio.sleep(20)
        for name in ("a", "c", "a"):
            answer = await world.ask(simple_request(name))
            assert isinstance(answer, NotFoundError), answer
            assert f"unknown model: '{name}'" in answer.message
            assert not server.model_ready(name)
        models[0].is_gone = False
        await trio.sleep(20)
        assert isinstance(await world.ask(simple_request("a")), InferenceResponse)

    served(test)


def test_a_model_of_a_higher_priority_stays_longer() -> None:
    """Though it was used less recently; and what an ensemble of that priority needs, too."""

    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        for name in ("high", "low", "c"):
            await world.ask(simple_request(name))
            await trio.sleep(20)
        assert in_memory(models) == ["high", "c"]
        for name in ("ensemble", "high", "low"):
            await world.ask(simple_request(name))
            await trio.sleep(20)
        assert in_memory(models) == ["low", "b"], "the ensemble's priority is that of its member"

    valued = model("high"), model("low"), model("b"), model("c"), chain("ensemble", "b")
    valued[0].config = replace(valued[0].config, parameters={"ON_DEMAND_PRIORITY": "5"})
    valued[-1].config = replace(valued[-1].config, parameters={"ON_DEMAND_PRIORITY": "6"})
    served(test, *valued)


def test_a_model_may_be_pinned_by_its_configuration() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        assert in_memory(models) == [], "it is loaded when it is asked for"
        for name in ("b", "a", "c", "a"):
            await world.ask(simple_request(name))
            await trio.sleep(20)
        assert in_memory(models) == ["a", "b"]
        said = refused(await world.ask(simple_request("bad")), RefusalReason.LOAD_FAILED)
        assert said.endswith("parameter 'ON_DEMAND_PIN' of model 'bad' is 'maybe'; expected 'true' or 'false'")

    models = model("a"), model("b"), model("c"), model("bad")
    models[1].config = replace(models[1].config, parameters={"ON_DEMAND_PIN": "true"})
    models[3].config = replace(models[3].config, parameters={"ON_DEMAND_PIN": "maybe"})
    served(test, *models)


def test_models_are_loaded_and_unloaded_by_hand_too() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        await server.load_model("a", {})
        assert in_memory(models) == ["a"]
        await server.unload_model("a")
        await trio.sleep(1)
        assert in_memory(models) == []
        assert isinstance(await world.ask(simple_request("a")), InferenceResponse)
        with pytest.raises(TriremeError, match="failed to load 'nothing'"):
            await server.load_model("nothing", {})
        with pytest.raises(UnsupportedError, match="cannot be loaded with parameters"):
            await server.load_model("a", {"config": "{}"})

    served(test)


def test_who_waits_when_the_server_stops_is_told_so() -> None:
    answers: list[InferenceResponse | TriremeError] = []

    async def ask(world: World) -> None:
        answers.append(await world.ask(simple_request("a")))

    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        world.nursery.start_soon(ask, world)
        await trio.sleep(1.5)
        await server.stop(10)
        await trio.sleep(1)
        with pytest.raises(TriremeError, match="Server is stopping"):  # who asks again and again must hear of it
            await server.want("b")

    served(test)
    (answer,) = answers
    refused(answer, RefusalReason.STOPPING)


def test_who_waits_for_an_unknown_name_when_the_server_stops_is_told_so() -> None:
    refusals: list[TriremeError] = []

    async def want(server: InferenceServer) -> None:
        with pytest.raises(TriremeError) as refusal:
            await server.want("unknown")
        refusals.append(refusal.value)

    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        world.load_s = 1000.0  # that is how long a look takes
        world.nursery.start_soon(want, server)
        await trio.sleep(1)
        server.end_loads()
        await trio.sleep(1)
        assert [each.refusal for each in refusals] == [RefusalReason.STOPPING]

    served(test)


def test_a_burst_of_first_requests_is_answered_one_load_after_the_other() -> None:
    names = [f"m{number}" for number in range(200)]

    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        answers = await ask_all(world, names)
        assert all(isinstance(each, InferenceResponse) for each in answers)
        assert len(in_memory(models)) <= 10

    served(test, *(model(name) for name in names), limit=100, load_s=0.01)


def test_other_modes_have_none_of_it() -> None:
    async def test(world: World, server: InferenceServer, models: list[SimulatedModel]) -> None:
        assert server.residents is None
        await server.want("a")
        assert isinstance(await world.ask(simple_request("a")), InferenceResponse)

    served(test, model_control_mode=ControlMode.NONE)
