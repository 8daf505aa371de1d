"""Sequences, and streams of answers, that are under way when their model is loaded again: none of their requests fails.

They go on with the version that they began with, and others use the new one at once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trio
from later_files import later_change
from scripted_models import Script, write_scripted_models
from valued_models import CONFIG, Gates, sequence_request, value_of
from valued_models import write_model as write
from valued_server import fails, index, serving, until

from trireme.actors import InferenceServer
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InvalidArgumentError, NotFoundError, UnavailableError
from trireme.engine.options import ControlMode, ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

SEQUENCES = (
    CONFIG + "sequence_batching { max_sequence_idle_microseconds: %d } instance_group { count: 3 kind: KIND_CPU }\n"
)
LONG = SEQUENCES % 60_000_000
SHORT = SEQUENCES % 20_000


async def tell(server: InferenceServer, sequence: int, flags: str = "", version: int = -1, model: str = "a") -> float:
    return value_of(await server.infer(sequence_request(model, sequence, flags, version)))


def live(server: InferenceServer) -> int:
    return server._repository.live_versions()


async def test_they_go_on_where_they_began(tmp_path: Path, gates: Gates) -> None:
    """Over two reloads; each goes when the last of its sequences is over."""
    write(tmp_path, "a", {1: 1}, LONG)
    async with serving(tmp_path, gates, "a") as server:
        for generation in (1, 2, 3):
            write(tmp_path, "a", {1: generation}, LONG)
            await server.load_model("a", {})
            assert await tell(server, generation, "s") == generation
        assert live(server) == 3
        for generation in (1, 2, 3):
            assert await tell(server, generation) == generation
        assert await tell(server, 1, "e") == 1
        await until(lambda: live(server) == 2)
        assert await tell(server, 2, "e") == 2
        await until(lambda: live(server) == 1)
        assert await tell(server, 3, "e") == 3
        text = "inference request for sequence 1 to model 'a' must specify the START flag on the first request of the "
        await fails(tell(server, 1), InvalidArgumentError, f"{text}sequence")


async def test_one_that_starts_anew_does_so_on_the_new_version(tmp_path: Path, gates: Gates) -> None:
    write(tmp_path, "a", {1: 1}, LONG)
    async with serving(tmp_path, gates, "a") as server:
        assert await tell(server, 7, "s") == 1
        write(tmp_path, "a", {1: 2}, LONG)
        await server.load_model("a", {})
        assert await tell(server, 7, "s") == 2
        assert await tell(server, 7) == 2


async def test_with_another_version(tmp_path: Path, gates: Gates) -> None:
    """Whether they ask for the latest version or for the one that they know."""
    write(tmp_path, "a", {1: 1}, LONG)
    async with serving(tmp_path, gates, "a") as server:
        await tell(server, 1, "s")
        await tell(server, 2, "s", version=1)
        write(tmp_path, "a", {1: 1, 2: 2}, LONG)
        await server.load_model("a", {})
        assert await tell(server, 3, "s") == 2
        assert server.ready(), "a version that retires does not make the server unready"
        assert [await tell(server, 1, "e"), await tell(server, 2, "e", version=1)] == [1, 1]
        text = "Request for unknown model: 'a' version 1 is not at ready state"
        await fails(tell(server, 4, "s", version=1), UnavailableError, text)
        await until(lambda: live(server) == 1)


async def test_two_versions_side_by_side(tmp_path: Path, gates: Gates) -> None:
    """A version policy that lets the old one stay: what was begun with the latest version goes on there."""
    policy = "version_policy {{ specific {{ versions: {} }} }}\n"
    write(tmp_path, "a", {1: 1, 2: 2}, LONG + policy.format("[1]"))
    async with serving(tmp_path, gates, "a") as server:
        await tell(server, 1, "s")
        write(tmp_path, "a", {1: 1, 2: 2}, LONG + policy.format("[1, 2]"))
        await server.load_model("a", {})
        assert [await tell(server, 2, "s"), await tell(server, 1)] == [2, 1]


async def test_who_falls_silent_does_not_keep_the_old_version(tmp_path: Path, gates: Gates) -> None:
    write(tmp_path, "a", {1: 1}, SHORT)
    async with serving(tmp_path, gates, "a") as server:
        await tell(server, 1, "s")
        write(tmp_path, "a", {1: 2}, SHORT)
        await server.load_model("a", {})
        await until(lambda: live(server) == 1)


async def test_unloading_does_not_wait_for_sequences(tmp_path: Path, gates: Gates) -> None:
    """Neither for those of the version that serves, nor for those of one that was replaced."""
    write(tmp_path, "a", {1: 1}, LONG)
    async with serving(tmp_path, gates, "a") as server:
        await tell(server, 1, "s")
        write(tmp_path, "a", {1: 2}, LONG)
        await server.load_model("a", {})
        await tell(server, 2, "s")
        await server.unload_model("a")
        await until(lambda: live(server) == 0)
        for sequence in (1, 2):
            text = "Request for unknown model: 'a' has no available versions"
            await fails(tell(server, sequence), NotFoundError, text)
        assert await index(server) == [("a", "1", "UNAVAILABLE", "unloaded")]


async def test_a_server_that_stops_does_not_wait_for_them(tmp_path: Path, gates: Gates) -> None:
    write(tmp_path, "a", {1: 1}, LONG)
    with trio.fail_after(20):
        async with serving(tmp_path, gates, "a") as server:
            await tell(server, 1, "s")
            write(tmp_path, "a", {1: 2}, LONG)
            await server.load_model("a", {})
    assert server.drained


async def test_one_that_is_over_because_the_server_stops_is_told_so(tmp_path: Path, gates: Gates) -> None:
    """And not to begin again, though another generation of its model is still at work, and does not know it."""
    text = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    write(tmp_path, "a", {1: 1}, LONG)
    async with serving(tmp_path, gates, "a") as server, trio.open_nursery() as nursery:
        older = await server.admit(sequence_request("a", 1, "s", gate="older"))
        write(tmp_path, "a", {1: 2}, LONG)
        await server.load_model("a", {})
        newer = await server.admit(sequence_request("a", 2, "s", gate="newer"))
        nursery.start_soon(server.stop, 10.0)
        await until(lambda: not server.ready())
        gates.open("newer")
        await newer.response()
        await until(lambda: live(server) == 1)
        await fails(server.infer(sequence_request("a", 2)), UnavailableError, f"[request id: <id_unknown>] {text}")
        gates.open("older")
        await older.response()


async def test_through_an_ensemble(tmp_path: Path, gates: Gates) -> None:
    """The ensemble is loaded again with its member."""
    config = (
        'platform: "ensemble"\n'
        'input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        'ensemble_scheduling { step { model_name: "a" model_version: -1\n'
        '  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }\n'
    )
    write(tmp_path, "a", {1: 1}, LONG)
    write(tmp_path, "e", {1: 0}, config)
    async with serving(tmp_path, gates, "e") as server:
        assert await tell(server, 1, "s", model="e") == 1
        write(tmp_path, "a", {1: 2}, LONG)
        await server.load_model("a", {})
        assert await tell(server, 2, "s", model="e") == 2
        assert await tell(server, 1, model="e") == 1
        assert await tell(server, 1, "e", model="e") == 1
        await until(lambda: live(server) == 2)


async def test_a_stream_of_answers_goes_on_to_its_end(tmp_path: Path) -> None:
    """Of a decoupled model, while its model is loaded again and even unloaded."""
    script = Script()
    write_scripted_models(tmp_path)
    options = ServerOptions(
        model_repository=(tmp_path,), model_control_mode=ControlMode.EXPLICIT, startup_models=("many",)
    )
    async with InferenceServer(options, backends=script.backends()) as server:
        tensor = Tensor("IN", FP32, (1,), array=np.zeros(1, np.float32))
        request = InferenceRequest("many", inputs=[tensor], parameters={"script": "say wait:g say say!"})
        reply = await server.admit(request)
        answers: list[float] = []

        async def listen() -> None:
            async for response in reply.responses():
                answers.append(value_of(response))  # noqa: PERF401 - others look at the list meanwhile

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await until(lambda: answers)
            with later_change(tmp_path / "many"):
                (tmp_path / "many" / "1" / "new").write_text("")
            await server.load_model("many", {})
            assert live(server) == 2
            await server.unload_model("many")
            assert live(server) >= 1
            script.open("g")
        assert answers == [0, 1, 2]
        await until(lambda: live(server) == 0)
