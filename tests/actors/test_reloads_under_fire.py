"""Clients infer without a pause while their model is loaded again and again: no error, no mixed answer."""

from __future__ import annotations

from pathlib import Path

import trio
from valued_models import CONFIG, CONFIG_JSON, Gates, ensemble_config, value_of, valued_request, write_model
from valued_server import serving, until

from trireme.actors import InferenceServer

RELOADS = 50
CLIENTS = 4
POLICY = "version_policy { latest { num_versions: 1 } } instance_group { count: 2 kind: KIND_CPU }"


async def test_reloads_version_changes_and_overrides(tmp_path: Path, gates: Gates) -> None:
    """In generation g version g adds g, so the version that an answer names, OUT and BY must be one number; and what
    one client is told never goes back."""
    write_model(tmp_path, "a", {1: 1}, CONFIG + POLICY)
    answers = 0

    async def ask_on(server: InferenceServer) -> None:
        nonlocal answers
        last = 0
        while True:
            response = await server.infer(valued_request("a"))
            told = {response.model_version, value_of(response), value_of(response, "BY")}
            assert len(told) == 1, f"an answer of several generations: {told}"
            assert response.model_version >= last
            last = response.model_version
            answers += 1

    async with serving(tmp_path, gates, "a") as server, trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(ask_on, server)
        for generation in range(2, RELOADS + 2):
            before = answers
            if generation % 5 == 0:
                config = CONFIG_JSON % ("a", "")
                file = {f"file:{generation}/value.txt": str(generation).encode()}
                await server.load_model("a", {"config": config, **file})
            else:
                write_model(tmp_path, "a", {generation: generation}, CONFIG + POLICY)
                await server.load_model("a", {})
            assert server.model_ready("a")
            assert server.describe("a").version == generation
            await until(lambda before=before: answers > before)
        nursery.cancel_scope.cancel()
    assert answers >= RELOADS


async def test_reloads_of_the_same_version_and_of_a_member(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1})
    write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
    answers = dict.fromkeys("ae", 0)

    async def ask_on(server: InferenceServer, model: str) -> None:
        last = 0.0
        while True:
            value = value_of(await server.infer(valued_request(model)))
            assert value >= last
            last = value
            answers[model] += 1

    async with serving(tmp_path, gates, "e") as server, trio.open_nursery() as nursery:
        for model in "aeae":
            nursery.start_soon(ask_on, server, model)
        for generation in range(2, RELOADS + 2):
            before = dict(answers)
            write_model(tmp_path, "a", {1: generation})
            await server.load_model("a", {})
            assert value_of(await server.infer(valued_request("e"))) == generation
            await until(lambda before=before: all(answers[model] > before[model] for model in "ae"))
        nursery.cancel_scope.cancel()
