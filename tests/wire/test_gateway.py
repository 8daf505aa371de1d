"""Unmodified clients through gateways, in front of servers of their own."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from serve_process import PATIENCE_S, GatewayProcess, ServeProcess, ask, serve_process, write_fleet
from tritonclient.utils import InferenceServerException

REPOSITORY = Path(__file__).parents[2] / "model_repository"
MODELS = ("running_sum", "repeat_int32", "simple_string")
SEQUENCES, STEPS = 50, 4


class Fleet:
    """Two servers, and two gateways in front of both."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        loads = [word for name in MODELS for word in ("--load-model", name)]
        flags = ("--model-control-mode", "explicit", "--allow-metrics", "false", *loads)
        self.servers = [stack.enter_context(serve_process(REPOSITORY, *flags, wait=False)) for _ in range(2)]
        self.ports = ports = {name: server.grpc_port for name, server in zip("ab", self.servers, strict=True)}
        self.file = folder / "fleet.toml"
        write_fleet(self.file, **ports)  # they listen by now
        self.gateways = [GatewayProcess(self.file) for _ in range(2)]
        for gateway in self.gateways:
            stack.callback(gateway.end)
            for name in ports:
                gateway.wait_for(f"replica {name} at .*: ready")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, tmp_path_factory.mktemp("fleet"))


KINDS = {"http": httpclient, "grpc": grpcclient}


def clients(server: ServeProcess, stack: ExitStack) -> dict[str, Any]:
    ports = {"http": server.http_port, "grpc": server.grpc_port}
    return {
        name: stack.enter_context(kind.InferenceServerClient(f"127.0.0.1:{ports[name]}"))
        for name, kind in KINDS.items()
    }


def tensor(kind: Any, name: str, values: Any, datatype: str) -> Any:
    made = kind.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values)
    return made


def test_requests_and_their_answers(fleet: Fleet) -> None:
    """Over HTTP and gRPC, texts too; both servers get some."""
    texts = np.array([[str(value).encode() for value in range(16)]], np.object_)
    with ExitStack() as stack:
        for name, client in clients(fleet.gateways[0], stack).items():
            kind = KINDS[name]
            inputs = [tensor(kind, each, texts, "BYTES") for each in ("INPUT0", "INPUT1")]
            for number in range(8):
                result = client.infer("simple_string", inputs, request_id=str(number))
                assert result.as_numpy("OUTPUT0")[0, 3] == b"6"
    (record,) = fleet.gateways[1].ask("GET", "/v2/models/simple_string/stats")[1]["model_stats"]
    assert record["inference_count"] >= 16
    for server in fleet.servers:
        assert server.ask("GET", "/v2/models/simple_string/stats")[1]["model_stats"][0]["inference_count"] > 0


