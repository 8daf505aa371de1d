"""`trireme serve --model-control-mode=on-demand`, asked by Triton's clients; whether front ends are processes of their
own or not."""

from __future__ import annotations

import json
import queue
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from beside_one_process import IN_PROCESS, wait_until
from onnx import TensorProto, helper, save_model
from python_models import CONFIG, IDENTITY, write_model
from serve_process import PATIENCE_S, ServeProcess, serve_process
from tritonclient.utils import InferenceServerException

SIZE = 100_000
COUNT, ROOM = 12, 3
MODE = ("--model-control-mode", "on-demand")
ADD_CONFIG = """
backend: "onnxruntime"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""


def write_adding_model(repository: Path, name: str, number: float, nbytes: int = SIZE) -> None:
    """OUTPUT0 FP32[1] is INPUT0 + `number`; its file has about so many bytes."""
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=[1])
    graph = helper.make_graph(
        [helper.make_node("Add", ["INPUT0", "number"], ["OUTPUT0"])],
        name,
        [value("INPUT0")],
        [value("OUTPUT0")],
        [helper.make_tensor("number", TensorProto.FLOAT, [1], [number])],
        doc_string="x" * nbytes,
    )
    version = repository / name / "1"
    version.mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save_model(model, str(version / "model.onnx"))
    (repository / name / "config.pbtxt").write_text(ADD_CONFIG)


@pytest.fixture(scope="module", params=[0, 1])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    repository = tmp_path_factory.mktemp("cold") / "models"
    for number in range(COUNT):
        write_adding_model(repository, f"m{number}", number)
    write_adding_model(repository, "large", 0, SIZE * (ROOM + 2))
    write_model(repository, "broken", "    import no_such_module\n" + IDENTITY, CONFIG + IN_PROCESS)
    limit = str(SIZE * ROOM + SIZE // 2)
    with serve_process(
        repository, *MODE, "--model-memory-limit", limit, "--front-ends", str(request.param), "--load-model", "m0"
    ) as server:
        yield server
        server.process.terminate()
        assert server.wait() == 0, server.log


def http(server: ServeProcess, **options: Any) -> Any:
    return httpclient.InferenceServerClient(
        f"127.0.0.1:{server.http_port}", network_timeout=PATIENCE_S, connection_timeout=PATIENCE_S, **options
    )


def grpc(server: ServeProcess) -> Any:
    return grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")


def inputs(protocol: Any, value: float = 0.5, *, binary: bool = True) -> list[Any]:
    given = protocol.InferInput("INPUT0", [1], "FP32")
    array = np.array([value], np.float32)
    return [given.set_data_from_numpy(array) if binary else given.set_data_from_numpy(array, binary_data=False)]


def answer(result: Any) -> float:
    return float(result.as_numpy("OUTPUT0")[0])


def in_memory(server: ServeProcess) -> set[str]:
    _, index = server.ask("POST", "/v2/repository/index", {"ready": True})
    return {row["name"] for row in index}


def counted(server: ServeProcess, metric: str) -> float:
    found = re.findall(rf"^{re.escape(metric)} (\S+)$", server.metrics(), re.MULTILINE)
    return float(found[0]) if found else 0.0


def test_whatever_there_is_can_be_asked_for_over_every_protocol(served: ServeProcess) -> None:
    misses = counted(served, 'trireme_on_demand_requests_total{outcome="miss"}')
    with http(served) as over_http, grpc(served) as over_grpc:
        for number in range(COUNT):
            name, want = f"m{number}", number + 0.5
            assert over_http.is_model_ready(name)
            assert answer(over_http.infer(name, inputs(httpclient, binary=number % 2 == 0))) == want
            assert answer(over_grpc.infer(f"m{COUNT - 1 - number}", inputs(grpcclient))) == COUNT - number - 0.5
            assert len(in_memory(served)) <= ROOM
    assert counted(served, 'trireme_on_demand_requests_total{outcome="miss"}') >= misses + COUNT
    assert 0 < counted(served, "trireme_on_demand_bytes") <= counted(served, "trireme_on_demand_limit_bytes")


def test_streams_and_generate_wait_for_their_models(served: ServeProcess) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with grpc(served) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for number in range(COUNT):
            client.async_stream_infer(f"m{number}", inputs(grpcclient))
            if number in (3, 8):
                client.async_stream_infer("large" if number == 3 else "broken", inputs(grpcclient))
        found = [answers.get(timeout=PATIENCE_S) for _ in range(COUNT + 2)]
        client.stop_stream()
    assert "limit for models" in str(found.pop(4))
    assert "was not loaded" in str(found.pop(9))
    assert [answer(each) for each in found] == [number + 0.5 for number in range(COUNT)]
    status, said = served.ask("POST", "/v2/models/m1/generate", {"INPUT0": [2.0]})
    assert (status, said["OUTPUT0"]) == (200, 3.0)


def test_metadata_and_configuration_are_those_of_the_model(served: ServeProcess) -> None:
    with http(served) as over_http, grpc(served) as over_grpc:
        for number in range(0, COUNT, 2):
            assert over_http.get_model_metadata(f"m{number}")["inputs"][0]["name"] == "INPUT0"
            assert over_http.get_model_config(f"m{COUNT - 1 - number}")["name"] == f"m{COUNT - 1 - number}"
            assert over_grpc.get_model_metadata(f"m{number + 1}").name == f"m{number + 1}"
            assert over_grpc.get_model_config(f"m{number}").config.name == f"m{number}"


def test_the_index_says_what_is_in_memory(served: ServeProcess) -> None:
    with http(served) as client:
        client.infer("m5", inputs(httpclient))
        rows = {row["name"]: row for row in client.get_model_repository_index()}
    assert set(rows) >= {f"m{number}" for number in range(COUNT)}
    assert rows["m5"]["state"] == "READY"
    there = {name for name, row in rows.items() if row.get("state") == "READY"}
    assert len(there) <= ROOM
    cold = next(row for name, row in rows.items() if name.startswith("m") and name not in there)
    assert (cold["state"], cold["reason"]) == ("UNAVAILABLE", "on demand: not in memory")


def test_many_first_requests_are_all_answered(served: ServeProcess) -> None:
    """200 at once, over 12 cold models with room for 3; those of one model share its loads."""
    loads = counted(served, 'trireme_on_demand_loads_total{outcome="success"}')
    numbers = [number % COUNT for number in range(200)]
    with http(served, concurrency=100) as over_http, grpc(served) as over_grpc:
        waiting = [over_http.async_infer(f"m{number}", inputs(httpclient)) for number in numbers[:100]]
        answers: queue.Queue[Any] = queue.Queue()
        for number in numbers[100:]:
            over_grpc.async_infer(f"m{number}", inputs(grpcclient), lambda result, error: answers.put(error or result))
        assert [answer(each.get_result()) for each in waiting] == [number + 0.5 for number in numbers[:100]]
        found = sorted(answer(answers.get(timeout=PATIENCE_S)) for _ in numbers[100:])
    assert found == sorted(number + 0.5 for number in numbers[100:])
    assert counted(served, 'trireme_on_demand_loads_total{outcome="success"}') - loads < 100


def test_a_model_larger_than_the_limit_is_refused(served: ServeProcess) -> None:
    for _ in range(2):
        with (
            http(served) as client,
            pytest.raises(InferenceServerException, match=r"needs 5\d+ bytes of memory"),
        ):
            client.infer("large", inputs(httpclient))
    with grpc(served) as client, pytest.raises(InferenceServerException, match="limit for models is 350000") as caught:
        client.infer("large", inputs(grpcclient))
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    refused = 'trireme_refused_total{reason="model_memory"}'  # front ends tell of their refusals a little later
    wait_until(lambda: counted(served, refused) >= 3)


def test_a_load_that_fails_says_why_and_costs_no_other(served: ServeProcess) -> None:
    with http(served) as client:
        for _ in range(2):
            with pytest.raises(InferenceServerException, match="no_such_module"):
                client.infer("broken", inputs(httpclient))
        assert not client.is_model_ready("broken")
        row = next(row for row in client.get_model_repository_index() if row["name"] == "broken")
        assert row["state"] == "UNAVAILABLE"
        assert "no_such_module" in row["reason"]
        assert client.is_server_ready()
        assert answer(client.infer("m7", inputs(httpclient))) == 7.5
    refused = 'trireme_refused_total{reason="load_failed"}'  # front ends tell of their refusals a little later
    wait_until(lambda: counted(served, refused) >= 2)


def test_no_such_model_is_what_it_always_was(served: ServeProcess) -> None:
    with http(served) as client, pytest.raises(InferenceServerException, match="Request for unknown model: 'nowhere'"):
        client.infer("nowhere", inputs(httpclient))
    with http(served) as client, pytest.raises(InferenceServerException, match="'m1' version 7 is not found"):
        client.infer("m1", inputs(httpclient), model_version="7")


def test_models_are_added_and_removed_while_it_runs(served: ServeProcess) -> None:
    write_adding_model(served.repository, "added", 40)

    def found(ask: Callable[[], Any]) -> bool:
        with suppress(InferenceServerException):
            return answer(ask()) == 40.5
        return False

    with http(served) as over_http, grpc(served) as over_grpc:
        wait_until(lambda: found(lambda: over_grpc.infer("added", inputs(grpcclient))))
        assert answer(over_http.infer("added", inputs(httpclient))) == 40.5
        shutil.rmtree(served.repository / "added")
        over_http.unload_model("added")
        wait_until(lambda: "added" not in in_memory(served))
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'added'"):
            over_http.infer("added", inputs(httpclient))
        write_adding_model(served.repository, "added", 40)
        wait_until(lambda: found(lambda: over_http.infer("added", inputs(httpclient))))


def test_models_come_and_go_by_hand(served: ServeProcess) -> None:
    with http(served) as client:
        client.load_model("m9")
        assert "m9" in in_memory(served)
        client.unload_model("m9")
        wait_until(lambda: "m9" not in in_memory(served))
        assert answer(client.infer("m9", inputs(httpclient))) == 9.5
        with pytest.raises(InferenceServerException, match="cannot be loaded with parameters"):
            client.load_model("m9", config=json.dumps({"backend": "onnxruntime"}))


def test_worth_comes_from_the_configuration(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for number, parameters in enumerate(({"ON_DEMAND_PRIORITY": "5"}, {}, {}, {"ON_DEMAND_PRIORITY": "very high"})):
        write_adding_model(repository, f"m{number}", number)
        with (repository / f"m{number}" / "config.pbtxt").open("a") as config:
            for name, value in parameters.items():
                config.write(f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}')
    limit = str(2 * SIZE + SIZE // 2)
    with serve_process(repository, *MODE, "--model-memory-limit", limit) as server, http(server) as client:
        for number in range(3):
            assert answer(client.infer(f"m{number}", inputs(httpclient))) == number + 0.5
        assert in_memory(server) == {"m0", "m2"}, "m1 was used more recently than m0"
        with pytest.raises(InferenceServerException, match="is 'very high'; expected a whole number from -100 to"):
            client.infer("m3", inputs(httpclient))


SLOW = """
    import time
    {wait}

    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())]
                )
                for request in requests
            ]
