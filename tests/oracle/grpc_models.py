"""The models of the session over gRPC: those of the HTTP session, and more.

More are: the datatypes that JSON cannot tell apart, a model that fails when told to (`moody`), and a decoupled one
(`repeat`). The last two are scripts in Python for the real Triton; Trireme runs their twins in ``grpc_backend.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from session_models import MODELS, SessionModel

TENSORS_PY = """
import numpy as np
import triton_python_backend_utils as pb_utils


def number(request, name):
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0])


def answer(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))])


def failure():
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("it failed"))
"""

MOODY_PY = """
from .tensors import *


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(number(request, "MOOD")) for request in requests]

    def one(self, mood):
        if mood == 1:
            return failure()
        if mood == 2:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("not here", pb_utils.TritonError.NOT_FOUND))
        return answer(mood)
"""

REPEAT_PY = """
from .tensors import *

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, end = number(request, "COUNT"), number(request, "END")
            sender = request.get_response_sender()
            for index in range(count):
                sender.send(answer(index), flags=FINAL if end == 1 and index == count - 1 else 0)
            if end == 2:
                sender.send(failure(), flags=FINAL)
            elif end == 0 or count == 0:
                sender.send(flags=FINAL)
        return None
"""

BF16_PY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUTPUT0", tensor.to_dlpack())])
            for tensor in inputs
        ]
"""


class Bf16Model(SessionModel):
    """numpy has no BF16, so the python-backend model must not look at its tensors as arrays."""

    def write_python(self, repository: Path) -> None:
        super().write_python(repository)
        (repository / self.name / "1" / "model.py").write_text(BF16_PY)


@dataclass(frozen=True)
class ScriptedModel:
    """A model that is a few lines of Python; `inputs` are INT32[1], and so is its output OUT."""

    name: str
    inputs: tuple[str, ...]
    script: str
    decoupled: bool = False

    def config(self, backend: str) -> str:
        lines = [f'name: "{self.name}"', f'backend: "{backend}"']
        lines += [f'input {{ name: "{name}" data_type: TYPE_INT32 dims: [ 1 ] }}' for name in self.inputs]
        lines += ['output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }']
        lines += ["instance_group { count: 1 kind: KIND_CPU }"]
        lines += ["model_transaction_policy { decoupled: true }"] if self.decoupled else []
        return "\n".join([*lines, ""])

    def write_python(self, repository: Path) -> None:
        """For the real Triton."""
        version = self._write(repository, "python")
        (version / "tensors.py").write_text(TENSORS_PY)
        (version / "model.py").write_text(self.script)

    def write_scripted(self, repository: Path) -> None:
        """For Trireme with the backend of ``grpc_backend.py``, which is called `scripted`."""
        self._write(repository, "scripted")

    def _write(self, repository: Path, backend: str) -> Path:
        version = repository / self.name / "1"
        version.mkdir(parents=True)
        (repository / self.name / "config.pbtxt").write_text(self.config(backend))
        return version


TENSOR_MODELS = (
    *MODELS,
    SessionModel("type_int16", "identity", "INT16", (-1,)),
    SessionModel("type_int32", "identity", "INT32", (-1,)),
    SessionModel("type_uint16", "identity", "UINT16", (-1,)),
    SessionModel("type_uint32", "identity", "UINT32", (-1,)),
    SessionModel("type_fp32", "identity", "FP32", (-1,)),
    SessionModel("type_bytes", "identity", "BYTES", (-1,)),
    Bf16Model("type_bf16", "identity", "BF16", (-1,)),
)

SCRIPTED_MODELS = (
    ScriptedModel("moody", ("MOOD",), MOODY_PY),
    ScriptedModel("repeat", ("COUNT", "END"), REPEAT_PY, decoupled=True),
)


def write_for_triton(repository: Path) -> None:
    for model in (*TENSOR_MODELS, *SCRIPTED_MODELS):
        model.write_python(repository)


def write_for_trireme(repository: Path) -> None:
    for model in TENSOR_MODELS:
        model.write_onnx(repository)
    for model in SCRIPTED_MODELS:
        model.write_scripted(repository)
