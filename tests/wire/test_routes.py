"""`trireme serve --routes`, asked by Triton's clients; whether front ends are processes of their own or not."""

from __future__ import annotations

import json
import queue
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
from later_files import later_change
from python_models import CONFIG, write_model
from serve_process import PATIENCE_S, ServeProcess, serve_process
from tritonclient.utils import InferenceServerException

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
            assert {(each["name"], each["version"]) for each in statistics} == {("a", "1"), ("a", "2")}


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
            return "is back" in routed.server.log

        wait_until(went_back)
        assert told.keys() == {"1", "planted"}
        routed.server.wait_for("rollout of 'a:3' is back, with 0 % of the requests: .* requests failed, ")
        assert {version_of(client.infer("r", inputs(httpclient, 2.0))) for _ in range(20)} == {1}
        with urllib.request.urlopen(f"http://127.0.0.1:{routed.server.metrics_port}/metrics") as page:
            text = page.read().decode()
        assert 'trireme_route_rollout_state{route="r",state="back",target="a:3"} 1' in text
        failed = f'trireme_route_requests_total{{outcome="failure",route="r",target="a:3"}} {told["planted"]}'
        assert failed in text
