"""A traced server with scripted models, and clients that ask it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import tritonclient.grpc as grpcclient
from scripted_models import Script, write_scripted_models
from traces import elements

from trireme.engine.tracing import TraceConfig

_CHAIN = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
  step {
    model_name: "plain" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "MIDDLE" }
  }
  step {
    model_name: "LAST" model_version: -1
    input_map { key: "IN" value: "MIDDLE" } output_map { key: "OUT" value: "OUT" }
  }
}
"""


_LIMITED = """
dynamic_batching { default_queue_policy {
  max_queue_size: 1 default_timeout_microseconds: 50000 timeout_action: REJECT } }
"""


class World:
    """A traced server, and where its traces go."""

    def __init__(self, live: Any, folder: Path, script: Script) -> None:
        self.live = live
        self.script = script
        self.folder = folder

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urlopen(Request(f"http://{self.live.url}{path}", data, dict(headers or {}))) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def infer(
        self, model: str, request_id: str = "", script: str = "", data: object = (1, 2), **headers: str
    ) -> tuple[int, str]:
        tensor = {"name": "IN", "datatype": "FP32", "shape": [2], "data": data}
        parameters = {"script": script} if script else {}
        body = {"id": request_id, "inputs": [tensor], "parameters": parameters}
        return self.post(f"/v2/models/{model}/infer", body, headers)

    def set(self, **settings: object) -> None:
        status, text = self.post("/v2/trace/setting", settings)
        assert status == 200, text

    def file(self, name: str = "t.json") -> list[dict[str, Any]]:
        return elements(self.folder / name)


@contextmanager
def traced_world(folder: Path, serve: Callable[..., Any], tracing: TraceConfig, **options: Any) -> Iterator[World]:
    """A server on the scripted models, ``cached`` (as plain), ``limited`` (queued, one request
    for 50 ms at most), ``chain`` (plain, plain) and ``chain_of_chains`` (plain,
    chain).

    Args:
        folder: where its models are put.
        serve: the fixture.
        options: of the server.
    """
    repository = folder / "models"
    write_scripted_models(repository)
    for name, last in (("chain", "plain"), ("chain_of_chains", "chain")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(_CHAIN.replace("LAST", last))
    (repository / "cached" / "1").mkdir(parents=True)
    for name in ("config.pbtxt", "labels.txt"):
        (repository / "cached" / name).write_text((repository / "plain" / name).read_text())
    with (repository / "cached" / "config.pbtxt").open("a") as config:
        config.write("response_cache { enable: true }")
    (repository / "limited" / "1").mkdir(parents=True)
    limited = (repository / "queued" / "config.pbtxt").read_text().replace("dynamic_batching { }", _LIMITED)
    (repository / "limited" / "config.pbtxt").write_text(limited)
    (repository / "limited" / "labels.txt").write_text("zero\none\n")
    script = Script()
    with serve(repository, script.backends(), tracing=tracing, **options) as live:
        yield World(live, folder, script)


def inputs(name: str = "IN", shape: tuple[int, ...] = (2,)) -> list[grpcclient.InferInput]:
    array = np.array([1, 2], np.float32).reshape(shape)
    tensor = grpcclient.InferInput(name, array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]
