"""Shadows of routes, as Triton's clients see them: not at all; whether front ends are processes of their own or not."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from beside_one_process import IN_PROCESS, wait_until
from python_models import CONFIG, write_model
from serve_process import PATIENCE_S, ServeProcess, serve_process

SHADOWED = """
    import time
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            while {waits}:
                time.sleep(0.01)
            error = pb_utils.TritonError("planted") if {fails} else None
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given + {adds})], error)
"""
ROUTES = {
    "agreeing": {"adds": "1e-7"},
    "differing": {"adds": "2"},
    "failing": {"fails": "True"},
    "hanging": {"waits": "True"},
}
KEY = f"/trireme-test-{uuid.uuid4().hex}"
INPUT = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture(scope="module", params=[0, 1])
def shadowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("shadowed")
    text = ""
    for name, changes in {"target": {}, **ROUTES}.items():
        fields = {"adds": "0", "fails": "False", "waits": "False", **changes}
        code = SHADOWED
        for field, value in fields.items():
            code = code.replace(f"{{{field}}}", value)
        write_model(folder / "models", name, code, CONFIG + IN_PROCESS)
        if name in ROUTES:
            text += f"[routes.{name}-route]\ntargets = {{ target = 100 }}\n"
            text += f"shadow = {{ target = '{name}', percent = 100 }}\n"
    file = folder / "routes.toml"
    file.write_text(text)
    flags = ("--front-ends", str(request.param), "--routes", str(file), "--allow-client-shm=1")
    with serve_process(folder / "models", *flags, "--model-control-mode=explicit", "--load-model=*") as server:
        yield server
        server.process.terminate()  # with a copy that hangs for ever, and others that wait for it
        assert server.wait() == 0, server.log


def count(server: ServeProcess, shadow: str, result: str) -> float:
    pattern = rf'trireme_route_shadow_\w+_total\{{(?:result|reason)="{result}",route="[^"]+",shadow="{shadow}"\}} (\S+)'
    found = re.search(pattern, server.metrics())
    assert found, server.metrics()
    return float(found[1])


def ask_http(server: ServeProcess, route: str) -> None:
    client = httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}", network_timeout=PATIENCE_S)
    given = httpclient.InferInput("INPUT0", [1, 4], "FP32").set_data_from_numpy(INPUT)
    result = client.infer(f"{route}-route", [given])
    assert result.get_response()["model_name"] == "target"
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), INPUT)


def ask_grpc(server: ServeProcess, route: str) -> None:
    client = grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
    given = grpcclient.InferInput("INPUT0", [1, 4], "FP32").set_data_from_numpy(INPUT)
    answer: Any = client.infer(f"{route}-route", [given])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), INPUT)


@pytest.mark.parametrize("ask", [ask_http, ask_grpc])
@pytest.mark.parametrize(("route", "result"), [("agreeing", "agrees"), ("differing", "differs"), ("failing", "failed")])
def test_what_a_shadow_answers_is_counted_and_clients_get_the_targets(
    shadowed: ServeProcess, ask: Callable[[ServeProcess, str], None], route: str, result: str
) -> None:
    before = count(shadowed, route, result)
    ask(shadowed, route)
    wait_until(lambda: count(shadowed, route, result) > before)
    if result != "agrees":
        shadowed.wait_for(f"route '{route}-route': shadow '{route}' does not agree: ")


def test_inputs_and_outputs_in_shared_memory_are_copied_while_they_are_the_servers(shadowed: ServeProcess) -> None:
    client = httpclient.InferenceServerClient(f"127.0.0.1:{shadowed.http_port}", network_timeout=PATIENCE_S)
    before = count(shadowed, "agreeing", "agrees")
    handle = shm.create_shared_memory_region("shadowed", KEY, 32)
    try:
        shm.set_shared_memory_region(handle, [INPUT])
        client.register_system_shared_memory("shadowed", KEY, 32)
        given: Any = httpclient.InferInput("INPUT0", [1, 4], "FP32")
        wanted: Any = httpclient.InferRequestedOutput("OUTPUT0", binary_data=True)
        given.set_shared_memory("shadowed", 16)
        wanted.set_shared_memory("shadowed", 16, offset=16)
        client.infer("agreeing-route", [given], outputs=[wanted])
        shm.set_shared_memory_region(handle, [INPUT + 1, INPUT + 3])
        wait_until(lambda: count(shadowed, "agreeing", "agrees") > before)
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [1, 4], 16), INPUT + 3)
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(handle)


def test_a_shadow_that_hangs_keeps_none_waiting(shadowed: ServeProcess) -> None:
    for _ in range(40):
        ask_http(shadowed, "hanging")
    assert count(shadowed, "hanging", "full") >= 40 - 32 - 1
    assert count(shadowed, "hanging", "agrees") == 0
