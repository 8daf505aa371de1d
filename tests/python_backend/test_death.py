"""A model's process may die at any moment: its requests are answered, it comes back, nothing is left over."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import trio
from python_models import (
    CONFIG,
    IDENTITY,
    ask,
    child_processes,
    fp32,
    leap,
    open_descriptors,
    open_repository,
    until,
    until_alive,
    write_model,
)
from trio.testing import MockClock

from trireme.actors import InferenceServer
from trireme.engine.errors import InternalError, TriremeError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceRequest
from trireme.python_backend.child import protocol
from trireme.python_backend.child.channel import Letter
from trireme.python_backend.child.codec import Message
from trireme.python_backend.instance import PythonInstance

DEADLY = """
    import ctypes
    import os
    import signal
    import sys
    import threading
    import time

    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            value = requests[0].inputs()[0].as_numpy()[0, 0]
            if value == 1:
                os._exit(5)
            if value == 2:
                ctypes.string_at(0)
            if value == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            if value == 4:
                sys.exit(4)
            if value == 5:
                while True:
                    time.sleep(60)
            if value == 6:
                threading.Thread(target=os._exit, args=(1,)).start()
                time.sleep(60)
            if value == 7:
                os.fork() or time.sleep(3)  # another process still holds the socket
                os.kill(os.getpid(), signal.SIGKILL)
            if value == 9:
                helper = os.fork()
                if not helper:
                    os._exit(0)
                os.waitpid(helper, 0)
                while "trireme reader" not in [thread.name for thread in threading.enumerate()]:
                    time.sleep(0.01)
            if value >= 8:
                os.closerange(3, 1000)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())])
                    for r in requests]
"""

UNHEALTHY = "Stub process 'm_0' is not healthy."


@pytest.mark.parametrize("way", [1, 2, 3, 6, 7, 8, 9])
async def test_a_death_is_the_specified_error_and_the_process_comes_back(tmp_path: Path, way: int) -> None:
    write_model(tmp_path, "m", DEADLY)
    write_model(tmp_path, "other")
    before = child_processes(), open_descriptors()
    async with open_repository(tmp_path) as server:
        with pytest.raises(InternalError) as caught:
            await server.infer(ask("m", way))
        assert caught.value.message == UNHEALTHY
        assert (await server.infer(ask("other", 1))).outputs[0].array.tolist() == [[1]]
        assert (await server.infer(ask("m", 0))).outputs[0].array.tolist() == [[0]]
        (actor,) = [actor for actor in server.model_statistics() if actor.name == "m"]
        assert (actor.restarts, actor.instances_alive) == (1, 1)
        assert len(child_processes()) == 2
        assert server.budget_statistics().requests == 0
    assert child_processes() <= before[0]
    await until(lambda: open_descriptors() <= before[1])


async def test_exit_in_execute_is_an_error_of_the_request_only(tmp_path: Path) -> None:
    write_model(tmp_path, "m", DEADLY)
    async with open_repository(tmp_path) as server:
        with pytest.raises(InternalError, match="SystemExit: 4"):
            await server.infer(ask("m", 4))
        assert server.model_statistics()[0].restarts == 0


async def test_a_batch_that_hangs_is_given_up_and_its_process_ended(tmp_path: Path, leaping_clock: MockClock) -> None:
    write_model(tmp_path, "m", DEADLY)
    async with open_repository(tmp_path, hang_limit_s=20) as server:
        before = child_processes()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leap, leaping_clock, 20)
            with pytest.raises(InternalError, match=r"instance 'm_0' gave no answer within 20 s and was given up"):
                await server.infer(ask("m", 5))
        assert (await server.infer(ask("m", 0))).outputs[0].array.tolist() == [[0]]
        assert len(child_processes()) == 1
        assert child_processes() != before


@pytest.mark.parametrize("defect", [RuntimeError, KeyError])
async def test_a_batch_that_cannot_be_begun_takes_no_answer_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: type[Exception]
) -> None:
    """It is to begin when the one before is over, whose answer is still to go: that goes, and an error for its own."""
    write_model(tmp_path, "m")
    prepare = PythonInstance.prepare
    prepared: list[ExecutionBatch] = []

    def fail_second(self: PythonInstance, batch: ExecutionBatch) -> tuple[Sequence[Job], list[int], Letter]:
        prepared.append(batch)
        if len(prepared) == 2:
            raise defect("a defect")
        return prepare(self, batch)

    monkeypatch.setattr(PythonInstance, "prepare", fail_second)
    outcomes: list[object] = []

    async def go(server: InferenceServer) -> None:
        try:
            outcomes.append((await server.infer(ask("m", 1))).outputs[0].array.item())
        except TriremeError as error:
            outcomes.append(type(error))

    async with open_repository(tmp_path) as server:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(go, server)
        assert sorted(outcomes, key=str) == [1, 1, InternalError]
        assert server.budget_statistics().requests == 0


async def test_a_process_that_dies_idle_is_replaced_before_anybody_asks(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    async with open_repository(tmp_path) as server:
        (pid,) = child_processes()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: child_processes() not in ({pid}, set()))
        await until_alive(server)
        assert (await server.infer(ask("m", 1))).outputs[0].array.tolist() == [[1]]


async def test_a_process_that_dies_again_and_again_comes_back_each_time(
    tmp_path: Path, leaping_clock: MockClock
) -> None:
    write_model(tmp_path, "m", DEADLY)
    async with open_repository(tmp_path) as server:
        for death in range(8):
            with pytest.raises(InternalError, match=UNHEALTHY):
                await server.infer(ask("m", 1))
            await until(lambda: not server.model_ready("m"))
            (entry,) = server.repository_index()
            assert entry.reason == f"1 of 1 instances have died and are being restarted; last: {UNHEALTHY}"
            await leap(leaping_clock, 0.1 * 2**death)
            await until_alive(server)
        assert (await server.infer(ask("m", 0))).outputs[0].array.tolist() == [[0]]


@pytest.mark.parametrize("ending", ["while True: pass", "signal.signal(15, 1)\n            while True: pass"])
async def test_a_model_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    patient = property(lambda _: 60.0, lambda _, limit_s: None)  # the limit holds for the start, too
    monkeypatch.setattr(PythonInstance, "launch_limit_s", patient, raising=False)
    code = (
        IDENTITY
        + f"""
        def finalize(self):
            import signal
            {ending}