"""


def test_who_waits_gives_up_at_its_own_time(tmp_path: Path) -> None:
    """By the deadline of its call, by its `timeout`, or by leaving; the load goes on, and serves the next one."""
    gate = tmp_path / "gate"
    wait = f"import os\n    while not os.path.exists({str(gate)!r}):\n        time.sleep(0.01)"
    write_model(tmp_path / "models", "gated", SLOW.replace("{wait}", wait))
    with serve_process(tmp_path / "models", *MODE, "--model-memory-limit", str(1 << 40)) as server:
        given = grpcclient.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.zeros((1, 1), np.float32))
        with grpc(server) as client:
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                client.infer("gated", [given], client_timeout=0.3)
            with pytest.raises(InferenceServerException, match="not in memory within the 200000 us"):
                client.infer("gated", [given], timeout=200_000)
        with grpc(server) as client:
            client.start_stream(lambda result, error: None)
            for _ in range(2):
                client.async_stream_infer("gated", [given])
            wait_until(lambda: counted(server, "trireme_on_demand_waiting") == 1)
            client.stop_stream(cancel_requests=True)
            wait_until(lambda: counted(server, "trireme_on_demand_waiting") == 0)
        of_http = httpclient.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.zeros((1, 1), np.float32))
        with http(server) as client, pytest.raises(InferenceServerException, match="not in memory within"):
            client.infer("gated", [of_http], timeout=200_000)
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        with ThreadPoolExecutor() as threads, http(server) as client:
            last = threads.submit(client.infer, "gated", [of_http])
            wait_until(lambda: counted(server, "trireme_on_demand_waiting") == 1)
            gate.touch()
            assert last.result(PATIENCE_S).as_numpy("OUTPUT0").tolist() == [[0.0]]
        assert counted(server, 'trireme_on_demand_loads_total{outcome="success"}') == 1


GATED = """
    import os, time
    while not os.path.exists({gate!r}):
        time.sleep(0.01)

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        count = 0

        def initialize(self, args):
            self.decoupled = "decoupled" in args["model_name"]

        def answer(self):
            self.count += 1
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([self.count], np.float32))])

        def execute(self, requests):
            if not self.decoupled:
                return [self.answer() for _ in requests]
            for request in requests:
                sender = request.get_response_sender()
                sender.send(self.answer(), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("front_ends", [0, 1])
def test_on_a_stream_those_for_other_models_do_not_wait_for_one_that_is_loaded(tmp_path: Path, front_ends: int) -> None:
    """Answers keep their order all the same, but for those of decoupled models."""
    repository, gates = tmp_path / "models", {name: tmp_path / f"gate of {name}" for name in ("slow", "decoupled")}
    config = CONFIG.replace("max_batch_size: 8", "max_batch_size: 0") + IN_PROCESS
    for name, gate in gates.items():
        policy = "model_transaction_policy { decoupled: true }" if name == "decoupled" else ""
        write_model(repository, name, GATED.replace("{gate!r}", repr(str(gate))), config + policy)
    write_adding_model(repository, "adds", 7)
    answers: queue.Queue[Any] = queue.Queue()
    flags = (*MODE, "--model-memory-limit", "1G", "--front-ends", str(front_ends))
    with serve_process(repository, *flags) as server, grpc(server) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for number, name in enumerate(("decoupled", "slow", "adds", "slow", "unknown", "decoupled", "slow", "adds")):
            client.async_stream_infer(name, inputs(grpcclient), request_id=str(number))

        def executed(name: str) -> int:
            status, said = server.ask("GET", f"/v2/models/{name}/stats")
            return said["model_stats"][0]["execution_count"] if status == 200 else 0

        wait_until(lambda: executed("adds") == 2)
        assert answers.empty()
        gates["decoupled"].touch()
        found = [answers.get(timeout=PATIENCE_S) for _ in range(2)]
        assert [(each.get_response().id, answer(each)) for each in found] == [("0", 1.0), ("5", 2.0)]
        gates["slow"].touch()
        found = [answers.get(timeout=PATIENCE_S) for _ in range(6)]
        client.stop_stream()
    assert "unknown" in str(found[3])
    del found[3]
    ids = [(each.get_response().id, answer(each)) for each in found]
    assert ids == [("1", 1.0), ("2", 7.5), ("3", 2.0), ("6", 3.0), ("7", 7.5)]


def test_a_model_that_asks_a_cold_one_gets_its_answer(tmp_path: Path) -> None:
    """BLS: the one that asks stays while it waits; if both cannot be there, the request is refused."""
    code = """
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                inner = pb_utils.InferenceRequest(
                    model_name="MEMBER", requested_output_names=["OUTPUT0"], inputs=request.inputs()
                ).exec()
                if inner.has_error():
                    responses.append(pb_utils.InferenceResponse([], inner.error()))
                else:
                    responses.append(pb_utils.InferenceResponse(inner.output_tensors()))
            return responses
"""
    repository = tmp_path / "models"
    config = CONFIG.replace("max_batch_size: 8", "max_batch_size: 0")
    write_model(repository, "asks", code.replace("MEMBER", "small"), config + IN_PROCESS)
    write_model(repository, "asks_large", code.replace("MEMBER", "large"), config + IN_PROCESS)
    write_adding_model(repository, "small", 1)
    write_adding_model(repository, "large", 1, 4 * SIZE)
    limit = str(4 * SIZE + SIZE // 100)
    with serve_process(repository, *MODE, "--model-memory-limit", limit) as server, http(server) as client:
        assert answer(client.infer("asks", inputs(httpclient))) == 1.5
        assert answer(client.infer("large", inputs(httpclient))) == 1.5
        with pytest.raises(InferenceServerException, match="large"):
            client.infer("asks_large", inputs(httpclient))
        assert answer(client.infer("asks", inputs(httpclient))) == 1.5


def test_a_server_that_stops_refuses_who_waits(tmp_path: Path) -> None:
    wait = "time.sleep(1)"
    write_model(tmp_path / "models", "slow", SLOW.replace("{wait}", wait))
    with serve_process(tmp_path / "models", *MODE, "--model-memory-limit", str(1 << 40)) as server:
        given = httpclient.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.zeros((1, 1), np.float32))
        said: list[str] = []

        def ask() -> None:
            with http(server) as client:
                try:
                    client.infer("slow", [given])
                except InferenceServerException as error:
                    said.append(str(error))

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: counted(server, "trireme_on_demand_waiting") == 1)
        server.process.terminate()
        assert server.wait() == 0, server.log
        asking.join(PATIENCE_S)
        assert ["stopping" in each for each in said] == [True], said


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (MODE, "requires setting '--model-memory-limit'"),
        (("--model-memory-limit", "1000"), "has no effect without '--model-control-mode=on-demand'"),
        (("--model-pin", "a"), "has no effect without '--model-control-mode=on-demand'"),
        ((*MODE, "--model-memory-limit", "1000", "--model-namespacing=true"), "cannot be combined"),
        ((*MODE, "--model-memory-limit", "0"), "model-memory-limit"),
    ],
)
def test_flags_that_make_no_sense_are_errors(tmp_path: Path, flags: tuple[str, ...], text: str) -> None:
    with serve_process(tmp_path, *flags, wait=False) as server:
        assert server.wait() != 0
        assert text in server.log
