"""Programs of Python models, and pieces of configurations, as they are written into model repositories."""

from pathlib import Path

CHAIN_PY = '''"""Three models one after the other, each on what the one before has answered."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0")) for request in requests]

    def answer(self, tensor):
        for step in STEPS:
            given = pb_utils.Tensor("INPUT0", tensor.as_numpy())
            call = pb_utils.InferenceRequest(model_name=step, inputs=[given], requested_output_names=["OUTPUT0"])
            response = call.exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            tensor = pb_utils.get_output_tensor_by_name(response, "OUTPUT0")
        return pb_utils.InferenceResponse([tensor])
'''

_ONNX_PY = '''"""Runs model.onnx on ONNX Runtime: all requests of a batch at once."""

import json
import os
import sys

import numpy as np

sys.path += PACKAGES
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.inter_op_num_threads = 1
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        config = json.loads(args["model_config"])
        self.input = config["input"][0]["name"]
        self.output = config["output"][0]["name"]

    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(request, self.input).as_numpy() for request in requests]
        (made,) = self.session.run([self.output], {self.input: np.concatenate(rows) if len(rows) > 1 else rows[0]})
        responses, first = [], 0
        for each in rows:
            tensor = pb_utils.Tensor(self.output, made[first : first + len(each)])
            responses.append(pb_utils.InferenceResponse([tensor]))
            first += len(each)
        return responses
'''


def onnx_py(threads: int, packages: Path | None) -> str:
    """A `model.py` that runs `model.onnx`.

    Args:
        packages: a folder with ONNX Runtime, for a Python that has none.
    """
    folders = repr([str(packages)] if packages else [])
    return _ONNX_PY.replace("THREADS", str(threads)).replace("PACKAGES", folders)


RUNNING_SUM_PY = '''"""The sum of the sequence's inputs so far."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = int(self.control(request, "KEY"))
            total = 0 if self.control(request, "START") else self.sums.get(key, 0)
            total = (total + int(self.control(request, "INPUT"))) & 0x7FFFFFFF  # clients send any number
            self.sums[key] = total
            if self.control(request, "END"):
                del self.sums[key]
            tensor = pb_utils.Tensor("OUTPUT", np.array([[total]], np.int32))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses

    def control(self, request, name):
        return pb_utils.get_input_tensor_by_name(request, name).as_numpy().flat[0]
'''

SEQUENCES = """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 0 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
  control_input { name: "KEY" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""