"""
    )
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path, backend_config={"python": {"stub-timeout-seconds": "1"}}) as server:
        await server.infer(ask("m", 1))
    assert child_processes() == set()
    assert server.drained


async def test_finalize_is_called_and_heard(tmp_path: Path) -> None:
    code = (
        IDENTITY
        + """
        def finalize(self):
            import os
            open(os.path.join(pb_utils.get_model_dir(), "finalized"), "w").close()
"""
    )
    directory = write_model(tmp_path, "m", code)
    async with open_repository(tmp_path):
        pass
    assert (directory / "1" / "finalized").exists()


async def test_a_process_that_did_not_warm_up_is_told_to_end(tmp_path: Path) -> None:
    """The load fails with the sample's error; the process is not waited for before it knows."""
    code = """
        import os

        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                raise ValueError("too cold")

            def finalize(self):
                open(os.path.join(pb_utils.get_model_dir(), "finalized"), "w").close()
"""
    sample = (
        'model_warmup { name: "w" inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }'
    )
    directory = write_model(tmp_path, "m", code, CONFIG + sample.replace('"w"', '"w" batch_size: 1'))
    async with open_repository(tmp_path, exit_on_error=False) as server:
        (entry,) = server.repository_index()
    assert "failed to run warmup sample 'w'" in entry.reason
    assert "ValueError: too cold" in entry.reason
    assert (directory / "1" / "finalized").exists()


async def test_processes_end_by_themselves_when_their_server_is_gone(tmp_path: Path) -> None:
    """Also one that is busy for ever."""
    write_model(tmp_path, "m", DEADLY)
    write_model(tmp_path, "idle")
    script = f"""
import sys, trio
sys.path[:0] = {sys.path!r}
from python_models import ask, child_processes, open_repository
from pathlib import Path

async def main():
    async with open_repository(Path({str(tmp_path)!r})) as server, trio.open_nursery() as nursery:
        nursery.start_soon(server.infer, ask("m", 5))
        await trio.testing.wait_all_tasks_blocked(0.3)
        print(*child_processes(), flush=True)
        await trio.sleep_forever()

import trio.testing
trio.run(main)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as server:  # noqa: ASYNC220
        assert server.stdout is not None
        line = await trio.to_thread.run_sync(server.stdout.readline)
        pids = [int(pid) for pid in line.split()]
        assert len(pids) == 2
        server.kill()
    await until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


async def test_nothing_is_left_of_processes_that_are_killed_under_load(tmp_path: Path) -> None:
    """Requests small and large are asked all the while; each is answered, by a result or by an error."""
    write_model(tmp_path, "m", IDENTITY, CONFIG + "instance_group [{ kind: KIND_CPU count: 2 }]")
    kills = 8
    at_first = open_descriptors()
    outcomes: set[str] = set()
    async with open_repository(tmp_path, restart_limit=1000, restart_window_s=0.1) as server:
        await server.infer(ask("m", 1))
        before = open_descriptors()
        answered = 0
        done = False

        async def load(size: int) -> None:
            nonlocal answered
            values = np.full(size, size, np.float32)
            while not done:
                try:
                    response = await server.infer(InferenceRequest("m", inputs=[fp32(values)]))
                    assert (response.outputs[0].array == size).all()
                    answered += 1
                except TriremeError as error:
                    outcomes.add(error.message)

        async with trio.open_nursery() as nursery:
            for size in (4, 4, 4, 4, 60_000, 500_000):
                nursery.start_soon(load, size)
            for kill in range(kills):
                await until(lambda kill=kill: answered > 20 * kill)
                victims = sorted(child_processes())
                if victims:
                    os.kill(victims[0], signal.SIGKILL)
                await until_alive(server)
            done = True
        await until_alive(server)
        assert server.budget_statistics().requests == 0
        await until(lambda: len(child_processes()) == 2)  # the last death may not have been noticed before
        gc.collect()
        assert len(open_descriptors()) <= len(before) + 2 * 8  # free segments of two channels at most
    assert outcomes <= {"Stub process 'm_0_0' is not healthy.", "Stub process 'm_0_1' is not healthy."}
    assert child_processes() == set()
    gc.collect()
    await until(lambda: open_descriptors() <= at_first)


async def test_of_a_process_that_is_gone_a_bounded_number_of_messages_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a model has started may hold its end of the socket, and go on saying something for ever."""
    write_model(tmp_path, "m", DEADLY)
    ended = PythonInstance._ended
    heard = MagicMock(return_value=Message((protocol.CANCEL_CALL, 12345), memoryview(b"")))

    def hear_for_ever(instance: PythonInstance) -> bool:
        instance._channel = MagicMock(receive=heard, give_back=lambda: False)
        return ended(instance)

    monkeypatch.setattr(PythonInstance, "_ended", hear_for_ever)
    async with open_repository(tmp_path) as server:
        with pytest.raises(TriremeError):
            await server.infer(ask("m", 3))
        monkeypatch.undo()
    assert heard.call_count < 100_000
