"""What front ends remember of a request that clients repeat says nothing of its model: whatever is loaded by now checks
and answers the next one, in the same bytes on the same connection."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_stub import MESSAGES, OpenStream, stub_for
from valued_models import CONFIG_JSON, Gates, write_model

from trireme.engine.options import ControlMode

Ask = Callable[[], tuple[float, str] | str]
"""Sends the request once more: the value and the version of the answer, or the error."""

REQUEST = MESSAGES.ModelInferRequest(model_name="m", raw_input_contents=[np.float32(2).tobytes()])
REQUEST.inputs.add(name="IN", datatype="FP32", shape=[1])
REQUEST.outputs.add(name="OUT")


def answer(response: Any) -> tuple[float, str]:
    (raw,) = response.raw_output_contents
    return float(np.frombuffer(raw, np.float32)[0]), response.model_version


@contextmanager
def over_http(live: Any) -> Iterator[Ask]:
    tensor = {"name": "IN", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}
    document = {"inputs": [tensor], "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}
    head = json.dumps(document).encode()
    connection = http.client.HTTPConnection(live.url)

    def ask() -> tuple[float, str] | str:
        connection.putrequest("POST", "/v2/models/m/infer", skip_accept_encoding=True)
        connection.putheader("Content-Length", str(len(head) + 4))
        connection.putheader("Inference-Header-Content-Length", str(len(head)))
        connection.endheaders(head + np.float32(2).tobytes())
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            return json.loads(body)["error"]
        return float(np.frombuffer(body[-4:], np.float32)[0]), json.loads(body[:-4])["model_version"]

    yield ask
    connection.close()


@contextmanager
def over_grpc(live: Any) -> Iterator[Ask]:
    with stub_for(live.grpc_url) as stub:

        def ask() -> tuple[float, str] | str:
            try:
                return answer(stub.ModelInfer(REQUEST))
            except grpc.RpcError as error:
                return error.details()  # type: ignore[attr-defined]

        yield ask


@contextmanager
def over_a_stream(live: Any) -> Iterator[Ask]:
    with stub_for(live.grpc_url) as stub:
        stream = OpenStream(stub)

        def ask() -> tuple[float, str] | str:
            stream.put(REQUEST)
            response = stream.hear()
            return response.error_message or answer(response.infer_response)

        yield ask
        stream.half_close()


def load(control: Any, config: str = "") -> None:
    request = MESSAGES.RepositoryModelLoadRequest(model_name="m")
    if config:
        request.parameters["config"].string_param = config
    control.RepositoryModelLoad(request)


@pytest.mark.parametrize("way", [over_http, over_grpc, over_a_stream])
def test_a_repeated_request_meets_the_model_as_it_is(way: Any, tmp_path: Path, serve: Callable[..., Any]) -> None:
    write_model(tmp_path, "m", {1: 1.0})
    longer = (CONFIG_JSON % ("m", "")).replace('"dims":[1]', '"dims":[2]')
    explicit = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("m",)}
    with (
        serve(tmp_path, Gates().backends(), **explicit) as live,
        stub_for(live.grpc_url) as control,
        way(live) as ask,
    ):

        def asked() -> tuple[float, str] | str:
            (said,) = {ask() for _ in range(4)}  # by the last one, all that can be remembered is
            return said

        assert asked() == (3.0, "1")
        write_model(tmp_path, "m", {1: 1.0, 2: 10.0})
        load(control)
        assert asked() == (12.0, "2")
        load(control, longer)
        assert "shape" in asked()
        control.RepositoryModelUnload(MESSAGES.RepositoryModelUnloadRequest(model_name="m"))
        assert "Request for unknown model: 'm'" in asked()
        load(control)
        assert asked() == (12.0, "2")
