"""The model of a request is looked up once: what was found goes with the request, and counts only while it holds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio
from valued_models import CONFIG, Gates, sequence_request, value_of, valued_request, write_model
from valued_server import serving, until

from trireme.actors import InferenceServer
from trireme.actors.reply import Reply
from trireme.actors.repository import Repository
from trireme.engine.description import ModelDescription
from trireme.engine.errors import NotFoundError, TriremeError, UnavailableError
from trireme.engine.options import ControlMode
from trireme.engine.request import InferenceRequest

SEQUENCES = CONFIG + "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked for."""
    names: list[str] = []
    find = Repository.find

    def counted(self: Repository, name: str, version: int = -1) -> object:
        names.append(name)
        return find(self, name, version)

    monkeypatch.setattr(Repository, "find", counted)
    return names


async def submit(server: InferenceServer, request: InferenceRequest, model: ModelDescription, *, now: bool) -> Reply:
    if not now:
        return await server.admit(request, model=model)
    reply = server.admit_nowait(request, model=model)
    assert reply is not None
    return reply


@pytest.mark.parametrize("now", [True, False])
async def test_what_holds_is_not_looked_for_again(tmp_path: Path, gates: Gates, searches: list[str], now: bool) -> None:
    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, "a") as server:
        first = server.describe("a")
        searches.clear()
        for _ in range(3):
            model = server.describe("a")
            assert model is first
            reply = await submit(server, valued_request("a"), model, now=now)
            assert value_of(await reply.response()) == 1
        assert not searches


@pytest.mark.parametrize("now", [True, False])
async def test_a_model_that_was_loaded_again_meanwhile_answers_in_its_new_version(
    tmp_path: Path, gates: Gates, now: bool
) -> None:
    """Also in place of the same version, and where the old one has gone."""
    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, "a") as server:
        model = server.describe("a")
        for generation, version in ((2, 1), (3, 2)):
            write_model(tmp_path, "a", {version: generation})
            await server.load_model("a", {})
            reply = await submit(server, valued_request("a"), model, now=now)
            response = await reply.response()
            assert (value_of(response), response.model_version) == (generation, version)
            assert server.describe("a").version == version


@pytest.mark.parametrize("now", [True, False])
async def test_a_model_that_was_unloaded_meanwhile_is_refused_as_if_it_were_looked_for_now(
    tmp_path: Path, gates: Gates, now: bool
) -> None:
    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, "a") as server:
        models = {version: server.describe("a", version) for version in (-1, 1)}
        await server.unload_model("a")
        for version, model in models.items():
            request = valued_request("a", version=version)
            with pytest.raises(TriremeError) as expected:
                server.admit_nowait(request)
            assert isinstance(expected.value, NotFoundError | UnavailableError)
            with pytest.raises(type(expected.value)) as caught:
                await submit(server, request, model, now=now)
            assert caught.value.message == expected.value.message


@pytest.mark.parametrize("now", [True, False])
async def test_a_sequence_goes_on_with_the_version_that_drains(tmp_path: Path, gates: Gates, now: bool) -> None:
    """Whether its request was looked up before its model was loaded again or after that."""
    write_model(tmp_path, "a", {1: 1}, SEQUENCES)
    async with serving(tmp_path, gates, "a") as server:
        before = server.describe("a")
        await server.infer(sequence_request("a", 7, "s"))
        write_model(tmp_path, "a", {1: 2}, SEQUENCES)
        await server.load_model("a", {})
        for model in (before, server.describe("a")):
            reply = await submit(server, sequence_request("a", 7), model, now=now)
            assert value_of(await reply.response()) == 1
            reply = await submit(server, sequence_request("a", 8, "se"), model, now=now)
            assert value_of(await reply.response()) == 2


@pytest.mark.parametrize("now", [True, False])
async def test_a_version_that_only_continues_its_sequences_is_looked_for_each_time(
    tmp_path: Path, gates: Gates, now: bool
) -> None:
    write_model(tmp_path, "a", {1: 1}, SEQUENCES)
    async with serving(tmp_path, gates, "a") as server:
        await server.infer(sequence_request("a", 7, "s"))
        write_model(tmp_path, "a", {2: 2}, SEQUENCES + "version_policy { specific { versions: [2] } }\n")
        await server.load_model("a", {})
        model = server.describe("a", 1)
        reply = await submit(server, sequence_request("a", 7, "e", version=1), model, now=now)
        assert value_of(await reply.response()) == 1
        await until(lambda: server._repository.live_versions() == 1)
        with pytest.raises(TriremeError, match=r"is not (at ready state|found)"):
            server.describe("a", 1)


async def test_nothing_new_gets_in_while_the_server_stops(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, "a") as server:
        model = server.describe("a")
        await server.stop(1.0)
        for now in (True, False):
            with pytest.raises(UnavailableError, match="Server is stopping"):
                await submit(server, valued_request("a"), model, now=now)


async def test_a_request_that_waited_for_room_is_looked_up_again(tmp_path: Path, gates: Gates) -> None:
    """Its model was loaded again meanwhile."""
    write_model(tmp_path, "a", {1: 1})
    write_model(tmp_path, "b", {1: 1})
    options = {"model_control_mode": ControlMode.EXPLICIT, "max_inflight_requests": 1}
    async with serving(tmp_path, gates, "a", "b", **options) as server:
        model = server.describe("a")
        held = await server.admit(valued_request("b", gate="hold"))
        answers: list[float] = []

        async def wait() -> None:
            answers.append(value_of(await (await server.admit(valued_request("a"), None, model)).response()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until(lambda: server.budget_statistics().waiting)
            write_model(tmp_path, "a", {1: 5})
            await server.load_model("a", {})
            gates.open("hold")
            await held.response()
        assert answers == [5]


async def test_every_change_empties_what_was_found(tmp_path: Path, gates: Gates) -> None:
    """What holds is what would be found now, for every model and version, at every moment of loading and unloading."""
    write_model(tmp_path, "a", {1: 1, 2: 2}, CONFIG + "version_policy { all {} }")
    write_model(tmp_path, "b", {1: 1})
    async with serving(tmp_path, gates, "a", "b") as server, trio.open_nursery() as nursery:
        repository = server._repository

        def check() -> None:
            for (name, version), description in repository._found.items():
                assert repository.find(name, version) is repository.described[description]

        async def keep_checking() -> None:
            while True:
                for name in "ab":
                    for version in (-1, 1, 2, 3):
                        with suppress(TriremeError):
                            server.describe(name, version)
                check()
                await trio.lowlevel.checkpoint()
                check()

        nursery.start_soon(keep_checking)
        await server.load_model("a", {})
        await server.unload_model("b")
        await server.load_model("b", {})
        write_model(tmp_path, "a", {3: 3}, CONFIG + "instance_group { count: 2 kind: KIND_CPU }")
        await server.load_model("a", {})
        await server.unload_model("a")
        nursery.cancel_scope.cancel()
