"""Plan files: reading one gives an engine, or says what is wrong with it and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import InternalError, TriremeError
from ...gpu.device import Device
from .library import Library

_PLUGIN = "it needs a plugin that is not there: name its library with --backend-config=tensorrt,plugins=/path/to/it.so"
_HOST_CODE = (
    "it brings code of its own: if you trust it, allow that with --backend-config=tensorrt,version-compatible=true"
)
_OTHER_GPU = (
    "it was built for another GPU: build it on this one, and name the plans of different GPUs in cc_model_filenames, "
    "or build it with hardware compatibility"
)
_OTHER_VERSION = (
    "it was built with another version of TensorRT than {version}, which runs here: build it with that one, or as a "
    "version-compatible plan, for --backend-config=tensorrt,version-compatible=true"
)
_NO_MEMORY = "the GPU has no room for it, or is not well"
_DAMAGED = "the file is no plan of TensorRT, or is damaged"

_REMEDIES = {
    "plugin": _PLUGIN,
    "host code": _HOST_CODE,
    "compute capability": _OTHER_GPU,
    "incompatible device": _OTHER_GPU,
    "different device": _OTHER_GPU,
    "sm version": _OTHER_GPU,
    "version tag": _OTHER_VERSION,
    "library version": _OTHER_VERSION,
    "this version of tensorrt": _OTHER_VERSION,
    "memory": _NO_MEMORY,
    "cuda error": _NO_MEMORY,
}
"""By what TensorRT's texts say, in lower case; the first that is found counts."""


def read_plan(library: Library, device: Device, path: Path, *, model: str, version_compatible: bool) -> Any:
    """Read a plan into the memory of a device.

    Returns:
        The ``ICudaEngine``.

    Raises:
        InternalError: it cannot be read; the text says why, as TensorRT does, and what to do.
    """
    data = path.read_bytes()
    with library.building, device.active(), library.errors.caught() as errors:
        engine = None
        try:
            runtime = library.trt.Runtime(library.log)
            if version_compatible:
                runtime.engine_host_code_allowed = True
            engine = runtime.deserialize_cuda_engine(data)
        except (TypeError, RuntimeError) as error:  # what pybind11 makes of a factory that gives nothing
            errors.append(str(error))
    if engine is None:
        raise _refusal(library, path, model, errors)
    return engine


def _refusal(library: Library, path: Path, model: str, errors: list[str]) -> TriremeError:
    said = "; ".join(text.strip().rstrip(".") for text in errors) or "no reason given"
    lower = said.lower()
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in lower), _DAMAGED)
    return InternalError(
        f"unable to load model '{model}' from '{path}': unable to create TensorRT engine: {said} "
        f"({remedy.format(version=library.trt.__version__)})"
    )
