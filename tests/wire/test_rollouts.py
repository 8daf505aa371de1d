"""Canaries for real: three of them under load by Triton's clients, over HTTP, gRPC and streams at once."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from beside_one_process import IN_PROCESS, wait_until
from python_models import CONFIG, write_model
from serve_process import PATIENCE_S, ServeProcess, serve_process
from tritonclient.utils import InferenceServerException

TAKES_TIME = """
    import random
    import time

    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                time.sleep({times} * (0.01 + random.expovariate(100)))
                given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                error = pb_utils.TritonError("planted") if random.random() < {failures} else None
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given)], error))
            return responses
"""
MODELS = {"before": (1.0, 0.0), "good": (1.0, 0.0), "failing": (1.0, 0.05), "slow": (3.0, 0.0)}
"""By how much each takes longer, and which part of its answers are errors. What hardly differs is for the simulator: on
a real machine other work may hide it."""
CANARIES = ("good", "failing", "slow")
FIRST, STEP_S = 50, 2
OVER = r'^trireme_route_rollout_state{.*state="(?:done|back)".*} 1$'
ROUTES = "".join(
    f"[routes.to_{name}]\ntargets = {{ before = 100, {name} = 0 }}\n"
    f"[routes.to_{name}.canary]\ntarget = '{name}'\nsteps = [{FIRST}, 100]\nstep-secs = {STEP_S}\n"
    for name in CANARIES
)


def given(protocol: Any) -> list[Any]:
    return [protocol.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.zeros((1, 1), np.float32))]


@contextmanager
def load(server: ServeProcess) -> Iterator[list[BaseException | str]]:
    """A client for each route and protocol, one request at a time; what was not answered, if it was not planted."""
    over = threading.Event()
    wrong: list[BaseException | str] = []

    def keep_asking(ask: Callable[[], object]) -> None:
        while not over.wait(0.002):
            try:
                ask()
            except InferenceServerException as error:
                if "planted" not in str(error):
                    wrong.append(error)

    def over_http(route: str) -> None:
        with httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}", network_timeout=PATIENCE_S) as client:
            keep_asking(lambda: client.infer(route, given(httpclient)))

    def over_grpc(route: str) -> None:
        with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            keep_asking(lambda: client.infer(route, given(grpcclient)))

    def on_a_stream(route: str) -> None:
        answers: queue.Queue[Any] = queue.Queue()
        with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            client.start_stream(lambda result, error: answers.put(error or result))

            def ask() -> None:
                client.async_stream_infer(route, given(grpcclient))
                answer = answers.get(timeout=PATIENCE_S)
                if isinstance(answer, Exception):
                    raise answer

            keep_asking(ask)
            client.stop_stream()

    ways = (over_http, over_grpc, on_a_stream)
    threads = [threading.Thread(target=way, args=(f"to_{name}",)) for way in ways for name in CANARIES * 2]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def told(server: ServeProcess) -> dict[str, dict[str, Any]]:
    """What `trireme route list` says of each canary."""
    command = [str(Path(sys.executable).with_name("trireme")), "route", "list", "--json"]
    command += ["--url", f"http://127.0.0.1:{server.http_port}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    return {route["name"].removeprefix("to_"): route for route in json.loads(text)}


@pytest.mark.slow
def test_a_bad_canary_goes_back_in_its_first_step_and_a_good_one_gets_all(tmp_path: Path) -> None:
    for name, (times, failures) in MODELS.items():
        code = TAKES_TIME.replace("{times}", str(times)).replace("{failures}", str(failures))
        write_model(tmp_path / "models", name, code, CONFIG + IN_PROCESS + "instance_group [{ count: 8 }]\n")
    file = tmp_path / "routes.toml"
    file.write_text(ROUTES)
    with serve_process(tmp_path / "models", "--routes", str(file)) as server:
        with load(server) as wrong:
            # A good one needs about 50 s of this load on two cores.
            wait_until(lambda: len(re.findall(OVER, server.metrics(), re.MULTILINE)) == len(CANARIES), 5 * PATIENCE_S)
            routes, metrics = told(server), server.metrics()
        states = {name: route["state"]["rollout"]["state"] for name, route in routes.items()}
        assert not wrong, wrong[:3]
        assert states == {"good": "done", "failing": "back", "slow": "back"}, server.log
        for name, route in routes.items():
            shares = {target["target"]: target["share"] for target in route["state"]["targets"]}
            assert shares == ({"before": 0, "good": 100} if name == "good" else {"before": 100, name: 0})
            state = f'trireme_route_rollout_state{{route="to_{name}",state="{states[name]}"'
            assert any(line.startswith(state) and line.endswith(" 1") for line in metrics.splitlines()), metrics
        assert "requests failed" in routes["failing"]["state"]["rollout"]["reason"]
        assert "the latency of" in routes["slow"]["state"]["rollout"]["reason"]
        for name in CANARIES:
            told_of = re.findall(rf"route 'to_{name}': rollout of '{name}' is (\w+), with (\d+) %", server.log)
            steps = list(dict.fromkeys(told_of))  # a step that goes on is told of again
            ends = [("step", "100"), ("done", "100")] if name == "good" else [("back", "0")]
            assert steps == [("step", str(FIRST)), *ends], server.log
        server.process.terminate()
        assert server.wait() == 0, server.log
