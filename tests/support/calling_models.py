"""Models that call, and what they call."""

from __future__ import annotations

from typing import Any

from python_models import CONFIG, ask

from trireme.actors import InferenceServer

DECOUPLED = CONFIG + "\nmodel_transaction_policy { decoupled: true }"

TEXT = """
    backend: "python"
    input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
    output [{ name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] }]
    max_batch_size: 8
"""

HEAD = """
    import asyncio
    import os
    import threading
    import time

    import numpy as np
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


    def call(model, *values, **fields):
        array = np.array([values], np.float32)
        return pb_utils.InferenceRequest(
            model_name=model, inputs=[pb_utils.Tensor("INPUT0", array)],
            requested_output_names=fields.pop("wanted", ["OUTPUT0"]), **fields
        )


    def value_of(message):
        tensors = message.inputs() if hasattr(message, "inputs") else message.output_tensors()
        return float(tensors[0].as_numpy()[0, 0])


    def response(*values):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([values], np.float32))])


    def text(value):
        array = np.array([[str(value)]], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])


    def said(answer):
        return answer.error().message() if answer.has_error() else value_of(answer)


    class TritonPythonModel:
"""

ADD_ONE = (
    HEAD
    + """
        def execute(self, requests):
            return [response(value_of(request) + 1) for request in requests]
"""
)

REPEAT = (
    HEAD
    + """
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in range(int(value_of(request))):
                    sender.send(response(number))
                sender.send(flags=FINAL)
"""
)

UNTIL_CANCELLED = (
    HEAD
    + """
        def execute(self, requests):
            open(os.path.join(pb_utils.get_model_dir(), "began"), "w").close()
            while not requests[0].is_cancelled():
                time.sleep(0.01)
            open(os.path.join(pb_utils.get_model_dir(), "noticed"), "w").close()
            return [response(1)]
"""
)
"""Says by files in its directory how far it is."""


def counts_down(target: str) -> str:
    """A model that has another one count on: ``bottom``, and an exclamation mark for each time that it was asked."""
    return (
        HEAD
        + f"""
        def execute(self, requests):
            value = value_of(requests[0])
            if not value:
                return [text("bottom")]
            answer = call({target!r}, value - 1).exec()
            if answer.has_error():
                return [text(answer.error().message())]
            return [text(answer.output_tensors()[0].as_numpy()[0, 0].decode() + "!")]
"""
    )


def chain(target: str) -> str:
    return (
        HEAD
        + f"""
        def execute(self, requests):
            return [call({target!r}, value_of(request)).exec() for request in requests]
"""
    )


async def answer(server: InferenceServer, model: str, *values: float) -> Any:
    """The first value that a model answers; text as `str`."""
    response = await server.infer(ask(model, *values))
    found = response.outputs[0].array[0, 0]
    return found.decode() if isinstance(found, bytes) else float(found)
