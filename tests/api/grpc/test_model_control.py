"""Triton's own client changes a model while another one infers without a pause: no error, never a mixed answer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from scripted_server import scripted_server
from tritonclient.utils import InferenceServerException
from valued_models import CONFIG_JSON, Gates, write_model

from trireme.engine.options import ControlMode

RELOADS = 50


def ask(client: triton.InferenceServerClient) -> set[float]:
    """Version and outputs of an answer; one number, if all is well."""
    tensor = triton.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    result: Any = client.infer("a", [tensor])
    return {
        float(result.get_response().model_version),
        float(result.as_numpy("OUT")[0]),
        float(result.as_numpy("BY")[0]),
    }


def test_reloads_under_fire(tmp_path: Path) -> None:
    write_model(tmp_path, "a", {1: 1})
    failures: list[object] = []
    answers = 0
    stop = threading.Event()
    control = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("a",)}
    with scripted_server(tmp_path, backends=Gates().backends(), **control) as running:

        def ask_on() -> None:
            nonlocal answers
            with triton.InferenceServerClient(running.url) as client:
                while not stop.is_set():
                    try:
                        told = ask(client)
                    except InferenceServerException as error:
                        failures.append(error)
                        return
                    if len(told) != 1:
                        failures.append(told)
                    answers += 1

        asking = threading.Thread(target=ask_on)
        asking.start()
        with triton.InferenceServerClient(running.url) as client:
            for generation in range(2, RELOADS + 2):
                if generation % 10 == 0:
                    files = {f"file:{generation}/value.txt": str(generation).encode()}
                    client.load_model("a", config=CONFIG_JSON % ("a", ""), files=files)
                else:
                    write_model(tmp_path, "a", {generation: generation})
                    client.load_model("a")
                assert ask(client) == {generation}
            stop.set()
            asking.join()
            assert not failures
            assert answers > 0
            client.unload_model("a")
            with pytest.raises(
                InferenceServerException, match="Request for unknown model: 'a' has no available versions"
            ):
                ask(client)
            with pytest.raises(InferenceServerException, match="failed to poll from model repository") as caught:
                client.load_model("nope")
            assert caught.value.status() == "StatusCode.INTERNAL"
