"""`trireme serve --front-ends`, asked by Triton's clients: nothing tells them that a front end is in between."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from beside_one_process import inflight, pids, wait_until
from onnx import TensorProto, helper, save_model
from serve_process import PATIENCE_S, ServeProcess, serve_process
from slow_model import write_gated_model
from tritonclient.utils import InferenceServerException

MODELS = Path(__file__).parents[2] / "model_repository"

COUNT = 2


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for name in ("simple_identity", "simple_string", "repeat_int32"):
        shutil.copytree(MODELS / name, path / name)
    write_any_fp32(path / "any_fp32")
    return path


def write_any_fp32(folder: Path) -> None:
    """OUTPUT0 FP32[-1] is INPUT0, in batches of up to 4."""
    shape = ["rows", "elements"]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("INPUT0", "OUTPUT0")]
    graph = helper.make_graph([helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], "any", ends[:1], ends[1:])
    (folder / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save_model(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 4\n')


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServeProcess]:
    flags = (
        "--front-ends",
        str(COUNT),
        "--model-control-mode",
        "explicit",
        "--load-model",
        "*",
        "--allow-client-shm=1",
    )
    with serve_process(repository, *flags) as served:
        yield served


def http_input(array: np.ndarray, name: str = "INPUT0", datatype: str = "FP32") -> list[Any]:
    given = httpclient.InferInput(name, list(array.shape), datatype)
    return [given.set_data_from_numpy(array)]


def grpc_input(array: np.ndarray, name: str = "INPUT0", datatype: str = "FP32") -> list[Any]:
    given = grpcclient.InferInput(name, list(array.shape), datatype)
    return [given.set_data_from_numpy(array)]


@pytest.fixture
def http(server: ServeProcess) -> Iterator[Any]:
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}", network_timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
def grpc(server: ServeProcess) -> Iterator[Any]:
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        yield client


def test_there_are_so_many_processes_and_none_holds_the_repository(server: ServeProcess, repository: Path) -> None:
    members = pids(server)
    assert len(members) == COUNT
    for pid in members:
        held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert not [path for path in held if path.startswith(str(repository))]


@pytest.mark.parametrize("elements", [1, 16, 4_096, 16_384, 100_001, 3_000_000, 16 << 20])
def test_tensors_of_all_sizes(http: Any, grpc: Any, elements: int) -> None:
    array = np.random.default_rng(elements).random((1, elements), np.float32)
    assert np.array_equal(http.infer("any_fp32", http_input(array)).as_numpy("OUTPUT0"), array)
    assert np.array_equal(grpc.infer("any_fp32", grpc_input(array)).as_numpy("OUTPUT0"), array)


def test_texts(http: Any, grpc: Any) -> None:
    for size in (3, 100_000):
        array = np.array([[b"a" * size] * 16], np.object_)
        for client, given in ((http, http_input), (grpc, grpc_input)):
            result = client.infer("simple_identity", given(array, datatype="BYTES"))
            assert list(result.as_numpy("OUTPUT0").flat) == list(array.flat)


def test_refusals_say_the_same(http: Any, grpc: Any) -> None:
    array = np.zeros((1, 16), np.float32)
    for client, given in ((http, http_input), (grpc, grpc_input)):
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'none' is not found"):
            client.infer("none", given(array))
        with pytest.raises(InferenceServerException, match="expected 1 inputs but got 0 inputs"):
            client.infer("any_fp32", [])
        with pytest.raises(InferenceServerException, match=r"unexpected datatype|data-type"):
            client.infer("any_fp32", given(array.astype(np.int32), datatype="INT32"))


def test_each_refusal_is_counted_once(server: ServeProcess, http: Any, grpc: Any) -> None:
    def counted() -> float:
        found = re.search(
            r'^trireme_refused_total\{model="any_fp32",reason="invalid".*\} (\S+)', server.metrics(), re.MULTILINE
        )
        return float(found[1]) if found else 0.0

    def on_a_stream() -> None:
        answers: queue.Queue[Any] = queue.Queue()
        grpc.start_stream(lambda result, error: answers.put((result, error)))
        grpc.async_stream_infer("any_fp32", [])
        _, error = answers.get(timeout=PATIENCE_S)
        grpc.stop_stream()
        raise error

    ways: list[Callable[[], Any]] = [
        lambda: http.infer("any_fp32", []),
        lambda: http.infer("any_fp32", [], request_compression_algorithm="gzip"),
        lambda: grpc.infer("any_fp32", []),
        on_a_stream,
    ]
    for way in ways:
        before = counted()
        with pytest.raises(InferenceServerException, match="expected 1 inputs but got 0 inputs"):
            way()
        told = partial(lambda earlier: counted() > earlier, before)
        wait_until(told)  # as soon as the engine has heard of it
        assert counted() == before + 1


def test_a_model_that_answers_many_times(grpc: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    grpc.start_stream(lambda result, error: answers.put((result, error)))
    count = 300  # more than wait at a time for who reads them
    values = np.arange(count, dtype=np.int32)
    inputs = [
        *grpc_input(values, "IN", "INT32"),
        *grpc_input(np.zeros(count, np.uint32), "DELAY", "UINT32"),
        *grpc_input(np.zeros(1, np.uint32), "WAIT", "UINT32"),
    ]
    grpc.async_stream_infer("repeat_int32", inputs, request_id="1")
    got = []
    for _ in range(count):
        result, error = answers.get(timeout=PATIENCE_S)
        assert error is None
        got.append(int(result.as_numpy("OUT")[0]))
    grpc.stop_stream()
    assert got == list(range(count))


def test_what_one_front_end_loads_every_other_one_has(server: ServeProcess) -> None:
    def client() -> Any:  # a connection of its own, which is any front end's
        return httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}", network_timeout=PATIENCE_S)

    for _ in range(3):
        with client() as one:
            one.unload_model("simple_string")
        wait_until(lambda: all(not ready("simple_string", client) for _ in range(2 * COUNT)))
        with client() as one:
            one.load_model("simple_string")
        assert all(ready("simple_string", client) for _ in range(4 * COUNT))


def ready(model: str, client: Callable[[], Any]) -> bool:
    with client() as one:
        return one.is_model_ready(model)


def test_management(http: Any, grpc: Any) -> None:
    assert http.is_server_ready()
    assert grpc.is_server_live()
    assert http.get_server_metadata() == {
        key: list(value) if key == "extensions" else value
        for key, value in grpc.get_server_metadata(as_json=True).items()
    }
    index = http.get_model_repository_index()
    assert {row["name"] for row in index} == {"any_fp32", "simple_identity", "simple_string", "repeat_int32"}
    assert http.get_model_config("any_fp32")["name"] == "any_fp32"
    http.infer("any_fp32", http_input(np.zeros((1, 16), np.float32)))
    assert http.get_inference_statistics("any_fp32")["model_stats"][0]["inference_count"] > 0
    assert http.update_log_settings({"log_verbose_level": 0})["log_verbose_level"] == 0


def test_a_client_that_leaves_gives_its_request_up(tmp_path: Path) -> None:
    gate = write_gated_model(tmp_path)
    with serve_process(tmp_path, "--front-ends", "1") as server:
        body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
        head = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        clients = []
        for _ in range(3):  # one is executed, two are queued
            client = socket.create_connection(("127.0.0.1", server.http_port))
            client.sendall(head + body)
            clients.append(client)
        wait_until(lambda: inflight(server)[0] == 3)
        for client in clients:
            client.close()
        wait_until(lambda: inflight(server)[0] == 1)
        gate.touch()
        wait_until(lambda: inflight(server) == (0, 0))


def test_a_front_end_that_is_killed_costs_its_own_connections_only(tmp_path: Path) -> None:
    gate = write_gated_model(tmp_path)
    with serve_process(tmp_path, "--front-ends", "2") as server:
        body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
        head = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        large = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n" + b"[" * 1_000_000
        clients = [socket.create_connection(("127.0.0.1", server.http_port)) for _ in range(24)]
        for number, client in enumerate(clients):
            client.settimeout(PATIENCE_S)
            client.sendall(large if number % 4 == 0 else head + body)  # some bodies still arrive
        wait_until(lambda: inflight(server)[0] == 18)
        wait_until(lambda: inflight(server)[1] > 6_000_000)
        before = pids(server)
        os.kill(before[0], signal.SIGKILL)
        server.wait_for("front end . has ended")
        wait_until(lambda: len(pids(server)) == 2 and before[0] not in pids(server))
        gate.touch()
        lost = answered = 0
        for number, client in enumerate(clients):
            if number % 4 == 0:
                continue
            try:
                start = client.recv(65_536)
            except ConnectionResetError:
                start = b""
            assert not start or start.startswith(b"HTTP/1.1 200")
            lost, answered = lost + (not start), answered + bool(start)
        assert lost
        assert answered
        for client in clients:
            client.close()
        wait_until(lambda: inflight(server) == (0, 0))
        for _ in range(8):  # both take connections again
            assert server.ask("GET", "/v2/health/ready")[0] == 200


def listens(server: ServeProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.http_port)).close()
    except ConnectionRefusedError:
        return False
    return True


def memory_files(pid: int, least_bytes: int = 16 << 20) -> set[str]:
    """Identities of the large ones that a process has mapped."""
    found = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, _, _, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(each, 16) for each in span.split("-"))
        if path and "memfd:" in path[0] and end - start >= least_bytes:
            found.add(inode)
    return found


def test_a_large_body_of_a_front_end_that_is_killed_is_freed_with_its_last_view(tmp_path: Path) -> None:
    gate = write_gated_model(tmp_path)
    with serve_process(tmp_path, "--front-ends", "1") as server:
        values = bytes(32 << 20)
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 8 << 20]}
        head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(values)}}]}).encode()
        lines = (
            "POST /v2/models/gated/infer HTTP/1.1",
            "Host: a",
            f"Inference-Header-Content-Length: {len(head)}",
            f"Content-Length: {len(head) + len(values)}",
        )
        with socket.create_connection(("127.0.0.1", server.http_port), PATIENCE_S) as client:
            client.sendall("\r\n".join([*lines, "", ""]).encode() + head + values)
            (front_end,) = pids(server)
            engine = server.process.pid
            wait_until(lambda: bool(memory_files(engine) & memory_files(front_end)))  # what was received into is viewed
            (shared,) = memory_files(engine) & memory_files(front_end)
            os.kill(front_end, signal.SIGKILL)
            server.wait_for("front end 0 has ended")
            assert shared in memory_files(engine)  # the model is at it
            gate.touch()
        wait_until(lambda: inflight(server) == (0, 0) and len(pids(server)) == 1)
        wait_until(lambda: shared not in memory_files(engine))
        wait_until(lambda: listens(server))
        assert server.ask("GET", "/v2/health/ready")[0] == 200


def test_the_end_of_the_server_waits_for_requests_of_front_ends(tmp_path: Path) -> None:
    gate = write_gated_model(tmp_path)
    with serve_process(tmp_path, "--front-ends", "2") as server:
        body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
        head = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", server.http_port)) as client:
            client.settimeout(PATIENCE_S)
            client.sendall(head + body)
            wait_until(lambda: inflight(server)[0] == 1)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(r"Signal \(15\) received")
            gate.touch()
            assert client.recv(65_536).startswith(b"HTTP/1.1 200")
        assert server.wait() == 0
        assert "has ended" not in server.log


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = ("--front-ends", "1", "--http-port", str(taken.getsockname()[1]), "--exit-on-error=false")
        with serve_process(tmp_path, *flags, wait=False) as server:
            assert server.wait() == 1
            assert re.search("failed to start HTTP service: .* already in use", server.log)


@pytest.fixture
def region_key() -> Iterator[str]:
    path = Path(f"/dev/shm/front-ends-{os.getpid()}")
    path.write_bytes(bytes(4_096))
    yield f"/{path.name}"
    path.unlink()


def test_what_clients_say_at_length_ends_no_front_end(server: ServeProcess, http: Any, region_key: str) -> None:
    before = pids(server)
    names = [f"{number}-{'n' * 8_000}" for number in range(60)]
    for name in names:
        http.register_system_shared_memory(name, region_key, 64)
    assert {each["name"] for each in http.get_system_shared_memory_status()} == set(names)
    http.unregister_system_shared_memory()
    with pytest.raises(InferenceServerException, match="zzz"):
        http.load_model("any_fp32", config=json.dumps({"backend": "z" * 500_000}))
    http.load_model("any_fp32")
    with pytest.raises(InferenceServerException, match="too long"):
        http.infer("any_fp32", http_input(np.ones((1, 1), np.float32)), request_id="x" * 500_000)
    array = np.ones((1, 1), np.float32)
    assert np.array_equal(http.infer("any_fp32", http_input(array)).as_numpy("OUTPUT0"), array)
    assert pids(server) == before
