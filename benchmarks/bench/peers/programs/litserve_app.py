"""What LitServe serves: an endpoint for each model of the manifest.

    python litserve_app.py MANIFEST PORT

A request is ``{"input": numbers}``, or ``{"bytes": base64}``, and the answer is ``{"output": numbers}``.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np


class Served(litserve.LitAPI):
    def __init__(self, model: dict[str, Any]) -> None:
        size, delay = (model["max_batch_size"], 0.002) if model["kind"] == "onnx" else (1, 0.0)
        super().__init__(api_path="/" + model["name"], max_batch_size=size, batch_timeout=delay)
        self.model = model

    def setup(self, device: str) -> None:
        self.session = None
        if self.model["kind"] == "onnx":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.model["threads"]
            options.inter_op_num_threads = 1
            file = self.model["file"]
            self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def decode_request(self, request) -> Any:  # without a type, LitServe passes on the JSON object
        if self.session is None:
            return request["input"]
        if "bytes" in request:
            values = np.frombuffer(base64.b64decode(request["bytes"]), np.float32)
        else:
            values = np.array(request["input"], np.float32)
        return values.reshape(self.model["given"][1])

    def predict(self, values: Any) -> Any:
        if self.session is None:
            return values
        batch = np.asarray(values).reshape(-1, *self.model["given"][1])  # stacked, if it makes batches at all
        (made,) = self.session.run([self.model["output_name"]], {self.model["input_name"]: batch})
        return made

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"output": output if isinstance(output, list) else output.ravel().tolist()}


if __name__ == "__main__":
    models = json.loads(Path(sys.argv[1]).read_text())
    server = litserve.LitServer(
        [Served(model) for model in models],
        accelerator="cpu",
        timeout=120,
        workers_per_device=max(model["instances"] for model in models),
    )
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="warning")
