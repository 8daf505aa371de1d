"""`trireme serve --routes`, asked by Triton's clients; whether front ends are processes of their own or not."""

from __future__ import annotations

import json
import queue
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from beside_one_process import IN_PROCESS, wait_until
from grpc import RpcError
from grpc_stub import MESSAGES, stub_for
from later_files import later_change
from python_models import CONFIG, write_model
from serve_process import PATIENCE_S, ServeProcess, serve_process
from tritonclient.utils import InferenceServerException

from trireme.api.cli.main import main

SAYS_ITS_VERSION = """
    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            self.version = float(args["model_version"])

        def execute(self, requests):
            responses = []
            for request in requests:
                given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                answer = pb_utils.Tensor("OUTPUT0", np.full_like(given, self.version))
                error = pb_utils.TritonError("planted") if {fails} else None
                responses.append(pb_utils.InferenceResponse([answer], error))
            return responses
"""
BOTH = CONFIG + "version_policy { all {} }\n" + IN_PROCESS
EVEN = "targets = { 'a:1' = 50, 'a:2' = 50 }\n"
USERS = [f"user {number}" for number in range(16)]


class Routed(NamedTuple):
    """A server, and its file of routes."""

    server: ServeProcess
    file: Path

    def write(self, text: str) -> None:
        with later_change(self.file):
            self.file.write_text(text)


@pytest.fixture(scope="module", params=[0, 1])
def routed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    folder = tmp_path_factory.mktemp("routed")
    for version, fails in ((1, "False"), (2, "False"), (3, "given.flat[0] > 1")):
        code = SAYS_ITS_VERSION.replace("{fails}", fails)
        if version == 1:
            write_model(folder / "models", "a", code, BOTH)
        else:
            (folder / "models" / "a" / str(version)).mkdir()
            path = write_model(folder / "other", f"a{version}", code, BOTH, version) / str(version) / "model.py"
            path.rename(folder / "models" / "a" / str(version) / "model.py")
    file = folder / "routes.toml"
    file.write_text(f"[routes.r]\n{EVEN}sticky = 'header:X-User'\n[routes.a]\n{EVEN}")
    with serve_process(
        folder / "models", "--front-ends", str(request.param), "--routes", str(file), "--log-verbose=1"
    ) as server:
        yield Routed(server, file)
        server.process.terminate()
        assert server.wait() == 0, server.log


def inputs(protocol: Any, value: float = 0.0) -> list[Any]:
    array = np.full((1, 1), value, np.float32)
    return [protocol.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(array)]


def http(routed: Routed) -> Any:
    return httpclient.InferenceServerClient(f"127.0.0.1:{routed.server.http_port}", network_timeout=PATIENCE_S)


def grpc(routed: Routed) -> Any:
    return grpcclient.InferenceServerClient(f"127.0.0.1:{routed.server.grpc_port}")


def version_of(result: Any) -> int:
    return int(result.as_numpy("OUTPUT0").flat[0])


