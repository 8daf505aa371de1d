"""What Ray Serve serves: an application for each model of the manifest.

    python ray_app.py MANIFEST PORT TEMPORARY

A request is ``{"input": numbers}`` as JSON, or the bytes of the tensor; the answer is of the same kind.
"""
# pyright: reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false

import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


@serve.deployment(max_ongoing_requests=100, ray_actor_options={"num_cpus": 0.01})
class Identity:
    async def __call__(self, request: Request) -> Response:
        return JSONResponse({"output": (await request.json())["input"]})


def network(model: dict[str, Any]) -> Any:
    @serve.deployment(
        name=model["name"],
        num_replicas=model["instances"],
        max_ongoing_requests=100,
        ray_actor_options={"num_cpus": 0.01},
    )
    class Network:
        def __init__(self) -> None:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = model["threads"]
            options.inter_op_num_threads = 1
            self.session = onnxruntime.InferenceSession(model["file"], options, providers=["CPUExecutionProvider"])

        @serve.batch(max_batch_size=model["max_batch_size"], batch_wait_timeout_s=0.002)
        async def run(self, rows: list[np.ndarray]) -> list[np.ndarray]:
            (made,) = self.session.run([model["output_name"]], {model["input_name"]: np.stack(rows)})
            return list(made)

        async def __call__(self, request: Request) -> Response:
            body = await request.body()
            shape = model["given"][1]
            if request.headers.get("content-type") == "application/json":
                made = await self.run(np.array(json.loads(body)["input"], np.float32).reshape(shape))
                return JSONResponse({"output": made.ravel().tolist()})
            return Response((await self.run(np.frombuffer(body, np.float32).reshape(shape))).tobytes())

    return Network


if __name__ == "__main__":
    models = json.loads(Path(sys.argv[1]).read_text())
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=200_000_000,
        _temp_dir=sys.argv[3],
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    for served in models:
        application = network(served) if served["kind"] == "onnx" else Identity
        serve.run(application.bind(), name=served["name"], route_prefix="/" + served["name"])
    threading.Event().wait()
