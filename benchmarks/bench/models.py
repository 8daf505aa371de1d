"""The models that are served, and their repositories for servers that read Triton's.

Every server serves a model in the fastest way that it has. One that reads ONNX files is given them; one that has Python
models only runs the same file on ONNX Runtime from Python, and gives back its input where the model does nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

from servers import BATCHING, IDENTITY_MODEL_PY, Tensors, model_config

from . import networks, sources

SHIPPED = Path(__file__).parents[2] / "model_repository"
SMALL, LARGE = 16, 1 << 20
"""FP32 numbers in a tensor."""


class Kind(Enum):
    IDENTITY = "identity"
    """Gives back its input, however the server likes to do that."""
    ONNX = "onnx"
    PYTHON = "python"
    """The same `model.py` on every server that takes one."""
    SEQUENCE = "sequence"
    """The same `model.py`, which gives the sum of its sequence so far."""
    ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class Model:
    """A model with one input and one output.

    Attributes:
        given, made: datatype and shape of the input and of the output, without the batch dimension.
        max_batch_size: 0 if it takes no batches.
        code: of `model.py`.
        steps: models that it calls, or that it is an ensemble of.
        instances: how many batches are executed at a time.
        threads: of ONNX Runtime for one batch.
        file: the ONNX file, once it is written.
    """

    name: str
    kind: Kind
    given: tuple[str, tuple[int, ...]] = ("FP32", (SMALL,))
    made: tuple[str, tuple[int, ...]] = ("FP32", (SMALL,))
    max_batch_size: int = 64
    code: str = ""
    steps: tuple[str, ...] = ()
    instances: int = 1
    threads: int = 1
    file: Path | None = None

    @property
    def input_name(self) -> str:
        return {"digits": "IMAGE", "running_sum": "INPUT"}.get(self.name, "INPUT0")

    @property
    def output_name(self) -> str:
        return {"digits": "PROBABILITIES", "running_sum": "OUTPUT"}.get(self.name, "OUTPUT0")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a request for one inference."""
        return (1, *self.given[1]) if self.max_batch_size else self.given[1]


def identity(name: str, dims: int = SMALL) -> Model:
    return Model(name, Kind.IDENTITY, ("FP32", (dims,)), ("FP32", (dims,)), 64 if dims == SMALL else 0)


ENCODED = ("FP32", (networks.TOKENS, networks.WIDTH))
STEPS = ("step_1", "step_2", "step_3")
CORES = os.cpu_count() or 1
MANY = tuple(f"one_of_many_{number:04}" for number in range(1000))
FEW = tuple(f"small_{number}" for number in range(5))

MODELS = {
    model.name: model
    for model in (
        identity("identity_fp32"),
        identity("identity_large", LARGE),
        *map(identity, MANY),
        *map(identity, FEW),
        Model("digits", Kind.ONNX, ("FP32", (8, 8)), ("FP32", (10,)), 32),
        Model("resnet50", Kind.ONNX, ("FP32", (3, 224, 224)), ("FP32", (networks.CLASSES,)), 8, threads=CORES),
        Model("encoder", Kind.ONNX, ENCODED, ENCODED, 8, threads=CORES),
        *(Model(name, Kind.PYTHON, code=IDENTITY_MODEL_PY) for name in ("python_identity", *STEPS)),
        Model("chain", Kind.PYTHON, code=sources.CHAIN_PY.replace("STEPS", repr(STEPS)), steps=STEPS),
        Model("ensemble", Kind.ENSEMBLE, steps=STEPS[:2]),
        replace(identity("python_large", LARGE), kind=Kind.PYTHON, code=IDENTITY_MODEL_PY),
        Model("running_sum", Kind.SEQUENCE, ("INT32", (1,)), ("INT32", (1,)), code=sources.RUNNING_SUM_PY),
    )
}


def with_steps(names: Iterable[str]) -> list[Model]:
    """The models of these names and those that they call."""
    wanted = [each for name in names for each in (*MODELS[name].steps, name)]
    return [MODELS[name] for name in dict.fromkeys(wanted)]


def write_file(model: Model, folder: Path) -> Model:
    """The model with its ONNX file, which is written if there is none; others as they are."""
    if model.kind is Kind.IDENTITY:
        file = folder / f"identity_{model.given[1][0]}.onnx"
        if not file.exists():
            networks.write_identity(file, model.given[1][0], batches=model.max_batch_size > 0)
        return replace(model, file=file)
    if model.kind is not Kind.ONNX:
        return model
    if model.name == "digits":
        return replace(model, file=SHIPPED / "digits" / "1" / "model.onnx")
    file = folder / f"{model.name}.onnx"
    if not file.exists():
        {"resnet50": networks.write_resnet50, "encoder": networks.write_encoder}[model.name](file)
    return replace(model, file=file)


def write_repository(folder: Path, models: Iterable[Model], *, native: bool, packages: Path | None = None) -> None:
    """Write a repository for Triton or Trireme.

    Args:
        native: whether the server has a backend for ONNX files.
        packages: where `model.py` finds ONNX Runtime, if the server's Python has none.
    """
    for model in models:
        version = folder / model.name / "1"
        version.mkdir(parents=True)
        inputs: Tensors = {model.input_name: model.given}
        outputs: Tensors = {model.output_name: model.made}
        backend, more = "python", BATCHING if model.max_batch_size else ""
        if model.kind is Kind.ENSEMBLE:
            backend, more = "", _steps(model)
        elif model.code:
            (version / "model.py").write_text(model.code)
            more = sources.SEQUENCES if model.kind is Kind.SEQUENCE else more
        elif native:
            assert model.file is not None, "write_file comes first"
            os.symlink(model.file, version / "model.onnx")
            backend = "onnxruntime"
            more += f'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{model.threads}" }} }}\n'
        elif model.kind is Kind.IDENTITY:
            (version / "model.py").write_text(IDENTITY_MODEL_PY)
        else:
            assert model.file is not None, "write_file comes first"
            shutil.copy(model.file, version / "model.onnx")
            (version / "model.py").write_text(sources.onnx_py(model.threads, packages))
        config = model_config(model.name, backend, model.max_batch_size, inputs, outputs, instances=model.instances)
        if model.kind is Kind.ENSEMBLE:
            config = "\n".join(line for line in config.splitlines() if not line.startswith(("backend", "instance")))
            config += '\nplatform: "ensemble"\n'
        (folder / model.name / "config.pbtxt").write_text(config + more)


def _steps(model: Model) -> str:
    """The steps of an ensemble, each on what the one before has made."""
    tensors = ["INPUT0", *(f"between_{number}" for number in range(1, len(model.steps))), "OUTPUT0"]
    steps = [
        f'step {{ model_name: "{name}" model_version: -1\n  input_map {{ key: "INPUT0" value: "{taken}" }}\n'
        f'  output_map {{ key: "OUTPUT0" value: "{made}" }} }}\n'
        for name, taken, made in zip(model.steps, tensors, tensors[1:], strict=False)
    ]
    return "ensemble_scheduling {\n" + "".join(steps) + "}\n"


def write_manifest(path: Path, models: Iterable[Model]) -> None:
    """Write what a program of a peer must know of its models, as JSON."""
    entries = [
        {
            **asdict(model),
            "kind": model.kind.value,
            "file": str(model.file) if model.file else None,
            "input_name": model.input_name,
            "output_name": model.output_name,
        }
        for model in models
    ]
    path.write_text(json.dumps(entries))