def stream(client: Any, ask: Callable[[], None], count: int, **start: Any) -> list[Any]:
    """What so many requests on a stream are answered."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result), **start)
    for _ in range(count):
        ask()
    found = [answers.get(timeout=PATIENCE_S) for _ in range(count)]
    client.stop_stream()
    return found


def generate(routed: Routed, model: str, **headers: str) -> int:
    url = f"http://127.0.0.1:{routed.server.http_port}/v2/models/{model}/generate"
    request = urllib.request.Request(url, json.dumps({"INPUT0": [0]}).encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        told = json.load(answer)
    assert told["model_name"] == "a"
    assert float(told["OUTPUT0"]) == float(told["model_version"])
    return int(told["model_version"])


def test_a_header_decides_by_every_protocol_alike(routed: Routed) -> None:
    with http(routed) as over_http, grpc(routed) as over_grpc:
        targets: dict[str, int] = {}
        for user in USERS:
            headers = {"x-user": user}
            results = [
                over_http.infer("r", inputs(httpclient), headers={"X-User": user}),
                over_grpc.infer("r", inputs(grpcclient), headers=headers),
                *stream(over_grpc, partial(over_grpc.async_stream_infer, "r", inputs(grpcclient)), 2, headers=headers),
            ]
            found = {*map(version_of, results), generate(routed, "r", **headers)}
            assert len(found) == 1
            (targets[user],) = found
            answer = results[1].get_response()
            assert (answer.model_name, answer.model_version) == ("a", str(targets[user]))
            assert results[0].get_response()["model_version"] == str(targets[user])
        assert set(targets.values()) == {1, 2}


@pytest.mark.parametrize("protocol", [httpclient, grpcclient])
def test_a_version_that_is_named_is_meant(routed: Routed, protocol: Any) -> None:
    """And without one the name of a model that is a route, too, is the route."""
    with http(routed) if protocol is httpclient else grpc(routed) as client:
        found = Counter([version_of(client.infer("a", inputs(protocol))) for _ in range(8)])
        assert found.keys() == {1, 2}
        assert version_of(client.infer("a", inputs(protocol), model_version="3")) == 3
        with pytest.raises(InferenceServerException, match="unknown model: 'r' is not found"):
            client.infer("r", inputs(protocol), model_version="1")


@pytest.mark.parametrize("protocol", [httpclient, grpcclient])
def test_a_route_looks_like_a_model(routed: Routed, protocol: Any) -> None:
    with http(routed) if protocol is httpclient else grpc(routed) as client:
        as_json = {} if protocol is httpclient else {"as_json": True}
        assert client.is_model_ready("r")
        assert not client.is_model_ready("r", "1")
        metadata = client.get_model_metadata("r", **as_json)
        assert (metadata["name"], metadata.get("versions", [])) == ("r", [])
        assert [each["name"] for each in metadata["inputs"]] == ["INPUT0"]
        config = client.get_model_config("r", **as_json)
        config = config if protocol is httpclient else config["config"]
        assert (config["name"], config["max_batch_size"]) == ("r", 8)
        if protocol is httpclient:
            statistics = client.get_inference_statistics("r")["model_stats"]
            assert {(each["name"], each["version"]) for each in statistics} == {("r", "0"), ("a", "1"), ("a", "2")}


class Told(NamedTuple):
    """What a call was answered."""

    status: int
    document: Any


def ask(routed: Routed, method: str, path: str, body: object = None) -> Told:
    url = f"http://127.0.0.1:{routed.server.http_port}/v2/{path}"
    data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=PATIENCE_S) as answer:
            return Told(answer.status, json.loads(answer.read() or b"null"))
    except urllib.error.HTTPError as error:
        return Told(error.code, json.loads(error.read())["error"])


ODD = {"targets": {"a:1": 90, "a:2": 10}, "canary": {"target": "a:2", "step-secs": 3600}}


def test_routes_are_managed_over_http(routed: Routed) -> None:
    assert [each["name"] for each in ask(routed, "GET", "routes").document] == ["r", "a"]
    told = ask(routed, "PUT", "routes/live", ODD)
    assert told.status == 200
    assert (told.document["name"], told.document["targets"]) == ("live", ODD["targets"])
    assert told.document["state"]["origin"] == "live"
    assert [each["share"] for each in told.document["state"]["targets"]] == [99, 1]
    assert told.document["state"]["rollout"]["state"] == "step"
    with http(routed) as client:
        assert version_of(client.infer("live", inputs(httpclient))) in (1, 2)
    stopped = ask(routed, "POST", "routes/live/stop").document["state"]
    assert [each["share"] for each in stopped["targets"]] == [90, 10]
    assert (stopped["rollout"]["state"], stopped["rollout"]["reason"]) == ("back", "an operator stopped it")
    config = ask(routed, "GET", "models/live/config").document
    assert json.loads(config["parameters"]["route"]["string_value"])["name"] == "live"
    assert ask(routed, "DELETE", "routes/live") == (200, None)
    gone = (404, "there is no route 'live'")
    for method, path in (("GET", "live"), ("DELETE", "live"), ("POST", "live/stop")):
        assert ask(routed, method, f"routes/{path}") == gone
    assert ask(routed, "POST", "repository/models/live/load", {"parameters": {"route": json.dumps(ODD)}}) == (200, None)
    assert ask(routed, "GET", "routes/live").document["state"]["rollout"]["state"] == "step"
    told = ask(routed, "POST", "repository/models/live/load", {"parameters": {"route": ODD}})
    assert told == (400, "load parameter 'route' is of another type, expected a string (JSON)")
    for parameter in ("stop_rollout", "route"):
        told = ask(routed, "POST", "repository/models/live/unload", {"parameters": {parameter: True}})
        assert told == (200, None)
    assert ask(routed, "GET", "routes/live") == gone


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"targets": {"a:1": 90}}, "route 'x': targets: the weights of its targets add up to 90, expected 100"),
        (
            {"targets": {"none": 100}},
            "route 'x': target 'none' is unknown, expected a model of the repository, such as",
        ),
        (
            {"targets": {"x": 100}},
            "route 'x': routes lead in a circle: from 'x' to 'x', expected versions of the model of this name, such as",
        ),
        ({"targets": {"r": 100}}, "route 'x': target 'r' is a route, expected a model"),
        ({"target": {}}, "route 'x': target: found an unknown key, expected one of canary, shadow, sticky, targets"),
        ([], "route 'x': found [], expected an object"),
        ('{"targets": {"a:1": 50, "a:1": 50}}', "route 'x': not valid JSON: a key is there twice"),
        ("{", "route 'x': not valid JSON: "),
        ("[" * 100_000, "route 'x': not valid JSON: "),
    ],
)
def test_what_cannot_be_is_refused_by_both_protocols(routed: Routed, document: Any, text: str) -> None:
    told = ask(routed, "PUT", "routes/x", document)
    assert told.status == 400
    assert told.document.startswith(text)
    written = document if isinstance(document, str) else json.dumps(document)
    stub = MESSAGES.RepositoryModelLoadRequest(model_name="x")
    stub.parameters["route"].string_param = written
    with stub_for(f"127.0.0.1:{routed.server.grpc_port}") as service, pytest.raises(RpcError) as caught:
        service.RepositoryModelLoad(stub)
    failed: Any = caught.value
    assert failed.code().name == "INVALID_ARGUMENT"
    assert failed.details().startswith(text)


def test_routes_are_managed_over_grpc(routed: Routed) -> None:
    load = MESSAGES.RepositoryModelLoadRequest(model_name="live")
    load.parameters["route"].string_param = json.dumps(ODD)
    unload = {
        name: MESSAGES.RepositoryModelUnloadRequest(model_name="live") for name in ("stop_rollout", "route", "wrong")
    }
    for name in ("stop_rollout", "route"):
        unload[name].parameters[name].bool_param = True
    unload["wrong"].parameters["route"].string_param = "yes"
    with stub_for(f"127.0.0.1:{routed.server.grpc_port}") as stub:

        def rollout() -> str:
            config = stub.ModelConfig(MESSAGES.ModelConfigRequest(name="live")).config
            return json.loads(config.parameters["route"].string_value)["state"]["rollout"]["state"]

        stub.RepositoryModelLoad(load)
        assert rollout() == "step"
        stub.RepositoryModelUnload(unload["stop_rollout"])
        assert rollout() == "back"
        for request, code in (
            (unload["wrong"], "INVALID_ARGUMENT"),
            (unload["route"], ""),
            (unload["route"], "NOT_FOUND"),
        ):
            found = ""
            try:
                stub.RepositoryModelUnload(request)
            except RpcError as error:
                failed: Any = error
                found = failed.code().name
            assert found == code
        load.parameters["config"].string_param = "{}"
        with pytest.raises(RpcError, match="load parameter 'route' cannot be given with others"):
            stub.RepositoryModelLoad(load)


def command(routed: Routed, *words: str) -> list[str]:
    return ["route", *words, "--url", f"127.0.0.1:{routed.server.http_port}"]


def test_the_command(routed: Routed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(command(routed, *words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    code, out, _ = run("set", "live", "--target", "a:1=100", "--target", "a:2=0", "--canary", "a:2", "--steps", "5,100")
    assert code == 0
    assert "live   a:1       100%    95%  yes           0         0" in out
    assert re.search(r"canary 'a:2': step 1 of 2, 5%, \d+ s left: it can serve", out)
    assert {line.split()[0] for line in run("list")[1].splitlines()} >= {"ROUTE", "r", "a", "live", "sticky"}
    code, out, _ = run("show", "live", "--json")
    assert json.loads(out)["targets"] == {"a:1": 100, "a:2": 0}
    (tmp_path / "live.json").write_text(out)
    (tmp_path / "routes.toml").write_text("[routes.live]\ntargets.'a:1' = 100\n")
    assert "canary 'a:2': went back to 0%: an operator stopped it" in run("stop", "live")[1]
    assert run("set", "live", str(tmp_path / "live.json"))[0] == 0
    assert "canary" not in run("set", "live", str(tmp_path / "routes.toml"))[1]
    assert run("remove", "live") == (0, "route 'live' is removed\n", "")
    assert run("show", "live") == (1, "", "trireme route: there is no route 'live'\n")
    code, _, said = run("set", "live", "--target", "a:1=90")
    assert (code, said.split(": ", 1)[1]) == (
        1,
        "route 'live': targets: the weights of its targets add up to 90, expected 100\n",
    )


def test_the_file_is_followed_and_a_bad_canary_goes_back(routed: Routed) -> None:
    with http(routed) as client:
        routed.write("[routes.r]\ntargets = { 'a:9' = 'all' }\n")
        routed.server.wait_for("the file of routes is refused, the routes stay as they were: .*routes.toml:2: .*whole")
        assert {version_of(client.infer("r", inputs(httpclient), headers={"x-user": user})) for user in USERS} == {1, 2}
        routed.write(
            "[routes.r]\ntargets = { 'a:1' = 100, 'a:3' = 0 }\n"
            "[routes.r.canary]\ntarget = 'a:3'\nsteps = [50, 100]\nstep-secs = 2\n"
        )
        routed.server.wait_for("route 'r': rollout of 'a:3' is step, with 50 %")
        told: Counter[str] = Counter()

        def went_back() -> bool:
            for _ in range(20):
                try:
                    told[str(version_of(client.infer("r", inputs(httpclient, 2.0))))] += 1
                except InferenceServerException as error:
                    told[error.message()] += 1
            return "rollout of 'a:3' is back" in routed.server.log

        wait_until(went_back)
        assert told.keys() == {"1", "planted"}
        routed.server.wait_for("rollout of 'a:3' is back, with 0 % of the requests: .* requests failed, ")
        assert {version_of(client.infer("r", inputs(httpclient, 2.0))) for _ in range(20)} == {1}
        with urllib.request.urlopen(f"http://127.0.0.1:{routed.server.metrics_port}/metrics") as page:
            text = page.read().decode()
        assert 'trireme_route_rollout_state{route="r",state="back",target="a:3"} 1' in text
        failed = f'trireme_route_requests_total{{outcome="failure",route="r",target="a:3"}} {told["planted"]}'
        assert failed in text
