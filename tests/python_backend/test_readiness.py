"""`is_ready`: models without it are not asked, it may take its time, and nothing is left of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from python_models import (
    CONFIG,
    IDENTITY,
    ask,
    child_processes,
    leap,
    open_descriptors,
    open_repository,
    until,
    write_model,
)
from trio.testing import MockClock

from trireme.actors.instance import ReadinessCheck
from trireme.python_backend.instance import PythonInstance

IN_PROCESS = CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'

READY = (
    IDENTITY
    + """
        def is_ready(self):
            return True
"""
)
COROUTINE = (
    IDENTITY
    + """
        async def is_ready(self):
            import asyncio, sys
            trio = sys.modules.get("trio")  # it is there in the server's process only
            await (trio.lowlevel.checkpoint() if trio else asyncio.sleep(0))
            return True
"""
)
STUCK = (
    IDENTITY
    + """
        def initialize(self, args):
            self.gate = args["model_repository"] + "/gate"

        def is_ready(self):
            with open(self.gate) as gate:
                return gate.read() == "open"
"""
)
STUCK_COROUTINE = (
    IDENTITY
    + """
        def initialize(self, args):
            self.gate = args["model_repository"] + "/gate"

        async def is_ready(self):
            import asyncio, sys
            open(self.gate).close()
            trio = sys.modules.get("trio")
            await (trio.sleep_forever() if trio else asyncio.Event().wait())
"""
)


@pytest.mark.parametrize("config", [CONFIG, IN_PROCESS])
@pytest.mark.parametrize("code", [IDENTITY, READY, COROUTINE])
async def test_nothing_is_left_of_a_check(tmp_path: Path, code: str, config: str) -> None:
    write_model(tmp_path, "m", code, config)
    before = open_descriptors()
    async with open_repository(tmp_path) as server:
        for _ in range(3):
            assert await server.check_model_ready("m")
            assert await server.check_ready()
            assert (await server.infer(ask("m", 1))).outputs[0].array.tolist() == [[1]]
    await until(lambda: open_descriptors() <= before)


async def test_a_model_without_is_ready_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[PythonInstance] = []
    monkeypatch.setattr(PythonInstance, "ask_ready", asked.append)
    write_model(tmp_path, "m")
    async with open_repository(tmp_path) as server:
        question = server.check_model_ready("m")
        with pytest.raises(StopIteration) as answer:
            question.send(None)  # it waits for nothing
        assert answer.value.value is True
    assert asked == []


@pytest.mark.parametrize(
    ("code", "config"),
    [(STUCK, CONFIG), (STUCK, IN_PROCESS), (STUCK_COROUTINE, CONFIG), (STUCK_COROUTINE, IN_PROCESS)],
)
async def test_a_check_that_goes_on_does_not_hold_up_the_end(tmp_path: Path, code: str, config: str) -> None:
    directory = write_model(tmp_path, "m", code, config)
    os.mkfifo(directory / "gate")
    before = child_processes(), open_descriptors()
    async with open_repository(tmp_path) as server, trio.open_nursery() as nursery:
        nursery.start_soon(server.check_model_ready, "m")
        held = await trio.to_thread.run_sync((directory / "gate").open, "w")  # it has been asked
        assert (await server.infer(ask("m", 1))).outputs[0].array.tolist() == [[1]]
        nursery.cancel_scope.cancel()
    await until(lambda: child_processes() <= before[0])
    held.close()
    await until(lambda: open_descriptors() <= before[1])


async def test_models_ask_each_other_too_and_none_waits_for_itself_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaping_clock: MockClock
) -> None:
    monkeypatch.setattr(ReadinessCheck.__init__, "__defaults__", (20.0,))
    asked = (
        IDENTITY
        + """
        def is_ready(self):
            import os
            return not os.path.exists(os.path.join(pb_utils.get_model_dir(), "tired"))
"""
    )
    asking = """
        import numpy as np
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                names = ("asked", "asking", "narcissus", "nobody")
                if requests[0].inputs()[0].as_numpy()[0, 0] == 2:
                    names = names[:2]
                found = [float(pb_utils.is_model_ready(name)) for name in names]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([found], np.float32))])]
    """
    narcissus = (
        IDENTITY
        + """
        def is_ready(self):
            open(pb_utils.get_model_dir() + "/begun", "w").close()
            return pb_utils.is_model_ready("narcissus")
"""
    )
    directory = write_model(tmp_path, "asked", asked)
    write_model(tmp_path, "asking", asking)
    begun = write_model(tmp_path, "narcissus", narcissus) / "1" / "begun"
    async with open_repository(tmp_path) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leap, leaping_clock, 20, begun.exists)  # by then no other is being asked
            assert (await server.infer(ask("asking", 1))).outputs[0].array.tolist() == [[1, 1, 0, 0]]
        (directory / "1" / "tired").touch()
        assert (await server.infer(ask("asking", 2))).outputs[0].array.tolist() == [[0, 1]]
