"""PyTorch models in a server: sequences with implicit state, and instances side by side."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from torch_modules import RunningSum, Scale, Spelling

from trireme.actors import InferenceServer
from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.datatypes import BYTES, FP32
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

SUM = """
backend: "pytorch" max_batch_size: 4
input { name: "X__0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "SUM__0" data_type: TYPE_FP32 dims: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START__1" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  state { input_name: "OLD__2" output_name: "NEW__1" data_type: TYPE_FP32 dims: [ 1 ] }
}
"""

SPELLING = """
backend: "pytorch"
input { name: "X__0" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "Y__0" data_type: TYPE_STRING dims: [ 1 ] }
sequence_batching { state { input_name: "OLD__1" output_name: "NEW__1" data_type: TYPE_STRING dims: [ 1 ] } }
"""

SCALE = """
backend: "pytorch" max_batch_size: 8
input { name: "X__0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y__0" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 2 }
parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "true" } }
"""


def save(repository: Path, name: str, module: torch.nn.Module, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    torch.jit.script(module).save(str(repository / name / "1" / "model.pt"))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[InferenceServer]:
    save(tmp_path, "sum", RunningSum(), SUM)
    save(tmp_path, "scale", Scale(), SCALE)
    options = ServerOptions(model_repository=(tmp_path,))
    registry = BackendRegistry(lambda _name: {}, {"pytorch": PyTorchBackend})
    async with InferenceServer(options, backends=registry) as server:
        yield server


def request(model: str, value: float, **fields: Any) -> InferenceRequest:
    tensor = Tensor("X__0", FP32, (1, 1), array=np.array([[value]], np.float32))
    return replace(InferenceRequest(model, inputs=[tensor]), **fields)


async def test_sums_of_sequences_side_by_side(server: InferenceServer) -> None:
    sums: dict[int, list[float]] = {}

    async def sequence(key: int) -> None:
        for step in range(5):
            flags = {"sequence_start": step == 0, "sequence_end": step == 4}
            response = await server.infer(request("sum", key, correlation_id=key, **flags))
            sums.setdefault(key, []).append(float(response.output("SUM__0").array[0, 0]))

    async with trio.open_nursery() as nursery:
        for key in range(1, 21):
            nursery.start_soon(sequence, key)
    assert sums == {key: [float(key * step) for step in range(1, 6)] for key in range(1, 21)}


async def test_instances_that_share_weights_answer_side_by_side(server: InferenceServer) -> None:
    answers: dict[int, float] = {}

    async def ask(value: int) -> None:
        response = await server.infer(request("scale", value))
        answers[value] = float(response.output("Y__0").array[0, 0])

    async with trio.open_nursery() as nursery:
        for value in range(100):
            nursery.start_soon(ask, value)
    assert answers == {value: 2.0 * value for value in range(100)}


async def test_states_need_names_with_an_index(tmp_path: Path) -> None:
    save(tmp_path, "sum", RunningSum(), SUM.replace("X__0", "x"))
    options = ServerOptions(model_repository=(tmp_path,), exit_on_error=False)
    registry = BackendRegistry(lambda _name: {}, {"pytorch": PyTorchBackend})
    async with InferenceServer(options, backends=registry) as server:
        (entry,) = server.repository_index()
        assert entry.reason == (
            "Invalid argument: PyTorch model 'sum' is using sequence batching with state but not all inputs and "
            "outputs follow the <name>__<index> naming convention. "
        )


@pytest.mark.parametrize("config", [SPELLING, f"{SPELLING} max_batch_size: 4"])
async def test_states_of_strings(tmp_path: Path, config: str) -> None:
    save(tmp_path, "spelling", Spelling(), config)
    registry = BackendRegistry(lambda _name: {}, {"pytorch": PyTorchBackend})
    shape = (1, 1) if "max_batch_size" in config else (1,)
    async with InferenceServer(ServerOptions(model_repository=(tmp_path,)), backends=registry) as server:
        spelt: list[bytes] = []
        for key in (1, 2):
            for letter in (b"a", "\u00e9".encode(), b"c"):
                tensor = Tensor("X__0", BYTES, shape, array=np.full(shape, letter, object))
                request = InferenceRequest("spelling", inputs=[tensor], correlation_id=key)
                response = await server.infer(replace(request, sequence_start=letter == b"a"))
                spelt += response.output("Y__0").array.ravel().tolist()
    assert spelt == [b"a", "a\u00e9".encode(), "a\u00e9c".encode()] * 2


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            SPELLING.replace(
                '"NEW__1" data_type: TYPE_STRING dims: [ 1 ]', '"NEW__1" data_type: TYPE_STRING dims: [ 1, 1 ]'
            ),
            "Triton only supports 1 dimensional List of String as input for 'OLD__1' for model 'm'",
        ),
        (
            SUM.replace(
                "kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ]",
                "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT32",
            ),
            "unsupported datatype TYPE_UINT32 for control input 'START__1' for model 'm'",
        ),
        (
            SUM.replace('"NEW__1" data_type: TYPE_FP32', '"NEW__1" data_type: TYPE_UINT16'),
            "unsupported datatype TYPE_UINT16 for state 'OLD__2' for model 'm'",
        ),
    ],
)
async def test_types_that_torch_has_not_are_refused(tmp_path: Path, config: str, reason: str) -> None:
    save(tmp_path, "m", RunningSum(), config)
    registry = BackendRegistry(lambda _name: {}, {"pytorch": PyTorchBackend})
    async with InferenceServer(
        ServerOptions(model_repository=(tmp_path,), exit_on_error=False), backends=registry
    ) as server:
        (entry,) = server.repository_index()
        assert entry.reason == f"Invalid argument: {reason}"


async def test_the_log_tells_the_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In Triton's words; each instance that shares another's weights says so."""
    save(tmp_path, "scale", Scale(), SCALE)
    registry = BackendRegistry(lambda _name: {}, {"pytorch": PyTorchBackend})
    with caplog.at_level(logging.INFO, "trireme.engine.backends.pytorch"):
        async with InferenceServer(ServerOptions(model_repository=(tmp_path,)), backends=registry):
            pass
    told = [
        record.getMessage() for record in caplog.records if record.name.startswith("trireme.engine.backends.pytorch")
    ]
    assert told == [
        "Optimized execution is enabled for model instance 'scale'",
        "Cache Cleaning is disabled for model instance 'scale'",
        "Inference Mode is enabled for model instance 'scale'",
        "cuDNN is enabled for model instance 'scale'",
        "Weight sharing is enabled for model instance 'scale'",
        "Reusing TorchScript model for instance 'scale'",
    ]
