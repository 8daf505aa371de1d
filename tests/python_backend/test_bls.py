"""Models that ask other models (docs/reference/python-backend.md#requests-to-other-models)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import trio
from calling_models import ADD_ONE, DECOUPLED, HEAD, REPEAT, TEXT, UNTIL_CANCELLED, answer, chain, counts_down
from python_models import CONFIG, IDENTITY, ask, child_processes, open_repository, until, write_model

from trireme.engine.errors import InternalError, TriremeError


async def test_a_chain_of_models(tmp_path: Path) -> None:
    write_model(tmp_path, "c", ADD_ONE)
    write_model(tmp_path, "b", chain("c"))
    write_model(tmp_path, "a", chain("b"))
    async with open_repository(tmp_path) as server:
        for value in range(20):
            assert await answer(server, "a", value) == value + 1
        counts = {entry.name: entry.statistics.inference_count for entry in server.statistics()}
        assert counts == {"a": 20, "b": 20, "c": 20}


async def test_calls_of_a_coroutine_overlap(tmp_path: Path) -> None:
    """Two instances of the target, which wait for each other."""
    target = (
        HEAD
        + """
        def execute(self, requests):
            open(os.path.join(pb_utils.get_model_dir(), str(os.getpid())), "w").close()
            while len([n for n in os.listdir(pb_utils.get_model_dir()) if n.isdigit()]) < 2:
                time.sleep(0.01)
            return [response(value_of(request) + 1) for request in requests]
"""
    )
    code = (
        HEAD
        + """
        async def execute(self, requests):
            answers = await asyncio.gather(*[call("t", value).async_exec() for value in (1, 2)])
            return [response(sum(value_of(answer) for answer in answers))]
"""
    )
    write_model(tmp_path, "t", target, CONFIG + "instance_group [{ kind: KIND_CPU count: 2 }]")
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        assert await answer(server, "m", 0) == 5


async def test_thousands_of_calls_at_once_are_answered(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        async def execute(self, requests):
            answers = await asyncio.gather(*[call("t", value).async_exec() for value in range(1500)])
            return [response(sum(value_of(answer) for answer in answers))]
"""
    )
    write_model(tmp_path, "t", ADD_ONE)
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path, max_inflight_requests=4) as server:
        assert await answer(server, "m", 0) == sum(range(1, 1501))
        assert server.budget_statistics().requests == 0


async def test_responses_of_decoupled_models_are_iterated(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def execute(self, requests):
            values = []
            for part in call("r", value_of(requests[0])).exec(decoupled=True):
                if part.output_tensors():
                    values.append(value_of(part))
            for part in call("t", 6).exec(decoupled=True):
                values.append(value_of(part))
            return [text(values)]
"""
    )
    write_model(tmp_path, "r", REPEAT, DECOUPLED)
    write_model(tmp_path, "t", ADD_ONE)
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        for count in (0, 1, 100):
            assert json.loads(await answer(server, "m", count)) == [*range(count), 7]


async def test_a_coroutine_iterates_too(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        async def execute(self, requests):
            values = []
            async for part in await call("r", 40).async_exec(decoupled=True):
                if part.output_tensors():
                    values.append(value_of(part))
            return [text(values)]
"""
    )
    write_model(tmp_path, "r", REPEAT, DECOUPLED)
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        assert json.loads(await answer(server, "m", 0)) == list(range(40))


async def test_a_response_iterator_that_is_dropped_frees_its_model(tmp_path: Path) -> None:
    """Although it had many responses to give, and room for a few."""
    code = (
        HEAD
        + """
        def execute(self, requests):
            for part in call("r", 500).exec(decoupled=True):
                break
            return [text(said(part))]
"""
    )
    write_model(tmp_path, "r", REPEAT, DECOUPLED)
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        assert await answer(server, "m", 0) == "0.0"
        await until(lambda: server.budget_statistics().requests == 0)
        assert await answer(server, "m", 0) == "0.0"


