"""Which backend, platform and file belong together, and what follows from a model directory's files.

docs/reference/model-configuration.md#backend-platform-and-file: no model file is opened; only names in the
lexicographically first sub-directory count.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError

ENSEMBLE = "ensemble"
GENERATION = "generation"

PLATFORMS = {
    "tensorflow": ("tensorflow_savedmodel", "tensorflow_graphdef"),
    "tensorrt": ("tensorrt_plan",),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch", "torch_aoti"),
}
"""Backends that insist on a platform, with those that they accept."""


@dataclass(frozen=True, slots=True)
class _Framework:
    """A backend that is recognised by a file."""

    backend: str
    filename: str
    platform: str = ""
    selects: tuple[str, ...] = ()
    may_be_file: bool = True
    may_be_directory: bool = False


_SAVEDMODEL = _Framework(
    "tensorflow", "model.savedmodel", "tensorflow_savedmodel", may_be_file=False, may_be_directory=True
)
_GRAPHDEF = _Framework("tensorflow", "model.graphdef", "tensorflow_graphdef")
_TENSORRT = _Framework("tensorrt", "model.plan", "tensorrt_plan", ("tensorrt_plan",))
_ONNX = _Framework("onnxruntime", "model.onnx", "onnxruntime_onnx", ("onnxruntime_onnx",), may_be_directory=True)
_OPENVINO = _Framework("openvino", "model.xml", may_be_directory=True)
_LIBTORCH = _Framework("pytorch", "model.pt", "pytorch_libtorch", ("pytorch_libtorch", "libtorch"))
_AOTI = _Framework("pytorch", "model.pt2", "torch_aoti", ("torch_aoti",))
_PYTHON = _Framework("python", "model.py", may_be_directory=True)
_HUGGING_FACE = ("config.json", "modules.json")
"""Files of the layout that the backend ``generation`` reads."""


def complete_backend(message: Any, model_directory: Path) -> None:
    """Fill in `name`, `backend`, `platform` and `default_model_filename` as far as they are open and can be told.

    Raises:
        InvalidArgumentError: nothing is given, and neither a file nor the model's name tells the backend.
    """
    if not message.name:
        message.name = model_directory.name
    version_directory = _first_version(model_directory)
    if _complete_tensorflow(message, version_directory) or message.platform == ENSEMBLE:
        return
    for framework in (_TENSORRT, _ONNX, _OPENVINO):
        if _complete(message, framework, version_directory):
            return
    if _complete_pytorch(message, version_directory) or _complete(message, _PYTHON, version_directory):
        return
    if message.backend or message.platform or message.default_model_filename:
        return
    if version_directory is not None and any((version_directory / name).is_file() for name in _HUGGING_FACE):
        message.backend = GENERATION
    else:
        _complete_from_name(message, model_directory.name)


def _first_version(model_directory: Path) -> Path | None:
    try:
        directories = [entry for entry in model_directory.iterdir() if entry.is_dir()]
    except OSError:
        return None
    return min(directories, key=lambda entry: entry.name, default=None)


def _is_there(framework: _Framework, version_directory: Path | None) -> bool:
    if version_directory is None:
        return False
    path = version_directory / framework.filename  # os.path: a directory that may not be searched holds nothing
    return (framework.may_be_file and os.path.isfile(path)) or (framework.may_be_directory and os.path.isdir(path))


def _is_meant(message: Any, framework: _Framework, version_directory: Path | None) -> bool:
    """Whether platform, file name, or (when both are open) the file in the version directory say so."""
    if message.platform in framework.selects or message.default_model_filename == framework.filename:
        return True
    is_open = not message.platform and not message.default_model_filename
    return is_open and _is_there(framework, version_directory)


def _complete(message: Any, framework: _Framework, version_directory: Path | None) -> bool:
    if not message.backend and _is_meant(message, framework, version_directory):
        message.backend = framework.backend
    if message.backend != framework.backend:
        return False
    message.platform = message.platform or framework.platform
    message.default_model_filename = message.default_model_filename or framework.filename
    return True


def _complete_tensorflow(message: Any, version_directory: Path | None) -> bool:
    """TensorFlow is the one framework whose platform must be told apart, so platform comes before backend."""
    frameworks = (_SAVEDMODEL, _GRAPHDEF)
    if not message.platform and message.backend in ("", "tensorflow"):
        for framework in frameworks:
            if message.default_model_filename == framework.filename or (
                not message.default_model_filename and _is_there(framework, version_directory)
            ):
                message.platform = framework.platform
                break
    for framework in frameworks:
        if message.platform == framework.platform:
            message.backend = message.backend or framework.backend
            message.default_model_filename = message.default_model_filename or framework.filename
            return True
    return False


def _complete_pytorch(message: Any, version_directory: Path | None) -> bool:
    """TorchScript unless something speaks for an AOTInductor package; a given platform leaves model.pt unsaid."""
    if message.backend not in ("", "pytorch"):
        return False
    if _is_meant(message, _LIBTORCH, version_directory):
        framework = _LIBTORCH
    elif _is_meant(message, _AOTI, version_directory):
        framework = _AOTI
    elif message.backend:
        framework = _LIBTORCH
    else:
        return False
    if framework is _AOTI or not message.platform:
        message.default_model_filename = message.default_model_filename or framework.filename
    message.backend = framework.backend
    message.platform = message.platform or framework.platform
    return True


def _complete_from_name(message: Any, model_name: str) -> None:
    _, dot, backend = model_name.partition(".")
    if not dot:
        raise InvalidArgumentError(
            f"Invalid model name: Could not determine backend for model '{model_name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
    message.backend = backend
    message.default_model_filename = f"model.{backend}"


# -- Defaults that the server writes into a configuration (docs/reference/model-configuration.md#defaults)


DEFAULT_SEQUENCE_IDLE_US = 1_000_000


def normalize(message: Any) -> None:
    """Fill in, in place, every default that does not depend on devices. Doing it twice changes nothing."""
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    if message.HasField("dynamic_batching"):
        _prefer_full_batches(message.dynamic_batching, message.max_batch_size)
    if message.HasField("sequence_batching"):
        batching = message.sequence_batching
        if batching.max_sequence_idle_microseconds == 0:
            batching.max_sequence_idle_microseconds = DEFAULT_SEQUENCE_IDLE_US
        if batching.HasField("oldest"):
            _prefer_full_batches(batching.oldest, message.max_batch_size)
    if not is_ensemble(message):
        optimization = message.optimization
        for name in ("input_pinned_memory", "output_pinned_memory"):
            if not optimization.HasField(name):
                getattr(optimization, name).enable = True


def is_ensemble(message: Any) -> bool:
    return message.platform == ENSEMBLE or message.HasField("ensemble_scheduling")


def _prefer_full_batches(batching: Any, max_batch_size: int) -> None:
    if max_batch_size > 0 and not batching.preferred_batch_size:
        batching.preferred_batch_size.append(max_batch_size)
