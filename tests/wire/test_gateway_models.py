"""Models are loaded and unloaded through a gateway, as by KServe's multi-model serving, at servers of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from python_models import CONFIG, IDENTITY, write_model
from serve_process import PATIENCE_S, GatewayProcess, ServeProcess, ask, serve_process, write_fleet
from tritonclient.utils import InferenceServerException

IN_PROCESS = CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
DOUBLING = "\n".join(line[4:] for line in IDENTITY.replace("tensor.as_numpy()", "2 * tensor.as_numpy()").splitlines())
TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
GIVEN: dict[str, Any] = {
    "backend": "python",
    "max_batch_size": 4,
    "input": [{"name": "INPUT0", **TENSOR}],
    "output": [{"name": "OUTPUT0", **TENSOR}],
    "parameters": {"EXECUTION": {"string_value": "in_process"}},
}
KINDS = {"http": httpclient, "grpc": grpcclient}


class Fleet:
    """Two servers, each with a repository of its own, and a gateway in front of both."""

    def __init__(self, stack: ExitStack, folder: Path, *flags: str) -> None:
        self.repositories = {name: folder / name for name in "ab"}
        for path in self.repositories.values():
            write_model(path, "one", config=IN_PROCESS)
        write_model(self.repositories["a"], "only_a", config=IN_PROCESS)
        flags = ("--allow-metrics", "false", "--strict-readiness", "false", *flags)
        self.servers = {
            name: stack.enter_context(serve_process(path, *flags, wait=False))
            for name, path in self.repositories.items()
        }
        write_fleet(folder / "fleet.toml", **{name: server.grpc_port for name, server in self.servers.items()})
        self.gateway = stack.enter_context(GatewayProcess(folder / "fleet.toml"))
        for name in self.servers:
            self.gateway.wait_for(f"replica {name} at .*: ready")

    def ready(self, model: str) -> dict[str, bool]:
        """Where it is."""
        asked = {"gateway": self.gateway, **self.servers}
        path = f"/v2/models/{model}/ready"
        return {name: each.ask("GET", path)[0] == 200 for name, each in asked.items()}


@pytest.fixture(scope="module")
def explicit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, tmp_path_factory.mktemp("explicit"), "--model-control-mode", "explicit")


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, explicit: Fleet) -> Iterator[Any]:
    with client_of(explicit.gateway, request.param) as client:
        yield client


def client_of(server: ServeProcess, protocol: str) -> Any:
    port = server.http_port if protocol == "http" else server.grpc_port
    more = {"network_timeout": PATIENCE_S} if protocol == "http" else {}
    return KINDS[protocol].InferenceServerClient(f"127.0.0.1:{port}", **more)


def infer(client: Any, model: str) -> list[float]:
    kind = KINDS["grpc" if "grpc" in type(client).__module__ else "http"]
    tensor = kind.InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1.5, 2.5]], np.float32))
    return client.infer(model, [tensor]).as_numpy("OUTPUT0")[0].tolist()


def index(client: Any) -> dict[str, dict[str, str]]:
    found = client.get_model_repository_index()
    if not isinstance(found, list):
        found = [{"name": each.name, "state": each.state, "reason": each.reason} for each in found.models]
    return {row["name"]: row for row in found}


def error_of(client: Any, model: str, **overrides: Any) -> str:
    with pytest.raises(InferenceServerException) as refused:
        client.load_model(model, **overrides)
    return refused.value.message()


def test_a_model_is_loaded_and_unloaded_everywhere(explicit: Fleet, client: Any) -> None:
    assert not any(explicit.ready("one").values())
    client.load_model("one")
    assert all(explicit.ready("one").values())
    assert index(client)["one"]["state"] == "READY"
    for _ in range(8):
        assert infer(client, "one") == [1.5, 2.5]
    client.unload_model("one")
    assert not any(explicit.ready("one").values())
    assert index(client)["one"]["state"] == "UNAVAILABLE"
    with pytest.raises(InferenceServerException, match="no available versions"):
        infer(client, "one")


def test_a_configuration_is_given_to_all(explicit: Fleet, client: Any) -> None:
    client.load_model("one", config=json.dumps({**GIVEN, "max_batch_size": 3}))
    for server in (explicit.gateway, *explicit.servers.values()):
        assert server.ask("GET", "/v2/models/one/config")[1]["max_batch_size"] == 3
    assert infer(client, "one") == [1.5, 2.5]
    client.load_model("one")  # it has not changed
    assert explicit.gateway.ask("GET", "/v2/models/one/config")[1]["max_batch_size"] == 3
    client.load_model("one", config=json.dumps(GIVEN))
    assert explicit.gateway.ask("GET", "/v2/models/one/config")[1]["max_batch_size"] == 4
    client.unload_model("one")


def test_files_are_given_to_all(explicit: Fleet, client: Any) -> None:
    """Of a model that is in no repository."""
    client.load_model("given", config=json.dumps(GIVEN), files={"file:1/model.py": DOUBLING.encode()})
    assert all(explicit.ready("given").values())
    for server in (explicit.gateway, *explicit.servers.values()):
        with client_of(server, "grpc") as direct:
            assert infer(direct, "given") == [3.0, 5.0]
    client.unload_model("given")
    assert not any(explicit.ready("given").values())


def test_a_configuration_that_is_faulty_is_one_error(explicit: Fleet, client: Any) -> None:
    """What all of them say is said once."""
    direct = client_of(explicit.servers["a"], "grpc")
    with direct:
        assert error_of(client, "one", config="{") == error_of(direct, "one", config="{")
    assert not any(explicit.ready("one").values())


def test_who_could_not_load_is_named(explicit: Fleet, client: Any) -> None:
    """The others have done it, and serve."""
    error = error_of(client, "only_a")
    assert "failed to load 'only_a' at 1 of 2 replicas: replica b: failed to load 'only_a'" in error
    assert explicit.ready("only_a") == {"gateway": True, "a": True, "b": False}
    for _ in range(4):
        assert infer(client, "only_a") == [1.5, 2.5]
    assert index(client)["only_a"]["state"] == "READY"
    with ExitStack() as stack:
        direct = stack.enter_context(client_of(explicit.servers["b"], "grpc"))
        try:
            direct.unload_model("only_a")
        except InferenceServerException as refused:
            said = refused.message()
            with pytest.raises(InferenceServerException, match="1 of 2 replicas: replica b: ") as failed:
                client.unload_model("only_a")
            assert said in failed.value.message()
        else:
            client.unload_model("only_a")
    assert not any(explicit.ready("only_a").values())


def test_what_agents_load_beside_their_servers(explicit: Fleet) -> None:
    """As KServe's: each writes the model for its own server, loads it there, and takes its files away before it unloads
    it. The gateway asks who has it."""
    names = list(explicit.servers)
    for name in names:
        write_model(explicit.repositories[name], "trained", config=IN_PROCESS)
        path = "/v2/repository/models/trained/load"
        assert ask(explicit.servers[name].http_port, "POST", path, {}) == (200, None)
        with client_of(explicit.gateway, "http") as client:
            wait_until_served(client, "trained", explicit.servers[name])
            assert infer(client, "trained") == [1.5, 2.5]
    assert all(explicit.ready("trained").values())
    for number, name in enumerate(names):
        shutil.rmtree(explicit.repositories[name] / "trained")
        path = "/v2/repository/models/trained/unload"
        assert ask(explicit.servers[name].http_port, "POST", path, {}) == (200, None)
        if number == 0:
            with client_of(explicit.gateway, "grpc") as client:
                assert infer(client, "trained") == [1.5, 2.5]


def wait_until_served(client: Any, model: str, server: ServeProcess) -> None:
    """A gateway hears by the next report that a server has it."""
    while server.ask("GET", f"/v2/models/{model}/stats")[1]["model_stats"][0]["inference_count"] == 0:
        try:
            infer(client, model)
        except InferenceServerException as error:
            if "unknown model" not in error.message():
                raise


@pytest.mark.slow
def test_models_on_demand(tmp_path: Path) -> None:
    """A request loads its model at one server, and at the other one when that is lost."""
    with ExitStack() as stack:
        flags = ("--model-control-mode", "on-demand", "--model-memory-limit", "1G")
        fleet = Fleet(stack, tmp_path, *flags)
        clients = [stack.enter_context(client_of(fleet.gateway, protocol)) for protocol in KINDS]
        for client in clients:
            assert "on demand: not in memory" in index(client)["only_a"]["reason"]
            error = error_of(client, "one", config=json.dumps(GIVEN))
            assert error.startswith("a model cannot be loaded with parameters if models are loaded on demand")
            assert infer(client, "one") == [1.5, 2.5]
            assert index(client)["one"]["state"] == "READY"
        holders = [name for name, server in fleet.servers.items() if holds(server, "one")]
        assert len(holders) == 1
        for client in clients:
            client.unload_model("one")
            assert not any(holds(server, "one") for server in fleet.servers.values())
            client.load_model("one")
            assert all(holds(server, "one") for server in fleet.servers.values())
            error = error_of(client, "only_a")
            assert "at 1 of 2 replicas: replica b: " in error
            assert infer(client, "only_a") == [1.5, 2.5]
            client.unload_model("one")
        assert infer(clients[0], "one") == [1.5, 2.5]
        (holder,) = [name for name, server in fleet.servers.items() if holds(server, "one")]
        fleet.servers.pop(holder).process.kill()
        fleet.gateway.wait_for(f"replica {holder} at .* is not connected")
        for client in clients:
            assert infer(client, "one") == [1.5, 2.5]


def holds(server: ServeProcess, model: str) -> bool:
    """Whether it is in memory there, of models that can be asked for in any case."""
    rows = server.ask("POST", "/v2/repository/index")[1]
    return any(row["name"] == model and row.get("state") == "READY" for row in rows)