def test_streams_of_answers(fleet: Fleet) -> None:
    """Of a model that answers many times, with the empty final response, for a client that wants it and for one that
    does not."""
    values = np.array([4, 2, 0, 1], np.int32)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{fleet.gateways[0].grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        inputs = [
            tensor(grpcclient, "IN", values, "INT32"),
            tensor(grpcclient, "DELAY", np.ones(4, np.uint32), "UINT32"),
            tensor(grpcclient, "WAIT", np.ones(1, np.uint32), "UINT32"),
        ]
        for wanted in (True, False):
            client.async_stream_infer("repeat_int32", inputs, request_id="r", enable_empty_final_response=wanted)
            given = [answers.get(timeout=PATIENCE_S) for _ in range(4 + wanted)]
            assert [error for _, error in given] == [None] * len(given)
            assert [int(result.as_numpy("OUT")[0]) for result, _ in given[:4]] == [4, 2, 0, 1]
            finals = [result.get_response().parameters["triton_final_response"].bool_param for result, _ in given]
            assert finals == [False] * 4 + [True] * wanted
        client.stop_stream()
    assert answers.empty()


def refusals(client: Any, kind: Any) -> Iterator[Callable[[], Any]]:
    one = tensor(kind, "INPUT", np.array([[1]], np.int32), "INT32")
    wrong = tensor(kind, "INPUT", np.array([[1]], np.int64), "INT64")
    yield lambda: client.infer("nothing", [one])
    yield lambda: client.infer("running_sum", [one], model_version="7")
    yield lambda: client.infer("running_sum", [one], request_id="x")
    yield lambda: client.infer("running_sum", [one], sequence_id=987_654)
    yield lambda: client.infer("running_sum", [wrong], sequence_id=5, sequence_start=True)
    yield lambda: client.infer("running_sum", [one, one], sequence_id=5, sequence_start=True)
    yield lambda: client.infer("simple_string", [one])
    yield lambda: client.get_model_metadata("nothing")
    yield lambda: client.get_model_config("digits")
    yield lambda: client.get_inference_statistics("nothing")
    yield lambda: client.load_model("nothing")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_errors_are_those_of_the_servers(fleet: Fleet, protocol: str) -> None:
    kind = KINDS[protocol]
    with ExitStack() as stack:
        through = clients(fleet.gateways[0], stack)[protocol]
        direct = clients(fleet.servers[0], stack)[protocol]
        for ask_through, ask_direct in zip(refusals(through, kind), refusals(direct, kind), strict=True):
            errors: list[tuple[Any, str]] = []
            for each in (ask_through, ask_direct):
                with pytest.raises(InferenceServerException) as refused:
                    each()
                errors.append((refused.value.status(), refused.value.message()))
            assert errors[0] == errors[1]


def test_sequences_through_two_gateways(fleet: Fleet) -> None:
    """Each request of a sequence goes through one or the other, as it comes; sums are right all the same."""
    chance = random.Random(17)
    with ExitStack() as stack:
        asked = [
            (KINDS[name], client) for gateway in fleet.gateways for name, client in clients(gateway, stack).items()
        ]
        values = {key: [chance.randrange(100) for _ in range(STEPS)] for key in range(1, SEQUENCES + 1)}
        order = [key for key in values for _ in range(STEPS)]
        chance.shuffle(order)
        sums: dict[int, list[int]] = {key: [] for key in values}
        for key in order:
            step = len(sums[key])
            kind, client = chance.choice(asked)
            result = client.infer(
                "running_sum",
                [tensor(kind, "INPUT", np.array([[values[key][step]]], np.int32), "INT32")],
                sequence_id=key,
                sequence_start=step == 0,
                sequence_end=step == STEPS - 1,
            )
            sums[key].append(int(result.as_numpy("OUTPUT")[0, 0]))
    assert sums == {key: list(accumulate(each)) for key, each in values.items()}
    for server in fleet.servers:
        assert server.ask("GET", "/v2/models/running_sum/stats")[1]["model_stats"][0]["inference_count"] > 0


def test_models_are_loaded_and_unloaded_at_all_servers(fleet: Fleet) -> None:
    first, second = fleet.gateways
    assert first.ask("POST", "/v2/repository/models/square_int32/load")[0] == 200
    for port in (first.http_port, *(server.http_port for server in fleet.servers)):
        assert ask(port, "GET", "/v2/models/square_int32/ready")[0] == 200
    index = {row["name"]: row for row in second.ask("POST", "/v2/repository/index")[1]}
    assert index["square_int32"] == {"name": "square_int32", "version": "1", "state": "READY"}
    assert fleet.servers[1].ask("POST", "/v2/repository/models/square_int32/unload")[0] == 200
    row = next(row for row in first.ask("POST", "/v2/repository/index")[1] if row["name"] == "square_int32")
    assert row["state"] == "READY"
    assert row["reason"] in ("replica b: UNAVAILABLE: unloaded", "replica b: UNLOADING")
    assert first.ask("POST", "/v2/repository/models/square_int32/unload")[0] == 200
    assert first.ask("GET", "/v2/models/square_int32/ready")[0] == 400
    body = {"inputs": [{"name": "INPUT", "shape": [1], "datatype": "INT32", "data": [1]}]}
    answers = [each.ask("POST", "/v2/models/square_int32/infer", body) for each in (first, fleet.servers[0])]
    assert answers == [(404, {"error": "Request for unknown model: 'square_int32' has no available versions"})] * 2


def test_about_a_gateway(fleet: Fleet) -> None:
    gateway = fleet.gateways[0]
    assert gateway.ask("GET", "/v2/health/ready")[0] == 200
    assert gateway.ask("GET", "/v2/models/running_sum/config") == fleet.servers[0].ask(
        "GET", "/v2/models/running_sum/config"
    )
    assert gateway.ask("GET", "/v2/models/running_sum") == fleet.servers[0].ask("GET", "/v2/models/running_sum")
    status, error = gateway.ask("POST", "/v2/systemsharedmemory/region/r/register", {"key": "/k", "byte_size": 4})
    assert status in (400, 501)
    assert error["error"]
    page = gateway.metrics()
    assert 'trireme_fleet_replica_state{replica="a",state="ready"} 1' in page
    assert 'trireme_fleet_requests_total{outcome="answered",replica="b"}' in page


def test_a_server_that_joins_later_is_told_what_was_changed(fleet: Fleet) -> None:
    """It has loaded nothing by itself. What one gateway has loaded and the other unloaded stays unloaded."""
    first, second = fleet.gateways
    for name in ("square_int32", "simple_identity"):
        assert first.ask("POST", f"/v2/repository/models/{name}/load")[0] == 200
    assert second.ask("POST", "/v2/repository/models/simple_identity/unload")[0] == 200
    flags = ("--model-control-mode", "explicit", "--allow-metrics", "false")
    with serve_process(REPOSITORY, *flags, wait=False) as late:
        write_fleet(fleet.file, **fleet.ports, c=late.grpc_port)
        first.wait_for("replica c was told what has been changed before: load 'square_int32'")
        assert late.ask("GET", "/v2/models/square_int32/ready")[0] == 200
        assert late.ask("GET", "/v2/models/simple_identity/ready")[0] == 400
        write_fleet(fleet.file, **fleet.ports)
        first.wait_for("the file of the fleet was read again: 2 replicas")
