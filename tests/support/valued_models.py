"""Models on disk that answer with what stands in their files: each version adds the number in its ``value.txt``.

OUT is IN plus the value that the version was loaded with, BY is the value that the instance was made with; so an answer
of two generations gives itself away. A value that is no number is a load error. A request with the parameter ``gate``
is answered when the test opens that gate; a version with a file ``gate.txt`` is loaded when the test opens the gate
that is named there.
"""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from later_files import later_change

from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError
from trireme.engine.job import ExecutionBatch
from trireme.engine.request import InferenceRequest, InferenceResponse, ParameterValue
from trireme.engine.tensor import Tensor

PATIENCE_S = 20.0

CONFIG = """
backend: "valued"
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "BY" data_type: TYPE_FP32 dims: [ 1 ] }
"""
"""In the text form; `CONFIG_JSON` is the same as a load request would bring it."""

CONFIG_JSON = (
    '{"name":"%s","backend":"valued","input":[{"name":"IN","data_type":"TYPE_FP32","dims":[1]}],'
    '"output":[{"name":"OUT","data_type":"TYPE_FP32","dims":[1]},{"name":"BY","data_type":"TYPE_FP32","dims":[1]}]%s}'
)
"""To be filled in: the name, and further members that begin with a comma."""


class Gates:
    """Closed until the test opens them.

    Attributes:
        hold: instances are made when this gate is opened; empty for at once.
    """

    def __init__(self) -> None:
        self._gates: dict[str, threading.Event] = defaultdict(threading.Event)
        self.waiting: list[str] = []
        self.spoilt = ""
        self.hold = ""
        self._spoilings = -1

    def wait(self, name: str) -> None:
        self.waiting.append(name)
        assert self._gates[name].wait(PATIENCE_S)

    def open(self, name: str) -> None:
        self._gates[name].set()

    def spoil(self, text: str, times: int = -1) -> None:
        """Let no instance be made from now on, or so many times; an empty text lets them again."""
        self.spoilt = text
        self._spoilings = times

    def make(self) -> None:
        """An instance is about to be made."""
        if self.hold:
            self.wait(self.hold)
        if self.spoilt and self._spoilings:
            self._spoilings -= 1
            raise InternalError(self.spoilt)

    def backends(self) -> BackendRegistry:
        """A registry that knows only the backend of these models."""
        gates = self

        class Valued(Backend):
            name = "valued"

            def __init__(self, options: Mapping[str, str]) -> None:
                super().__init__(options)

            def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
                return _Loaded(files.version_directory / "value.txt", gates)

        return BackendRegistry(lambda _name: {}, {"valued": Valued})


class _Loaded(LoadedModel):
    def __init__(self, file: Path, gates: Gates) -> None:
        gate = file.with_name("gate.txt")
        if gate.exists():
            gates.wait(gate.read_text())
        self.value = _read(file)
        self._file = file
        self.gates = gates

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        self.gates.make()
        return _Instance(self, _read(self._file))


class _Instance(ModelInstance):
    def __init__(self, loaded: _Loaded, value: float) -> None:
        self._loaded = loaded
        self._value = value

    def execute(self, batch: ExecutionBatch) -> None:
        for job in batch.jobs:
            gate = job.request.parameters.get("gate")
            if gate is not None:
                self._loaded.gates.wait(str(gate))
            tensor = job.inputs["IN"]
            answer = tensor.array + np.float32(self._loaded.value)
            by = np.full_like(answer, self._value)
            outputs = [Tensor("OUT", FP32, tensor.shape, array=answer), Tensor("BY", FP32, tensor.shape, array=by)]
            job.respond(job.response([output for output in outputs if job.wants(output.name)]), final=True)


def _read(file: Path) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError) as error:
        raise InternalError("no value") from error


def write_model(repository: Path, name: str, values: Mapping[int, object], config: str = CONFIG) -> Path:
    """Write a model as it is to be, whatever was there before; what is the same stays untouched."""
    directory = repository / name
    with later_change(directory) as changed:
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.iterdir():
            if old.is_dir() and int(old.name) not in values:
                shutil.rmtree(old)
        for version, value in values.items():
            (directory / str(version)).mkdir(exist_ok=True)
            file = directory / str(version) / "value.txt"
            if not file.exists() or file.read_text() != str(value):
                file.write_text(str(value))
                changed.append(file)
        (directory / "config.pbtxt").write_text(config)
    return directory


def ensemble_config(member: str) -> str:
    """An ensemble of one step."""
    return (
        'platform: "ensemble"\n'
        'input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        f'ensemble_scheduling {{ step {{ model_name: "{member}" model_version: -1\n'
        '  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }\n'
    )


def valued_request(model: str, value: float = 0.0, gate: str = "", version: int = -1) -> InferenceRequest:
    """IN is `value`."""
    tensor = Tensor("IN", FP32, (1,), array=np.array([value], np.float32))
    parameters: dict[str, ParameterValue] = {"gate": gate} if gate else {}
    return InferenceRequest(model, version, inputs=[tensor], parameters=parameters)


def sequence_request(model: str, sequence: int, flags: str = "", version: int = -1, gate: str = "") -> InferenceRequest:
    """A request of a sequence; `flags` are "s" for START and "e" for END."""
    return replace(
        valued_request(model, version=version, gate=gate),
        correlation_id=sequence,
        sequence_start="s" in flags,
        sequence_end="e" in flags,
    )


def value_of(response: InferenceResponse, output: str = "OUT") -> float:
    return float(response.output(output).array[0])