FAILURES = {
    "an unknown model": (
        'call("nosuch", 1).exec()',
        (
            "Model nosuch - Error when running inference: Failed for execute the inference request. Model 'nosuch' "
            "is not ready."
        ),
    ),
    "a decoupled model": (
        'call("r", 1).exec()',
        (
            "Model r - Error when running inference: Model r is using the decoupled. The current BLS request call "
            "doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' argument to "
            "the 'exec' or 'async_exec' calls for decoupled models.'"
        ),
    ),
    "an output that is not there": (
        'call("t", 1, wanted=["NONE"]).exec()',
        ("Model t - Error when running inference: unexpected inference output 'NONE' for model 't'"),
    ),
    "oneself": (
        'call("m", 1).exec()',
        (
            "Model m - Error when running inference: all 1 instances of model 'm' wait for the answer to this very "
            "request, so that it could never be executed"
        ),
    ),
    "another model that asks oneself": (
        'call("back", 1).exec()',
        (
            "Model m - Error when running inference: all 1 instances of model 'm' wait for the answer to this very "
            "request, so that it could never be executed"
        ),
    ),
    "a model that fails": ('call("bad", 1).exec()', "out of luck"),
}


async def test_failures_are_responses(tmp_path: Path) -> None:
    code = (
        HEAD
        + f"""
        def execute(self, requests):
            value = int(value_of(requests[0]))
            return [text(said([{", ".join(f"lambda: {what}" for what, _ in FAILURES.values())}][value]()))]
"""
    )
    bad = (
        HEAD
        + """
        def execute(self, requests):
            error = pb_utils.TritonError("out of luck", pb_utils.TritonError.NOT_FOUND)
            return [pb_utils.InferenceResponse(error=error)]
"""
    )
    write_model(tmp_path, "m", code, TEXT)
    write_model(tmp_path, "r", REPEAT, DECOUPLED)
    write_model(tmp_path, "t", ADD_ONE)
    write_model(tmp_path, "bad", bad)
    write_model(tmp_path, "back", chain("m"), TEXT)
    async with open_repository(tmp_path) as server:
        for number, (_, expected) in enumerate(FAILURES.values()):
            assert await answer(server, "m", number) == expected


async def test_recursion_works_as_deep_as_there_are_instances(tmp_path: Path) -> None:
    write_model(tmp_path, "m", counts_down("m"), TEXT + "instance_group [{ kind: KIND_CPU count: 3 }]")
    async with open_repository(tmp_path) as server:
        assert await answer(server, "m", 2) == "bottom!!"
        assert "all 3 instances of model 'm' wait for the answer" in await answer(server, "m", 3)


async def test_calls_do_not_wait_for_the_room_that_their_maker_takes(tmp_path: Path) -> None:
    """The server has room for one request, which is the one that asks."""
    write_model(tmp_path, "t", ADD_ONE)
    write_model(tmp_path, "m", chain("t"))
    async with open_repository(tmp_path, max_inflight_requests=1) as server, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(answer, server, "m", 1)
    assert server.budget_statistics().requests == 0


async def test_who_leaves_takes_the_calls_made_for_it_along(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "t", UNTIL_CANCELLED) / "1"
    write_model(tmp_path, "m", chain("t"))
    async with open_repository(tmp_path) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.infer, ask("m", 1))
            await until((directory / "began").exists)
            nursery.cancel_scope.cancel()
        await until((directory / "noticed").exists)


