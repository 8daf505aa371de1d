"""Models that wait for themselves: what is recognised, and how the rest ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from calling_models import HEAD, TEXT, answer, chain, counts_down
from python_models import ask, leap, open_repository, until, write_model
from trio.testing import MockClock

from trireme.actors import InferenceServer
from trireme.engine.errors import TriremeError

ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 8
    input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
    output [{ name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] }]
    ensemble_scheduling { step [{
        model_name: "m"
        model_version: -1
        input_map { key: "INPUT0" value: "INPUT0" }
        output_map { key: "OUTPUT0" value: "OUTPUT0" }
    }] }
"""


@pytest.mark.parametrize("instances", [1, 2])
async def test_a_model_that_asks_itself_through_an_ensemble_is_told(tmp_path: Path, instances: int) -> None:
    write_model(tmp_path, "m", counts_down("e"), TEXT + f"instance_group [{{ kind: KIND_CPU count: {instances} }}]")
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(ENSEMBLE)
    async with open_repository(tmp_path) as server:
        with trio.fail_after(30):
            deepest = await answer(server, "m", instances - 1)
            assert deepest == "bottom" + "!" * (instances - 1)
            assert f"all {instances} instances of model 'm' wait for the answer" in await answer(server, "m", instances)


async def test_a_chain_that_comes_back_through_an_ensemble_is_told(tmp_path: Path) -> None:
    """m asks n, which asks e, of which m is the only step."""
    write_model(tmp_path, "m", counts_down("n"), TEXT)
    write_model(tmp_path, "n", chain("e"), TEXT)
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(ENSEMBLE)
    async with open_repository(tmp_path) as server:
        with trio.fail_after(30):
            assert "all 1 instances of model 'm' wait for the answer" in await answer(server, "m", 1)


def waiting(other: str) -> str:
    """A model that asks another one as soon as that executes something, too."""
    return (
        HEAD
        + f"""
        def execute(self, requests):
            value = value_of(requests[0])
            if not value:
                return [response(1)]
            here = os.path.join(pb_utils.get_model_dir(), "began")
            open(here, "w").close()
            while not os.path.exists(os.path.join(pb_utils.get_model_dir(), "..", "..", {other!r}, "1", "began")):
                time.sleep(0.01)
            return [call({other!r}, 0).exec()]
"""
    )


async def outcome(server: InferenceServer, model: str, outcomes: dict[str, object]) -> None:
    try:
        outcomes[model] = await answer(server, model, 1)
    except TriremeError as error:
        outcomes[model] = error.message


async def test_two_chains_that_wait_for_each_other_go_on_when_one_client_leaves(tmp_path: Path) -> None:
    """Until then they wait: a model may give up its own request at any moment, so the server cannot know that they are
    stuck."""
    a = write_model(tmp_path, "a", waiting("b"))
    b = write_model(tmp_path, "b", waiting("a"))
    outcomes: dict[str, object] = {}
    async with open_repository(tmp_path) as server:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outcome, server, "b", outcomes)
                async with trio.open_nursery() as leaving:
                    leaving.start_soon(server.infer, ask("a", 1))
                    await until(lambda: all((directory / "1" / "began").exists() for directory in (a, b)))
                    await trio.sleep(0.2)  # long enough for both to ask, and if not, it passes all the same
                    leaving.cancel_scope.cancel()
            assert outcomes == {"b": 1}
            assert await answer(server, "a", 0) == 1
        # What was asked for the client that left ends, too.
        await until(lambda: server.budget_statistics().requests == 0)


async def test_two_chains_that_wait_for_each_other_end_by_the_hang_limit(
    tmp_path: Path, leaping_clock: MockClock
) -> None:
    write_model(tmp_path, "a", waiting("b"))
    write_model(tmp_path, "b", waiting("a"))
    outcomes: dict[str, object] = {}
    async with open_repository(tmp_path, hang_limit_s=20) as server:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for model in ("a", "b"):
                    nursery.start_soon(outcome, server, model, outcomes)
                nursery.start_soon(leap, leaping_clock, 20, lambda: server.budget_statistics().requests == 4)
            assert "gave no answer within 20 s and was given up" in str(outcomes)
            for model in ("a", "b"):
                assert await answer(server, model, 0) == 1
