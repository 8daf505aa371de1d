"""Targets of routes that there are not: what is refused when a route is set, and where it stands in the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from later_files import later_change
from valued_models import CONFIG, CONFIG_JSON, Gates, value_of, valued_request, write_model
from valued_server import fails, serving, until

from trireme.actors import InferenceServer
from trireme.actors.route_file import RouteFile
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.options import ControlMode
from trireme.engine.repository.local import LocalModel
from trireme.engine.repository.source import Scan

BOTH = CONFIG + "version_policy { all {} }\n"
WIDE = CONFIG.replace("dims: [ 1 ]", "dims: [ 2 ]", 1)
AGENTS = CONFIG + 'model_repository_agents { agents { name: "a" } }\n'


def not_served(target: str, versions: str) -> str:
    model = target.partition(":")[0]
    return (
        f"route 'r': target '{target}' is a version that is not served, expected one that the version policy of "
        f"'{model}' chooses: {versions}"
    )


async def set_route(server: InferenceServer, target: str, **others: Any) -> None:
    await server.management.set_route("r", {"targets": {target: 100}, **others})


async def why(server: InferenceServer) -> str:
    """What the status says of the first target."""
    (shown,) = await server.management.route_status("r")
    return shown["state"]["targets"][0]["why"]


async def test_versions_that_a_model_does_not_serve_are_refused(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2, 3: 3})
    write_model(tmp_path, "cold", {1: 1, 2: 2, 3: 3})
    write_model(tmp_path, "many", dict.fromkeys(range(1, 12), 1), BOTH)
    async with serving(tmp_path, gates, "a") as server:
        for model in ("a", "cold"):
            await fails(set_route(server, f"{model}:1"), InvalidArgumentError, not_served(f"{model}:1", "3"))
            await set_route(server, f"{model}:3")
        shadow = {"target": "a:4"}
        await fails(set_route(server, "a", shadow=shadow), InvalidArgumentError, not_served("a:4", "3"))
        said = not_served("many:12", "1, 2, 3, 4, 5, 6, 7, 8 and 3 more")
        await fails(set_route(server, "many:12"), InvalidArgumentError, said)
        await server.unload_model("a")
        await until(lambda: not server.routes._repository.living_of("a"))
        await set_route(server, "a")
        assert await why(server) == "model 'a' is not loaded"
        await fails(set_route(server, "a:2"), InvalidArgumentError, not_served("a:2", "3"))


async def test_a_version_that_the_next_load_brings_is_served(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2})
    async with serving(tmp_path, gates, "a") as server:
        write_model(tmp_path, "a", {1: 1, 2: 2, 3: 3}, BOTH)
        for version in (1, 2, 3):
            await set_route(server, f"a:{version}")
        assert await why(server) == "Request for unknown model: 'a' version 3 is not found"
        await server.load_model("a", {})
        assert value_of(await server.infer(valued_request("r"))) == 3


async def test_what_cannot_be_told_before_a_load_is_said_by_the_status(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1})
    write_model(tmp_path, "broken", {1: 1}, "input {")
    write_model(tmp_path, "none", {})
    write_model(tmp_path, "managed", {1: 1}, AGENTS)
    async with serving(tmp_path, gates, "a") as server:
        for model in ("broken", "none", "managed"):
            await set_route(server, f"{model}:2")
            assert await why(server) == f"model '{model}' is not loaded"
        (tmp_path / "a" / "config.pbtxt").write_text("input {")
        await fails(set_route(server, "a:2"), InvalidArgumentError, not_served("a:2", "1"))


class _Stored:
    """A repository in an object store, whose models would have to be fetched."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def scan(self) -> Scan:
        class Stored(LocalModel):
            distant = True

        return Scan((Stored(self._directory),))


async def test_models_are_not_fetched_to_look_at_their_versions(tmp_path: Path, gates: Gates) -> None:
    source = _Stored(write_model(tmp_path, "a", {1: 1}))
    async with serving(tmp_path, gates, source=source) as server:
        await set_route(server, "a:2")
        await server.load_model("a", {})
        await fails(set_route(server, "a:2"), InvalidArgumentError, not_served("a:2", "1"))


async def test_versions_of_a_model_that_came_with_a_request(tmp_path: Path, gates: Gates) -> None:
    async with serving(tmp_path, gates) as server:
        await server.load_model("n", {"config": CONFIG_JSON % ("n", ""), "file:2/value.txt": b"4"})
        await fails(set_route(server, "n:1"), InvalidArgumentError, not_served("n:1", "2"))
        await set_route(server, "n:2")
        await server.unload_model("n")
        await set_route(server, "n:1")  # it may come back with that


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("targets = { 'none' = 100 }", "2: routes.r.targets.none: target 'none' is unknown, expected a model of the "),
        ("[routes.r.targets]\n'a:1' = 50\n'a:7' = 50", "4: routes.r.targets.a:7: target 'a:7' is a version that is "),
        ("targets.'a:1' = 50\ntargets.wide = 50", "3: routes.r.targets.wide: target 'wide': input 'IN' is FP32[2], "),
        ("targets.a = 100\n[routes.r.shadow]\ntarget = 'b'", "4: routes.r.shadow.target: target 'b' is unknown, exp"),
    ],
)
async def test_the_line_of_the_file_is_told(tmp_path: Path, gates: Gates, lines: str, said: str) -> None:
    write_model(tmp_path / "models", "a", {1: 1, 2: 2}, BOTH)
    write_model(tmp_path / "models", "wide", {1: 1}, WIDE)
    path = tmp_path / "routes.toml"
    path.write_text(f"[routes.r]\n{lines}\n")
    async with serving(tmp_path / "models", gates, "a", "wide") as server:
        with pytest.raises(InvalidArgumentError, match=f"^{re.escape(f'{path}:{said}')}"):
            await RouteFile(path).follow(server.routes)
        assert not server.routes.names


async def test_the_file_changes_whatever_became_of_routes_that_were_set_meanwhile(
    tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / "models", name, {1: 1})
    path = tmp_path / "routes.toml"
    path.write_text("")
    async with serving(tmp_path / "models", gates, model_control_mode=ControlMode.EXPLICIT) as server:
        file = RouteFile(path)
        await file.follow(server.routes)
        await set_route(server, "b")
        (tmp_path / "models" / "b").rename(tmp_path / "b")
        with later_change(path):
            path.write_text("[routes.s]\ntargets.a = 100\n")
        caplog.set_level("INFO", "trireme.routes")
        await file.look(server.routes)
        assert caplog.messages == ["the file of routes was read again, it has 1"]
        assert server.routes.names == ["r", "s"]
        with later_change(path):
            path.write_text("[routes.b]\ntargets.a = 100\n")
        await file.look(server.routes)
        assert server.routes.names == ["r", "s"]
        said = "the file of routes is refused, the routes stay as they were: route 'r': target 'b' is a route, expected"
        assert caplog.messages[-1].startswith(said)
