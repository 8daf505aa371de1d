"""Signals that a terminal, or a container, sends to all processes at once are for the server to act on."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import trio
from calling_models import HEAD
from python_models import ask, child_processes, open_repository, until, write_model
from serve_process import infer, outputs_of, serve_process, tensor

CHATTY = (
    HEAD
    + """
        def execute(self, requests):
            import subprocess, sys
            if value_of(requests[0]) == 1:
                open(os.path.join(pb_utils.get_model_dir(), "began"), "w").close()
                while not os.path.exists(os.path.join(pb_utils.get_model_dir(), "enough")):
                    time.sleep(0.01)
                return [response(1)]
            sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            forked = os.fork()
            if not forked:
                time.sleep(60)
            sleeper.terminate()
            os.kill(forked, signal.SIGTERM)
            return [response(sleeper.wait(), os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))]
"""
).replace("import os\n", "import os\n    import signal\n", 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_to_all_processes_do_not_disturb_what_is_executed(tmp_path: Path, number: signal.Signals) -> None:
    directory = write_model(tmp_path, "m", CHATTY) / "1"
    async with open_repository(tmp_path) as server, trio.open_nursery() as nursery:

        async def go() -> None:
            assert (await server.infer(ask("m", 1))).outputs[0].array.tolist() == [[1]]

        nursery.start_soon(go)
        await until((directory / "began").exists)
        for pid in child_processes():
            os.kill(pid, number)
        (directory / "enough").touch()
    assert server.model_statistics()[0].restarts == 0


async def test_what_a_model_starts_can_be_terminated(tmp_path: Path) -> None:
    write_model(tmp_path, "m", CHATTY)
    async with open_repository(tmp_path) as server:
        assert (await server.infer(ask("m", 2))).outputs[0].array.tolist() == [[-signal.SIGTERM, -signal.SIGTERM]]


def test_a_signal_for_the_whole_group_lets_the_server_finish(tmp_path: Path) -> None:
    """As `docker stop` and a terminal send it: to the server and to its processes."""
    directory = write_model(tmp_path, "m", CHATTY) / "1"
    with ThreadPoolExecutor() as clients, serve_process(tmp_path) as server:
        asked = clients.submit(infer, server.http_port, "m", tensor("INPUT0", "FP32", [1]))
        while not (directory / "began").exists():
            assert not asked.done()
        for process in (*psutil.Process(server.process.pid).children(recursive=True), server.process):
            process.send_signal(signal.SIGTERM)
        server.wait_for(r"Signal \(15\) received\.")
        (directory / "enough").touch()
        status, answer = asked.result()
        assert (status, outputs_of(answer)) == (200, {"OUTPUT0": [1]})
        assert server.wait() == 0
