"""Debuggers: ``breakpoint()`` in a model of the server's process, debugpy in a process of its own."""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from calling_models import HEAD
from debug_client import DebugClient
from python_models import CONFIG, open_repository, write_model
from python_models import ask as request_of
from serve_process import ServeProcess, infer, outputs_of, serve_process, tensor

from trireme.engine.errors import InternalError

ADD_ONE = (
    HEAD
    + """
        def execute(self, requests):
            value = value_of(requests[0])
            {}
            return [response(value + 1)]
"""
)
IN_PROCESS = CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }\n'


def ask(server: ServeProcess) -> tuple[int, object]:
    return infer(server.http_port, "m", tensor("INPUT0", "FP32", [6]))


def test_a_breakpoint_in_the_servers_process_has_a_prompt_and_the_request_is_answered_after_it(tmp_path: Path) -> None:
    """Twice: the first session leaves nothing that would disturb the second. The server is alive meanwhile."""
    write_model(tmp_path, "m", ADD_ONE.format("breakpoint()"), IN_PROCESS)
    typed, keyboard = os.pipe()
    with ThreadPoolExecutor() as clients, serve_process(tmp_path, stdin=typed) as server:
        os.close(typed)
        before = ""
        for added in (1, 36):
            asked = clients.submit(ask, server)
            prompt = before + r"> .*/m/1/model\.py\(\d+\)execute\(\)\n-> return \[response\(value \+ 1\)\]"
            server.wait_for(prompt)
            assert server.ask("GET", "/v2/health/live")[0] == 200
            assert not asked.done()
            os.write(keyboard, b"value += %d\nprint('now', value)\nc\n" % (added - 1))
            status, answer = asked.result()
            assert (status, outputs_of(answer)) == (200, {"OUTPUT0": [6 + added]})
            before = rf"\(Pdb\) now {5 + added}\.0[\s\S]*"
            server.wait_for(before)
        os.close(keyboard)


def test_a_breakpoint_in_a_coroutine_has_a_prompt_too(tmp_path: Path) -> None:
    """On trio's thread, where the model may wait for something afterwards."""
    code = ADD_ONE.format("breakpoint()").replace("def execute", "async def execute")
    code = code.replace("return [", "await __import__('trio').sleep(0)\n            return [")
    write_model(tmp_path, "m", code, IN_PROCESS)
    typed, keyboard = os.pipe()
    with ThreadPoolExecutor() as clients, serve_process(tmp_path, stdin=typed) as server:
        os.close(typed)
        asked = clients.submit(ask, server)
        server.wait_for(r"> .*/m/1/model\.py\(\d+\)execute\(\)")
        assert server.ask("GET", "/v2/health/live")[0] == 200
        os.write(keyboard, b"value = 41\nc\n")
        status, answer = asked.result()
        assert (status, outputs_of(answer)) == (200, {"OUTPUT0": [42]})
        os.close(keyboard)


async def test_a_breakpoint_in_a_process_of_its_own_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    write_model(tmp_path, "m", ADD_ONE.format("breakpoint()"))
    async with open_repository(tmp_path) as server:
        with pytest.raises(InternalError, match=r"(?s)RuntimeError: breakpoint\(\) has no terminal .*model.py\(\d+\)"):
            await server.infer(request_of("m", 1))


def test_a_process_waits_for_its_debugger_which_stops_it_where_it_likes(tmp_path: Path) -> None:
    """It serves, stops, shows what it has, and goes on."""
    directory = write_model(tmp_path, "m", ADD_ONE.format("pass"))
    path = directory / "1" / "model.py"
    line = path.read_text().splitlines().index("        pass") + 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--disable-auto-complete-config", f"--backend-config=python,debug-port={port}")
    with ThreadPoolExecutor() as clients, serve_process(tmp_path, *flags, wait=False) as server:
        server.wait_for(f"waiting for a debugger on port {port}")
        assert "Started HTTPService" not in server.log
        with DebugClient(port) as debugger:
            debugger.attach(str(path), line)
            server.wait_for("Started HTTPService")
            asked = clients.submit(ask, server)
            thread = debugger.wait_for_stop()
            assert not asked.done()
            frame = debugger.ask("stackTrace", threadId=thread)["stackFrames"][0]
            assert (frame["name"], frame["line"]) == ("execute", line)
            value = debugger.ask("evaluate", expression="value * 7", frameId=frame["id"], context="watch")
            assert value["result"] == "42.0"
            debugger.ask("continue", threadId=thread)
            status, answer = asked.result()
            assert (status, outputs_of(answer)) == (200, {"OUTPUT0": [7]})
        server.process.terminate()
        assert server.wait() == 0
    assert not re.search("ERROR|Traceback", server.log)
