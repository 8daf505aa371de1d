"""Models that come, change and go while the server runs, on real threads and files
(docs/reference/model-control.md)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from valued_models import (
    CONFIG,
    CONFIG_JSON,
    Gates,
    ensemble_config,
    value_of,
    valued_request,
    write_model,
)
from valued_server import POLL_FAILED, ask, fails, index, serving, until

from trireme.actors import InferenceServer, StartupError
from trireme.engine.errors import InternalError, InvalidArgumentError, NotFoundError, TriremeError, UnavailableError
from trireme.engine.options import ControlMode, ServerOptions


class TestStart:
    async def test_explicit_mode_loads_only_what_it_is_told(self, tmp_path: Path, gates: Gates) -> None:
        for name in "abc":
            write_model(tmp_path, name, {1: 5})
        async with serving(tmp_path, gates, "b") as server:
            assert await index(server) == [("a", "", "", ""), ("b", "1", "READY", ""), ("c", "", "", "")]
            assert server.ready()
            with pytest.raises(NotFoundError, match=r"^Request for unknown model: 'a' is not found$"):
                server.describe("a")

    async def test_a_star_loads_all(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 5})
        write_model(tmp_path, "b", {1: 5})
        async with serving(tmp_path, gates, "*") as server:
            assert [row[2] for row in await index(server)] == ["READY", "READY"]

    async def test_nothing_at_start_is_ready_too(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: "broken"})
        async with serving(tmp_path, gates) as server:
            assert server.ready()

    async def test_an_ensemble_brings_its_members(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 5})
        write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
        async with serving(tmp_path, gates, "e") as server:
            assert await ask(server, "e") == 5

    @pytest.mark.parametrize("name", ["nope", "broken"])
    async def test_what_cannot_be_loaded_ends_the_start(self, tmp_path: Path, gates: Gates, name: str) -> None:
        write_model(tmp_path, "broken", {1: "x"})
        with pytest.raises(StartupError) as caught:
            async with serving(tmp_path, gates, name):
                pytest.fail("the server must not open")
        assert caught.value.message == "failed to load all models"
        assert name == "nope" or [entry.name for entry in caught.value.index] == ["broken"]
        async with serving(tmp_path, gates, name, exit_on_error=False) as server:
            assert not server.ready()


class TestModes:
    @pytest.mark.parametrize("mode", [ControlMode.NONE, ControlMode.POLL])
    async def test_only_explicit_mode_takes_orders(self, tmp_path: Path, gates: Gates, mode: ControlMode) -> None:
        write_model(tmp_path, "a", {1: 5})
        text = "explicit model load / unload is not allowed if polling is enabled"
        async with serving(tmp_path, gates, model_control_mode=mode) as server:
            await fails(server.load_model("a", {}), UnavailableError, text)
            await fails(server.unload_model("a"), UnavailableError, text)
            assert await ask(server, "a") == 5


class TestLoad:
    async def test_a_new_model_is_served_when_the_call_returns(self, tmp_path: Path, gates: Gates) -> None:
        async with serving(tmp_path, gates) as server:
            write_model(tmp_path, "a", {1: 1, 3: 3})
            await server.load_model("a", {})
            assert await ask(server, "a") == 3
            assert await index(server) == [("a", "3", "READY", "")]

    async def test_what_has_not_changed_stays_as_it_is(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a") as server:
            await ask(server, "a")
            await server.load_model("a", {})
            (entry,) = server.statistics("a")
            assert entry.statistics.success.count == 1, "a reloaded model begins to count anew"

    async def test_what_has_changed_is_loaded_again(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a") as server:
            write_model(tmp_path, "a", {1: 2})
            assert await ask(server, "a") == 1
            await server.load_model("a", {})
            assert await ask(server, "a") == 2

    async def test_a_version_that_is_no_longer_chosen_is_unloaded(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a") as server:
            write_model(tmp_path, "a", {1: 1, 2: 2})
            await server.load_model("a", {})
            await until(lambda: len(server.repository_index(ready_only=True)) == 1)
            await until(lambda: server.repository_index()[0].reason == "unloaded")
            assert await index(server) == [("a", "1", "UNAVAILABLE", "unloaded"), ("a", "2", "READY", "")]
            await fails(
                server.infer(valued_request("a", version=1)),
                UnavailableError,
                "Request for unknown model: 'a' version 1 is not at ready state",
            )

    async def test_a_failing_reload_leaves_the_old_one_serving(self, tmp_path: Path, gates: Gates) -> None:
        """Adding broken version 6 beside 5: 5 stays ready, 6 says why not; a plain retry tries again."""
        policy = CONFIG + "version_policy { all { } }"
        write_model(tmp_path, "a", {5: 5}, policy)
        text = "load failed for model 'a': version 6 is at UNAVAILABLE state: Internal: no value;\n"
        async with serving(tmp_path, gates, "a") as server:
            write_model(tmp_path, "a", {5: 5, 6: "broken"}, policy)
            for _ in range(2):
                await fails(server.load_model("a", {}), InvalidArgumentError, text)
                assert await index(server) == [
                    ("a", "5", "READY", ""),
                    ("a", "6", "UNAVAILABLE", "Internal: no value"),
                ]
                assert await ask(server, "a") == 5
            (tmp_path / "a" / "6" / "value.txt").write_text("6")
            await server.load_model("a", {})
            assert await ask(server, "a") == 6

    async def test_a_version_that_failed_and_is_gone_is_forgotten(self, tmp_path: Path, gates: Gates) -> None:
        policy = CONFIG + "version_policy { all { } }"
        write_model(tmp_path, "a", {5: 5}, policy)
        async with serving(tmp_path, gates, "a") as server:
            write_model(tmp_path, "a", {5: 5, 6: "broken"}, policy)
            with pytest.raises(InvalidArgumentError):
                await server.load_model("a", {})
            assert not server.ready()
            write_model(tmp_path, "a", {5: 5}, policy)
            await server.load_model("a", {})
            assert await index(server) == [("a", "5", "READY", "")]
            assert server.ready()

    @pytest.mark.parametrize(
        ("name", "kind", "text"),
        [
            ("nope", InternalError, POLL_FAILED.format("nope")),
            ("badconfig", InternalError, POLL_FAILED.format("badconfig")),
            ("", InvalidArgumentError, "Model name cannot be empty. Please enter a valid name to deploy."),
            ("  ", InvalidArgumentError, "Model name cannot be empty. Please enter a valid name to deploy."),
            (
                "../a",
                InvalidArgumentError,
                "invalid model name '../a', model name must not contain path traversal characters",
            ),
            (
                "..",
                InvalidArgumentError,
                "invalid model name '..', model name must not contain path traversal characters",
            ),
            (
                "a/1",
                InvalidArgumentError,
                "invalid model name 'a/1', model name must not contain path traversal characters",
            ),
            (
                "empty",
                InvalidArgumentError,
                (
                    "load failed for model 'empty': at least one version must be available under the version policy of "
                    "model 'empty'\n"
                ),
            ),
            (
                "lonely",
                InvalidArgumentError,
                (
                    "load failed for model 'lonely': ensemble lonely contains models that are not available or "
                    "ambiguous: nope\n"
                ),
            ),
            (
                "e",
                InvalidArgumentError,
                (
                    "load failed for model 'e': ensemble 'e' depends on 'broken' which has no loaded version. Model "
                    "'broken' loading failed with error: version 1 is at UNAVAILABLE state: Internal: no value;\n"
                ),
            ),
        ],
    )
    async def test_what_cannot_be_loaded_says_why(
        self, tmp_path: Path, gates: Gates, name: str, kind: type[TriremeError], text: str
    ) -> None:
        """And, over and over, the same; the texts for ensembles are those of Triton 2.51."""
        write_model(tmp_path, "badconfig", {1: 1}, "nonsense")
        write_model(tmp_path, "empty", {})
        write_model(tmp_path, "lonely", {1: 1}, ensemble_config("nope"))
        write_model(tmp_path, "broken", {1: "x"})
        write_model(tmp_path, "e", {1: 1}, ensemble_config("broken"))
        async with serving(tmp_path, gates) as server:
            for _ in range(2):
                await fails(server.load_model(name, {}), kind, text)

    @pytest.mark.parametrize("name", ["...", "a..b", "..c"])
    async def test_dots_alone_are_no_path(self, tmp_path: Path, gates: Gates, name: str) -> None:
        write_model(tmp_path, name, {1: 1})
        async with serving(tmp_path, gates) as server:
            await server.load_model(name, {})
            assert await ask(server, name) == 1

    async def test_loads_of_one_model_go_one_after_the_other(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates) as server:
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(server.load_model, "a", {})
                    nursery.start_soon(server.load_model, "a", {"config": CONFIG_JSON % ("a", "")})
                    nursery.start_soon(server.unload_model, "a")
            await server.load_model("a", {})
            assert await ask(server, "a") == 1
            await until(lambda: len(server.model_statistics()) == 1)

    async def test_a_load_goes_on_when_its_client_has_gone(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates) as server:
            with trio.CancelScope() as scope:
                scope.cancel()
                await server.load_model("a", {})
            assert scope.cancelled_caught
            await until(lambda: server.model_ready("a"))


class TestDrain:
    async def test_the_old_one_answers_what_it_has_accepted(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a") as server:
            reply = await server.admit(valued_request("a", gate="g"))
            await until(lambda: gates.waiting)
            write_model(tmp_path, "a", {1: 2})
            await server.load_model("a", {})
            assert await ask(server, "a") == 2
            gates.open("g")
            response = await reply.response()
            assert (value_of(response), value_of(response, "BY")) == (1, 1)

    async def test_unloading_waits_for_what_is_in_flight(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a") as server:
            reply = await server.admit(valued_request("a", gate="g"))
            await until(lambda: gates.waiting)
            await server.unload_model("a")
            assert await index(server) == [("a", "1", "UNLOADING", "")]
            gates.open("g")
            assert value_of(await reply.response()) == 1
            await until(lambda: server.repository_index()[0].reason == "unloaded")
            assert await index(server) == [("a", "1", "UNAVAILABLE", "unloaded")]
            assert server.ready()
            assert not server.model_ready("a")
            text = "Request for unknown model: 'a' has no available versions"
            await fails(server.infer(valued_request("a")), NotFoundError, text)

    async def test_who_waits_for_room_is_answered_by_the_new_one(self, tmp_path: Path, gates: Gates) -> None:
        """The server-wide budget is used up when the model is replaced."""
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a", max_inflight_requests=1) as server, trio.open_nursery() as nursery:
            first = await server.admit(valued_request("a", gate="g"))
            answers: list[float] = []

            async def ask_late() -> None:
                answers.append(await ask(server, "a"))

            nursery.start_soon(ask_late)
            await until(lambda: server.budget_statistics().waiting)
            write_model(tmp_path, "a", {1: 2})
            await server.load_model("a", {})
            gates.open("g")
            assert value_of(await first.response()) == 1
            await until(lambda: answers)
            assert answers == [2]

    async def test_the_server_stops_with_a_load_under_way(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with trio.open_nursery() as nursery, serving(tmp_path, gates, "a") as server:

            async def load_for_ever() -> None:
                value = 1
                while True:
                    value += 1
                    write_model(tmp_path, "a", {1: value})
                    try:
                        await server.load_model("a", {})
                    except (InvalidArgumentError, UnavailableError):
                        return

            nursery.start_soon(load_for_ever)
            await ask(server, "a")
        assert server.drained

    async def test_a_model_that_is_loaded_just_when_the_server_stops_is_refused_as_later_ones(
        self, tmp_path: Path, gates: Gates
    ) -> None:
        """Whichever is told first, who loads it or that it is unloaded: chance has it."""
        write_model(tmp_path, "a", {1: 1})
        options = ServerOptions(model_repository=(tmp_path,), model_control_mode=ControlMode.EXPLICIT)

        async def load() -> bool:
            def stop_when_ready(_name: str, _version: int, state: str) -> None:
                if state == "READY":
                    nursery.start_soon(server.stop, 20)

            async with trio.open_nursery() as nursery:
                server = InferenceServer(options, backends=gates.backends(), on_load_progress=stop_when_ready)
                async with server:
                    with suppress(UnavailableError):
                        await server.load_model("a", {})
            return server.drained

        assert all([await load() for _ in range(12)])


class TestUnload:
    @pytest.mark.parametrize("name", ["nope", "a"])
    async def test_what_is_not_loaded_is_as_good_as_unloaded(self, tmp_path: Path, gates: Gates, name: str) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates) as server:
            await server.unload_model(name)
            assert await index(server) == [("a", "", "", "")]

    async def test_a_deleted_directory_leaves_the_index_and_serves_on(self, tmp_path: Path, gates: Gates) -> None:
        directory = write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a") as server:
            os.rename(directory, tmp_path.parent / "elsewhere")
            assert await index(server) == []
            assert await ask(server, "a") == 1


class TestEnsembles:
    async def test_a_member_takes_its_ensembles_along_and_brings_them_back(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
        write_model(tmp_path, "outer", {1: 0}, ensemble_config("e"))
        async with serving(tmp_path, gates, "outer") as server:
            await server.unload_model("a")
            await until(lambda: all(row.reason == "unloaded" for row in server.repository_index()))
            await server.load_model("a", {})
            assert [row[2] for row in await index(server)] == ["READY"] * 3
            assert await ask(server, "outer") == 1

    async def test_loading_an_ensemble_loads_a_member_that_was_unloaded(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
        async with serving(tmp_path, gates, "e") as server:
            await server.unload_model("a")
            await server.load_model("e", {})
            assert await ask(server, "e") == 1

    async def test_dependents_are_members_that_nobody_else_needs(self, tmp_path: Path, gates: Gates) -> None:
        """A member that was loaded by name stays, as does one that another ensemble uses
        (docs/reference/model-control.md#unload)."""
        for name in ("named", "implicit", "shared"):
            write_model(tmp_path, name, {1: 1})
            write_model(tmp_path, f"e_{name}", {1: 0}, ensemble_config(name))
        write_model(tmp_path, "other", {1: 0}, ensemble_config("shared"))
        async with serving(tmp_path, gates, "named", "e_named", "e_implicit", "e_shared", "other") as server:
            for name in ("named", "implicit", "shared"):
                await server.unload_model(f"e_{name}", unload_dependents=True)
            ready = [row.name for row in server.repository_index(ready_only=True)]
            assert ready == ["named", "other", "shared"]

    async def test_a_member_that_was_unloaded_by_name_counts_as_loaded_by_name_no_more(
        self, tmp_path: Path, gates: Gates
    ) -> None:
        write_model(tmp_path, "a", {1: 1})
        write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
        async with serving(tmp_path, gates, "a", "e") as server:
            await server.unload_model("a")
            await server.load_model("e", {})
            await server.unload_model("e", unload_dependents=True)
            assert server.repository_index(ready_only=True) == []

    async def test_members_stay_without_the_word_dependents(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
        async with serving(tmp_path, gates, "e") as server:
            await server.unload_model("e")
            assert [row.name for row in server.repository_index(ready_only=True)] == ["a"]

    async def test_a_new_member_is_used_by_the_ensemble_at_once(self, tmp_path: Path, gates: Gates) -> None:
        write_model(tmp_path, "a", {1: 1})
        write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
        async with serving(tmp_path, gates, "e") as server:
            write_model(tmp_path, "a", {1: 2})
            await server.load_model("a", {})
            assert await ask(server, "e") == 2
            await until(lambda: [model.ready for model in server._repository.models()] == [True, True])

    async def test_an_ensemble_that_its_new_member_does_not_fit_serves_with_the_old_one(
        self, tmp_path: Path, gates: Gates
    ) -> None:
        write_model(tmp_path, "a", {1: 1})
        write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
        async with serving(tmp_path, gates, "e") as server:
            write_model(tmp_path, "a", {1: 2}, CONFIG.replace("dims: [ 1 ]", "dims: [ 2 ]"))
            await server.load_model("a", {})
            assert await ask(server, "e") == 1
            assert server.model_ready("e")

    async def test_requests_in_an_ensemble_survive_the_unloading_of_its_member(
        self, tmp_path: Path, gates: Gates
    ) -> None:
        write_model(tmp_path, "a", {1: 1})
        write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
        async with serving(tmp_path, gates, "e") as server:
            first = await server.admit(valued_request("e", gate="g"))
            await until(lambda: gates.waiting)
            second = await server.admit(valued_request("e"))
            await server.unload_model("a")
            gates.open("g")
            assert value_of(await first.response()) == 1
            assert value_of(await second.response()) == 1
            await until(lambda: all(row.reason == "unloaded" for row in server.repository_index()))
