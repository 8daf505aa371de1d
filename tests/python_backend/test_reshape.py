"""The ``reshape`` of an output is undone for Python models, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling_models import HEAD, TEXT
from python_models import ask, open_repository, write_model

from trireme.engine.errors import InternalError

CONFIG = """
    backend: "python"
    max_batch_size: {rows}
    input [{{ name: "INPUT0" data_type: TYPE_FP32 dims: {inputs} }}]
    output [{{ name: "OUTPUT0" data_type: TYPE_FP32 dims: {dims} reshape {{ shape: {shape} }} }}]
"""

ZEROS = (
    HEAD
    + """
        def execute(self, requests):
            return [self.zeros(request) for request in requests]

        def zeros(self, request):
            shape = request.inputs()[0].as_numpy().ravel().astype(int).tolist()
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(shape, np.float32))])
"""
)
"""Answers with as many dimensions as the client says."""


@pytest.mark.parametrize(
    ("rows", "dims", "reshape", "made", "seen"),
    [
        (8, "[ 1 ]", "[ ]", (3,), (3, 1)),
        (8, "[ 1 ]", "[ ]", (3, 1), (3, 1)),
        (8, "[ 1 ]", "[ ]", (0,), (0, 1)),
        (8, "[ 1 ]", "[ ]", (3, 2), None),
        (8, "[ 2, 3 ]", "[ 6 ]", (2, 6), (2, 2, 3)),
        (8, "[ 2, 3 ]", "[ 6 ]", (1, 2, 3), (1, 2, 3)),
        (8, "[ 2, 3 ]", "[ 6 ]", (6,), None),
        (8, "[ 2, 3 ]", "[ 6 ]", (1, 5), None),
        (0, "[ 1, 1 ]", "[ 1 ]", (1,), (1, 1)),
        (0, "[ 1, 1 ]", "[ 1 ]", (2,), None),
        (0, "[ -1, 1, 2 ]", "[ -1, 2 ]", (4, 2), (4, 1, 2)),
        (0, "[ -1, 1, 2 ]", "[ -1, 2 ]", (4, 3), None),
        (0, "[ 2, -1, 1, -1 ]", "[ 2, -1, -1 ]", (2, 3, 4), (2, 3, 1, 4)),
    ],
)
async def test_clients_see_the_shape_of_the_configuration(
    tmp_path: Path, rows: int, dims: str, reshape: str, made: tuple[int, ...], seen: tuple[int, ...] | None
) -> None:
    """The cases were put to the real server; None is its error."""
    write_model(
        tmp_path,
        "m",
        ZEROS,
        CONFIG.format(rows=rows, inputs="[ -1 ]" if rows else "[ 1, -1 ]", dims=dims, shape=reshape),
    )
    async with open_repository(tmp_path) as server:
        if seen is not None:
            (output,) = (await server.infer(ask("m", *made))).outputs
            assert (output.shape, output.array.shape) == (seen, seen)
            return
        with pytest.raises(InternalError, match="output tensor shape does not match size of output for 'OUTPUT0'"):
            await server.infer(ask("m", *made))
        assert server.model_statistics()[0].restarts == 0


async def test_so_do_a_stream_other_models_and_members_of_ensembles(tmp_path: Path) -> None:
    config = CONFIG.format(rows=8, inputs="[ -1 ]", dims="[ 1 ]", shape="[ ]")
    stream = (
        HEAD
        + """
        def execute(self, requests):
            for request in requests:
                request.get_response_sender().send(
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(3, np.float32))]), FINAL
                )
"""
    )
    asking = (
        HEAD
        + """
        def execute(self, requests):
            return [text(call("m", 3).exec().output_tensors()[0].as_numpy().shape) for _ in requests]
"""
    )
    write_model(tmp_path, "m", ZEROS, config)
    write_model(tmp_path, "stream", stream, config + "model_transaction_policy { decoupled: true }")
    write_model(tmp_path, "asking", asking, TEXT)
    ensemble = """
        platform: "ensemble" max_batch_size: 8
        input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
        ensemble_scheduling { step { model_name: "m" model_version: -1
            input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } }
    """
    write_model(tmp_path, "both", "", ensemble)
    async with open_repository(tmp_path) as server:
        reply = await server.admit(ask("stream", 1))
        assert [part.outputs[0].shape async for part in reply.responses()] == [(3, 1)]
        (said,) = (await server.infer(ask("asking", 1))).outputs[0].array.ravel()
        assert json.loads(said.decode().replace("(", "[").replace(")", "]")) == [3, 1]
        assert (await server.infer(ask("both", 3))).outputs[0].shape == (3, 1)