async def test_calls_are_cancelled_when_who_made_them_dies(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def initialize(self, args):
            with open(os.path.join(pb_utils.get_model_dir(), "pid"), "w") as file:
                file.write(str(os.getpid()))

        def execute(self, requests):
            return [call("t", 1).exec()]
"""
    )
    directory = write_model(tmp_path, "t", UNTIL_CANCELLED) / "1"
    maker = write_model(tmp_path, "m", code) / "1"
    async with open_repository(tmp_path) as server:
        async with trio.open_nursery() as nursery:

            async def go() -> None:
                with pytest.raises(InternalError, match="Stub process 'm_0' is not healthy"):
                    await server.infer(ask("m", 1))

            nursery.start_soon(go)
            await until((directory / "began").exists)
            os.kill(int((maker / "pid").read_text()), signal.SIGKILL)
        await until(lambda: server.budget_statistics().requests == 0)
        await until(lambda: len(child_processes()) == 2)


async def test_large_tensors_pass_through(tmp_path: Path) -> None:
    write_model(tmp_path, "t", IDENTITY)
    code = (
        HEAD
        + """
        def execute(self, requests):
            request = pb_utils.InferenceRequest(
                model_name="t", inputs=requests[0].inputs(), requested_output_names=["OUTPUT0"]
            )
            return [request.exec()]
"""
    )
    write_model(tmp_path, "m", code)
    values = np.arange(1 << 20, dtype=np.float32)
    async with open_repository(tmp_path) as server:
        response = await server.infer(ask("m", *values.tolist()))
        np.testing.assert_array_equal(response.outputs[0].array[0], values)


async def test_calls_that_fail_later_than_the_rest_still_fail_alone(tmp_path: Path) -> None:
    """Errors of a decoupled model in the middle of its responses."""
    target = (
        HEAD
        + """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            sender.send(response(1))
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("half way")))
            sender.send(response(2), FINAL)
"""
    )
    code = (
        HEAD
        + """
        def execute(self, requests):
            return [text([said(part) for part in call("t", 1).exec(decoupled=True)])]
"""
    )
    write_model(tmp_path, "t", target, DECOUPLED)
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        try:
            assert await answer(server, "m", 0) == "[1.0, 'half way', 2.0]"
        except TriremeError as error:
            raise AssertionError(error.message) from None


async def test_awaiting_a_decoupled_call_waits_for_its_first_response(tmp_path: Path) -> None:
    """So coroutines that go on with a plain loop still ask side by side: each of these models answers only when the
    other has been asked, too."""
    late = (
        HEAD
        + """
        def execute(self, requests):
            directory = pb_utils.get_model_dir()
            mine, other = ("first", "second") if value_of(requests[0]) == 1 else ("second", "first")
            open(os.path.join(directory, mine), "w").close()
            while not os.path.exists(os.path.join(directory, other)):
                time.sleep(0.01)
            sender = requests[0].get_response_sender()
            sender.send(response(value_of(requests[0])))
            sender.send(flags=FINAL)
"""
    )
    code = (
        HEAD
        + """
        async def execute(self, requests):
            async def ask(value):
                return [said(part) for part in await call("late", value).async_exec(decoupled=True)
                        if part.output_tensors()]
            return [text(await asyncio.gather(ask(1), ask(2)))]
"""
    )
    write_model(tmp_path, "late", late, DECOUPLED + "\ninstance_group { count: 2 kind: KIND_CPU }")
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        with trio.fail_after(60):
            assert await answer(server, "m", 0) == "[[1.0], [2.0]]"


async def test_awaiting_a_decoupled_call_that_is_cancelled_gives_it_up(tmp_path: Path) -> None:
    patient = (
        HEAD
        + """
        def execute(self, requests):
            directory = pb_utils.get_model_dir()
            open(os.path.join(directory, "began"), "w").close()
            sender = requests[0].get_response_sender()
            while not sender.is_cancelled():
                time.sleep(0.01)
            open(os.path.join(directory, "noticed"), "w").close()
            sender.send(flags=FINAL)
"""
    )
    code = (
        HEAD
        + f"""
        async def execute(self, requests):
            task = asyncio.ensure_future(self.ask())
            while not os.path.exists({str(tmp_path / "patient" / "1" / "began")!r}):
                await asyncio.sleep(0.01)
            task.cancel()
            return [text((await asyncio.gather(task, return_exceptions=True))[0].__class__.__name__)]

        async def ask(self):
            await call("patient", 1).async_exec(decoupled=True)
"""
    )
    directory = write_model(tmp_path, "patient", patient, DECOUPLED) / "1"
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        assert await answer(server, "m", 0) == "CancelledError"
        await until((directory / "noticed").exists)
