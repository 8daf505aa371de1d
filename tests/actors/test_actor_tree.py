"""The tree of actors, as people see it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_server import gated_server
from http_sockets import until
from trio.testing import wait_all_tasks_blocked

from trireme.actors import actor_tree
from trireme.engine.datatypes import FP32
from trireme.engine.description import ActorNode
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor


def one_request() -> InferenceRequest:
    return InferenceRequest("gated", inputs=[Tensor("IN", FP32, (1, 1), b"\0\0\0\0")])


def find(tree: ActorNode, kind: str) -> list[ActorNode]:
    found = [tree] if tree.kind == kind else []
    return [*found, *(each for child in tree.children for each in find(child, kind))]


async def test_a_server_at_rest_and_at_work(tmp_path: Path) -> None:
    async with gated_server(tmp_path, models=("gated", "other")) as running:
        tree = running.server.actors()
        assert (tree.kind, tree.name, tree.state) == ("server", "triton", "serving")
        (repository,) = find(tree, "repository")
        assert [(each.kind, each.name, each.state) for each in repository.children] == [
            ("model", "gated version 1", "READY"),
            ("model", "other version 1", "READY"),
        ]
        gated = repository.children[0]
        assert [(each.kind, each.name, each.state) for each in gated.children] == [
            ("scheduler", "gated", "serving"),
            ("instance", "gated_0_0", "serving"),
        ]
        assert gated.children[1].detail == "idle"
        assert gated.children[1].room > 1
        replies = [await running.server.admit(one_request()) for _ in range(3)]
        await wait_all_tasks_blocked()
        scheduler, instance = running.server.actors().children[-1].children[0].children
        assert scheduler.detail == "3 in flight, 2 of them queued"
        assert instance.detail == "executing 1 row"
        running.gate.set()
        for reply in replies:
            await reply.response()


async def test_the_rate_limiter_is_an_actor_of_its_own(tmp_path: Path) -> None:
    async with gated_server(tmp_path, rate_limit=True) as running:
        assert [each.kind for each in running.server.actors().children] == ["rate limiter", "repository"]


async def test_restarts_are_counted_at_the_instance_and_the_model(tmp_path: Path) -> None:
    async with gated_server(tmp_path) as running:
        model = running.server._repository.models()[0]
        assert model.instances is not None
        seat = model.instances._seats[0]
        assert seat.instance is not None
        seat.instance.fail(RuntimeError("it fell over"))
        await until(lambda: seat.alive and seat.restarts > 0)
        tree = running.server.actors()
        assert [each.restarts for kind in ("model", "instance") for each in find(tree, kind)] == [1, 1]


async def test_many_models_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_tree, "MOST_MODELS", 1)
    async with gated_server(tmp_path, models=("a", "b", "c")) as running:
        names = [each.name for each in find(running.server.actors(), "repository")[0].children]
        assert names == ["a version 1", "and 2 more"]


async def test_an_unloaded_model_says_so(tmp_path: Path) -> None:
    async with gated_server(tmp_path) as running:
        await running.server.stop(5.0)
        tree = running.server.actors()
        assert tree.state == "exiting"
        (model,) = find(tree, "model")
        assert (model.state, model.detail) == ("UNAVAILABLE", "unloaded")
