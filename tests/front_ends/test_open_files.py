"""A process that has no descriptor left serves on what needs none: nothing is lost but what could not be passed on."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from beside_one_process import pids
from onnx import TensorProto, helper, save_model
from open_files import no_file_left
from serve_process import PATIENCE_S, ServeProcess, serve_process
from tritonclient.utils import InferenceServerException

LARGE = 1 << 20
"""Elements of what lies in a segment."""

NO_FILE = "there is no open file, or no memory, left to receive tensors with; try again later"


DATATYPES = {TensorProto.FLOAT: "FP32", TensorProto.INT64: "INT64"}


def write_model(folder: Path, name: str, node: str, datatype: Any) -> None:
    """OUTPUT0 FP32[n]: what `node` makes of INPUT0."""
    ends = [
        helper.make_tensor_value_info("INPUT0", datatype, ["elements"]),
        helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["elements"]),
    ]
    graph = helper.make_graph([helper.make_node(node, ["INPUT0"], ["OUTPUT0"])], name, ends[:1], ends[1:])
    (folder / name / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save_model(model, folder / name / "1" / "model.onnx")
    (folder / name / "config.pbtxt").write_text(
        'backend: "onnxruntime"\n'
        f'input [{{ name: "INPUT0" data_type: TYPE_{DATATYPES[datatype]} dims: [ -1 ] }}]\n'
        'output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]\n'
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServeProcess]:
    """With ``same``, which answers what it gets, and ``zeros``, which answers so many as it is told."""
    write_model(tmp_path, "same", "Identity", TensorProto.FLOAT)
    write_model(tmp_path, "zeros", "ConstantOfShape", TensorProto.INT64)
    with serve_process(tmp_path, "--front-ends", "1") as served:
        yield served


class Client:
    """One connection over HTTP."""

    def __init__(self, server: ServeProcess) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
        self._connection.connect()

    def infer(self, model: str, values: np.ndarray, datatype: str = "FP32") -> tuple[int, bytes]:
        """Status, and the output's bytes or what is told instead."""
        given = {"name": "INPUT0", "datatype": datatype, "shape": list(values.shape)}
        text = json.dumps(
            {
                "inputs": [given | {"parameters": {"binary_data_size": values.nbytes}}],
                "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
            }
        ).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        self._connection.request("POST", f"/v2/models/{model}/infer", text + values.tobytes(), headers)
        response = self._connection.getresponse()
        body = response.read()
        return response.status, body[int(response.headers.get("Inference-Header-Content-Length", 0)) :]

    def close(self) -> None:
        self._connection.close()


@contextmanager
def connected(server: ServeProcess) -> Iterator[Client]:
    client = Client(server)
    try:
        yield client
    finally:
        client.close()


SMALL = np.arange(4, dtype=np.float32)
MUCH = np.arange(LARGE, dtype=np.float32)
COUNT = np.array([LARGE], np.int64)


def is_as_before(server: ServeProcess, client: Client, front_ends: list[int]) -> None:
    """The front end has kept its link, and this connection; and large tensors go on."""
    for _ in range(3):
        assert client.infer("same", MUCH) == (200, MUCH.tobytes())
    assert client.infer("zeros", COUNT, "INT64") == (200, bytes(4 * LARGE))
    assert pids(server) == front_ends
    assert "has ended" not in server.log


def test_a_front_end_without_a_descriptor(server: ServeProcess) -> None:
    front_ends = pids(server)
    with connected(server) as client, grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc:
        given = grpcclient.InferInput("INPUT0", [1], "INT64")
        given.set_data_from_numpy(COUNT)
        assert grpc.is_server_live()  # it is connected
        assert client.infer("same", SMALL) == (200, SMALL.tobytes())
        with no_file_left(front_ends[0]):
            assert client.infer("same", SMALL) == (200, SMALL.tobytes())
            status, text = client.infer("same", MUCH)
            assert (status, json.loads(text)["error"]) == (
                503,
                "there is no memory for the request: Too many open files",
            )
            status, text = client.infer("zeros", COUNT, "INT64")
            assert (status, json.loads(text)["error"]) == (503, NO_FILE)
            with pytest.raises(InferenceServerException, match=f"UNAVAILABLE.*{NO_FILE}"):
                grpc.infer("zeros", [given])
            assert client.infer("same", SMALL) == (200, SMALL.tobytes())
            late = Client(server)  # the system has it wait
            server.wait_for("cannot accept connections")
        assert late.infer("same", SMALL) == (200, SMALL.tobytes())
        late.close()
        result: Any = grpc.infer("zeros", [given])
        assert np.array_equal(result.as_numpy("OUTPUT0"), np.zeros(LARGE, np.float32))
        is_as_before(server, client, front_ends)


def test_an_engine_without_a_descriptor(server: ServeProcess) -> None:
    front_ends = pids(server)
    with connected(server) as client:
        assert client.infer("same", SMALL) == (200, SMALL.tobytes())
        with no_file_left(server.process.pid):
            status, text = client.infer("same", MUCH)
            assert (status, json.loads(text)["error"]) == (503, NO_FILE)
            status, text = client.infer("zeros", COUNT, "INT64")
            assert status == 503
            assert json.loads(text)["error"].startswith("the answer cannot be passed on: Too many open files")
            assert client.infer("same", SMALL) == (200, SMALL.tobytes())
        is_as_before(server, client, front_ends)
