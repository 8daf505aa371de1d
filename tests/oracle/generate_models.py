"""The models of the session over the generate extension.

They are scripts in Python for the real Triton; Trireme runs their twins in ``generate_backend.py``. `echo` gives its
inputs back and tells their shapes and the request's parameters; the others do what their input SCRIPT says:

    say, say!         answer with a number and a text; the same, as the final answer
    pair, pair!       answer with two numbers and two texts
    empty, empty!     answer with tensors of no elements
    half, half!       answer with a tensor that JSON cannot carry
    fail, fail!       answer with an error
    missing, missing! answer with an error of another class
    end               the final answer, without a response
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ECHO_PY = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        outputs, shapes = [], []
        for tensor in sorted(request.inputs(), key=lambda tensor: tensor.name()):
            array = tensor.as_numpy()
            shapes.append(f"{tensor.name()}{list(array.shape)}".replace(" ", ""))
            outputs.append(pb_utils.Tensor("OUT_" + tensor.name(), array))
        parameters = json.loads(request.parameters() or "{}")
        told = [request.request_id(), " ".join(shapes), json.dumps(parameters, sort_keys=True)]
        told = np.array([text.encode() for text in told], dtype=object)
        return pb_utils.InferenceResponse([*outputs, pb_utils.Tensor("TOLD", told)])
"""

STORY_PY = """
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def answer(verb, number):
    if verb == "fail":
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("it failed"))
    if verb == "missing":
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("not here", pb_utils.TritonError.NOT_FOUND))
    if verb == "half":
        return pb_utils.InferenceResponse([pb_utils.Tensor("HALF", np.zeros(1, np.float16))])
    count = {"pair": 2, "empty": 0}.get(verb, 1)
    numbers = pb_utils.Tensor("NUMBER", np.arange(number, number + count, dtype=np.int32))
    texts = pb_utils.Tensor("TEXT", np.array([f"said {number}".encode()] * count, dtype=object))
    return pb_utils.InferenceResponse([texts, numbers])


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests] if ONE_ANSWER else self.many(requests)

    def one(self, request):
        return answer(self.steps(request)[0].rstrip("!"), 0)

    def many(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number, step in enumerate(self.steps(request)):
                if step == "end":
                    sender.send(flags=FINAL)
                else:
                    sender.send(answer(step.rstrip("!"), number), flags=FINAL if step.endswith("!") else 0)

    def steps(self, request):
        return pb_utils.get_input_tensor_by_name(request, "SCRIPT").as_numpy().reshape(-1)[0].decode().split()
"""

NAMESAKES_PY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        words = [pb_utils.get_input_tensor_by_name(request, "WORD").as_numpy() for request in requests]
        names = ("id", "model_name", "model_version")
        return [pb_utils.InferenceResponse([pb_utils.Tensor(name, word) for name in names]) for word in words]
"""

ALL_TYPES = ("BOOL", "UINT8", "UINT16", "INT8", "INT32", "INT64", "UINT64", "FP16", "FP32", "FP64", "STRING")


@dataclass(frozen=True)
class GenerateModel:
    """A model of the session.

    Attributes:
        inputs, outputs: (name, type in a configuration, dims).
        script: what the real Triton runs.
        extra: more of its configuration.
    """

    name: str
    inputs: tuple[tuple[str, str, str], ...]
    outputs: tuple[tuple[str, str, str], ...]
    script: str
    extra: str = ""
    optional: bool = False

    def config(self, backend: str) -> str:
        lines = [f'name: "{self.name}"', f'backend: "{backend}"']
        optional = "optional: true " if self.optional else ""
        for kind, tensors, more in (("input", self.inputs, optional), ("output", self.outputs, "")):
            lines += [
                f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {more}}}'
                for name, datatype, dims in tensors
            ]
        return "\n".join([*lines, "instance_group { count: 1 kind: KIND_CPU }", self.extra, ""])

    def write_python(self, repository: Path) -> None:
        """For the real Triton."""
        (self._write(repository, "python") / "model.py").write_text(self.script)

    def write_scripted(self, repository: Path) -> None:
        """For Trireme with the backend of ``generate_backend.py``, which is called `scripted`."""
        self._write(repository, "scripted")

    def _write(self, repository: Path, backend: str) -> Path:
        version = repository / self.name / "1"
        version.mkdir(parents=True)
        (repository / self.name / "config.pbtxt").write_text(self.config(backend))
        return version


def _echo(name: str, inputs: tuple[tuple[str, str, str], ...], extra: str = "", optional: bool = True) -> GenerateModel:
    outputs = tuple((f"OUT_{name}", datatype, "-1") for name, datatype, _ in inputs)
    return GenerateModel(name, inputs, (*outputs, ("TOLD", "STRING", "-1")), ECHO_PY, extra, optional)


_SCRIPT = (("SCRIPT", "STRING", "1"),)
_SAID = (("TEXT", "STRING", "-1"), ("NUMBER", "INT32", "-1"), ("HALF", "FP16", "-1"))

MODELS = (
    _echo("types", tuple((f"A_{datatype}", datatype, "-1") for datatype in ALL_TYPES)),
    _echo("rows", tuple((f"A_{datatype}", datatype, "-1") for datatype in ALL_TYPES), "max_batch_size: 8"),
    _echo(
        "shapes",
        tuple(
            (f"A_{number}", "INT32", dims)
            for number, dims in enumerate(("3", "2, 2", "-1, -1", "2, -1", "-1, 2", "-1, 2, -1", "-1, 3, 2"))
        ),
    ),
    _echo("row_shapes", (("A_0", "INT32", "3"), ("A_1", "INT32", "2, -1"), ("A_2", "INT32", "1")), "max_batch_size: 4"),
    _echo("must", (("A", "INT32", "1"), ("B", "STRING", "1")), optional=False),
    _echo("odd", (("parameters", "INT32", "1"),)),
    _echo("odd_id", (("id", "STRING", "1"),)),
    _echo("sequential", (("A", "INT32", "1"),), "max_batch_size: 1 sequence_batching { }"),
    GenerateModel(
        "odd_names",
        (("WORD", "STRING", "1"),),
        tuple((name, "STRING", "1") for name in ("id", "model_name", "model_version")),
        NAMESAKES_PY,
    ),
    GenerateModel("line", _SCRIPT, _SAID, STORY_PY.replace("ONE_ANSWER", "True")),
    GenerateModel(
        "story",
        _SCRIPT,
        _SAID,
        STORY_PY.replace("ONE_ANSWER", "False"),
        "model_transaction_policy { decoupled: true }",
    ),
)


def write_for_triton(repository: Path) -> None:
    for model in MODELS:
        model.write_python(repository)


def write_for_trireme(repository: Path) -> None:
    for model in MODELS:
        model.write_scripted(repository)
