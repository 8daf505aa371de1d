"""Requests that were executed together when a process died are executed again, each alone; who kills twice is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from python_models import CONFIG, ask, open_repository, write_model

from trireme.actors import InferenceServer
from trireme.engine.errors import InternalError, TriremeError

POISONOUS = """
    import os

    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            values = [int(request.inputs()[0].as_numpy()[0, 0]) for request in requests]
            with open(os.path.join(pb_utils.get_model_dir(), "executed"), "a") as log:
                log.write(f"{values}\\n")
            if 13 in values:
                os._exit(5)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())])
                    for r in requests]
"""
BATCHED = CONFIG + "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 60000000 }"
UNHEALTHY = "Stub process 'm_0' is not healthy."
KILLED_TWICE = (
    f"{UNHEALTHY} The request was executed again, alone, after an instance had died with the batch that it was in. "
    "This instance died of it, too; the request is not executed again."
)


async def together(server: InferenceServer, *values: int) -> dict[int, object]:
    """The answers to requests that make a batch."""
    outcomes: dict[int, object] = {}

    async def infer(value: int) -> None:
        try:
            response = await server.infer(ask("m", value))
            outcomes[value] = response.outputs[0].array.item()
        except TriremeError as error:
            outcomes[value] = error.message

    with trio.fail_after(60):
        async with trio.open_nursery() as clients:
            for value in values:
                clients.start_soon(infer, value)
                await trio.testing.wait_all_tasks_blocked()
    return outcomes


def executed(directory: Path) -> list[str]:
    return (directory / "1" / "executed").read_text().splitlines()


async def test_of_a_batch_that_killed_its_process_only_the_culprit_fails(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "m", POISONOUS, BATCHED)
    async with open_repository(tmp_path) as server:
        outcomes = await together(server, 1, 13, 3, 4)
        assert outcomes == {1: 1.0, 13: KILLED_TWICE, 3: 3.0, 4: 4.0}
        assert executed(directory) == ["[1, 13, 3, 4]", "[1]", "[13]", "[3]", "[4]"]
        (actor,) = server.model_statistics()
        assert (actor.restarts, actor.inflight) == (2, 0)
        assert server.budget_statistics().requests == 0
        (entry,) = server.statistics()
        assert entry.statistics.pending == 0


async def test_a_request_that_was_alone_is_not_executed_again(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "m", POISONOUS)
    async with open_repository(tmp_path) as server:
        with pytest.raises(InternalError) as caught:
            await server.infer(ask("m", 13))
        assert caught.value.message == UNHEALTHY
        assert (await server.infer(ask("m", 1))).outputs[0].array.item() == 1
        assert executed(directory) == ["[13]", "[1]"]


async def test_a_model_may_ask_not_to_be_asked_twice(tmp_path: Path) -> None:
    parameter = 'parameters { key: "RETRY_AFTER_CRASH" value { string_value: "false" } }'
    directory = write_model(tmp_path, "m", POISONOUS, BATCHED + parameter)
    async with open_repository(tmp_path) as server:
        outcomes = await together(server, 1, 13, 3, 4)
        assert outcomes == dict.fromkeys([1, 13, 3, 4], UNHEALTHY)
        assert executed(directory) == ["[1, 13, 3, 4]"]


async def test_what_is_neither_true_nor_false_fails_the_load(tmp_path: Path) -> None:
    parameter = 'parameters { key: "RETRY_AFTER_CRASH" value { string_value: "maybe" } }'
    write_model(tmp_path, "m", POISONOUS, BATCHED + parameter)
    async with open_repository(tmp_path, exit_on_error=False) as server:
        (entry,) = server.repository_index()
    assert "parameter 'RETRY_AFTER_CRASH' is 'maybe'; expected 'true' or 'false'" in entry.reason


async def test_a_request_whose_client_leaves_meanwhile_is_not_executed_again(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "m", POISONOUS, BATCHED)
    async with open_repository(tmp_path) as server:
        replies = [await server.admit(ask("m", value)) for value in (1, 13, 3, 4)]
        with trio.fail_after(60):
            while server.model_statistics()[0].instances_alive != 0:
                await trio.testing.wait_all_tasks_blocked()
            with server.turn:
                replies[2].cancel()
            assert replies[2].final
            assert (await replies[0].response()).outputs[0].array.item() == 1
            assert (await replies[3].response()).outputs[0].array.item() == 4
        assert "[3]" not in executed(directory)
        assert server.budget_statistics().requests == 0


async def test_a_server_that_stops_answers_those_who_wait_to_be_executed_again(tmp_path: Path) -> None:
    write_model(tmp_path, "m", POISONOUS, BATCHED)
    async with open_repository(tmp_path, exit_timeout_s=0) as server:
        replies = [await server.admit(ask("m", value)) for value in (1, 13, 3, 4)]
        with trio.fail_after(60):
            while server.model_statistics()[0].instances_alive != 0:
                await trio.testing.wait_all_tasks_blocked()
    assert all(reply.final for reply in replies)
    assert server.budget_statistics().requests == 0
