"""The onnxruntime package: imported when a model needs it, never before; and its errors in plain words."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from typing import Any

from ...datatypes import BY_ONNX
from ...errors import UnavailableError, UnsupportedError
from ..signature import GraphTensor, Signature

_ERROR_SEVERITY = 3
_FATAL_SEVERITY = 4

_STATUS = re.compile(r"\[ONNXRuntimeError\] : (\d+) : [A-Z_]+ : ")
# "Load model from FILE failed:", which says again what the text around it says.
_LOAD_PREFIX = re.compile(r"Load model from .*? failed:")
# "/onnxruntime_src/onnxruntime/core/graph/model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, ...) "
_SOURCE_POSITION = re.compile(
    r"\S+\.(?:cc|cpp|cu|h):\d+ "
    r"(?:[\w:<>*&~, ]*?[\w~>]\(.*?\)(?:::<lambda\(.*?\)>)?(?: const)?(?: \[with [^\]]*\])? )?"
)


_BUILDS = ("onnxruntime", "onnxruntime-gpu")


def installed_builds() -> list[str]:
    """The distributions that bring the package; more than one overwrite each other's files."""
    found = []
    for name in _BUILDS:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(name)
    return found


def import_onnxruntime() -> Any:
    """The package, told to log errors only.

    Raises:
        UnavailableError: it is not installed, or broken.
    """
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise UnavailableError(
            f"the backend 'onnxruntime' needs the package onnxruntime: pip install trireme[cpu] ({error})"
        ) from error
    runtime.set_default_logger_severity(_ERROR_SEVERITY)
    return runtime


def load_cuda(runtime: Any) -> None:
    """Load CUDA's libraries from the packages that they may have been installed with, before the provider needs them.

    What cannot be loaded is printed, and is missing when the provider is asked for.
    """
    preload = getattr(runtime, "preload_dlls", None)  # of ONNX Runtime 1.21 and later
    if preload is not None:
        preload()


def session_options(runtime: Any) -> Any:
    """Fresh session options that log errors only."""
    options = runtime.SessionOptions()
    options.log_severity_level = _ERROR_SEVERITY
    return options


def fresh_run_options(runtime: Any) -> Any:
    """Options of a run that logs nothing: it raises what it would log, and the request's answer tells it."""
    options = runtime.RunOptions()
    options.log_severity_level = _FATAL_SEVERITY
    return options


def error_types(runtime: Any) -> tuple[type[Exception], ...]:
    """What onnxruntime's calls raise: a class for each of its status codes, and Python's own from its wrappers."""
    state = runtime.capi.onnxruntime_pybind11_state
    own = [cls for cls in vars(state).values() if isinstance(cls, type) and issubclass(cls, Exception)]
    return (*own, RuntimeError, ValueError)


def reason(error: Exception) -> str:
    """``onnx runtime error <code>: <text>``, without the source positions and C++ signatures that come with it."""
    text = str(error).strip()
    status = _STATUS.match(text)
    code = f" {status[1]}" if status else ""
    text = text[status.end() :] if status else text
    text = _SOURCE_POSITION.sub("", _LOAD_PREFIX.sub("", text, count=1))
    return f"onnx runtime error{code}: {text.strip()}"


# -- What an ONNX graph says about its inputs and outputs


_OTHER_KINDS = {
    "seq": "ONNX_TYPE_SEQUENCE",
    "map": "ONNX_TYPE_MAP",
    "sparse_tensor": "ONNX_TYPE_SPARSETENSOR",
    "optional": "ONNX_TYPE_OPTIONAL",
}


def signature_of(session: Any) -> Signature:
    """The signature of an ``onnxruntime.InferenceSession``.

    Raises:
        UnsupportedError: an input or output is no tensor.
    """
    return Signature(
        inputs=_tensors(session.get_inputs()),
        outputs=_tensors(session.get_outputs()),
        initializers=_tensors(session.get_overridable_initializers()),
    )


def _tensors(arguments: Any) -> dict[str, GraphTensor]:
    tensors: dict[str, GraphTensor] = {}
    for argument in arguments:
        kind = argument.type.partition("(")[0]
        if kind != "tensor":
            raise UnsupportedError(
                f"Unsupported ONNX Type '{_OTHER_KINDS.get(kind, kind)}' for I/O '{argument.name}', expected "
                "'ONNX_TYPE_TENSOR'."
            )
        dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape)
        element = argument.type.removeprefix("tensor(")[:-1].upper()
        tensors[argument.name] = GraphTensor(argument.name, element, BY_ONNX.get(argument.type), dims)
    return tensors
