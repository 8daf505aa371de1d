"""The tensorflow package: imported when a model needs it, never before; and its errors in plain words."""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.files import path_within
from ...config.model import ModelConfig
from ...errors import InternalError, InvalidArgumentError, UnavailableError
from ..interface import InstanceSpec, ModelFiles
from ..parameters import parse_int

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Errors only; and results that do not depend on the processor. What the environment says goes before."""

_ANNOUNCEMENTS = ("Graph execution error:", "Detected at node", "Node: ", "[[")


def import_tensorflow() -> Any:
    """The package.

    Raises:
        UnavailableError: it is not installed, or broken.
    """
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # its warnings are for those who write models
    try:
        return importlib.import_module("tensorflow")
    except (ImportError, OSError) as error:
        raise UnavailableError(
            f"the backend 'tensorflow' needs the package tensorflow: pip install trireme[tensorflow] ({error})"
        ) from error


def error_types(tf: Any) -> tuple[type[Exception], ...]:
    """What its calls raise."""
    return (tf.errors.OpError, RuntimeError, ValueError, TypeError, LookupError, OSError)


def load_error(model_name: str, error: Exception) -> InternalError:
    """A model that TensorFlow cannot load."""
    return InternalError(f"unable to load model '{model_name}': {_reason(error)}")


def execute_error(error: Exception) -> InternalError:
    """A run that failed."""
    return InternalError(f"tensorflow error: {_reason(error)}")


def _reason(error: Exception) -> str:
    """What went wrong, without the announcements before it and the list of graph nodes that follows it."""
    text = str(getattr(error, "message", "") or error)
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if line and not line.startswith(_ANNOUNCEMENTS)]
    return telling[0] if telling else type(error).__name__


# -- What a configuration says about how TensorFlow is to run (docs/reference/backends.md#tensorflow)


_YES = ("yes", "1", "on", "true")
_NO = ("no", "0", "off", "false")
_MIXED_PRECISION = "auto_mixed_precision"
_NEEDS_NOTHING = "gpu_io"


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of one model.

    Attributes:
        intra_threads, inter_threads: 0 for TensorFlow's choice.
        own_threads: each session has threads of its own.
        tag, signature: which graph of a SavedModel, and which of its signatures.
        share: instances that use one session.
        init_ops: operations to run once a session is made.
        xla: True and False for the just-in-time compiler on and off, None for TensorFlow's choice.
        mixed_precision: let GPUs compute in half precision.
    """

    intra_threads: int = 0
    inter_threads: int = 0
    own_threads: bool = False
    tag: str = "serve"
    signature: str = "serving_default"
    share: int = 1
    init_ops: tuple[str, ...] = ()
    xla: bool | None = None
    mixed_precision: bool = False

    @classmethod
    def of(cls, config: ModelConfig, files: ModelFiles) -> Settings:
        """Read them.

        Raises:
            InvalidArgumentError: a value is none of those that its parameter may have.
        """
        known = config.parameters
        for accelerator in config.cpu_accelerators:
            raise InvalidArgumentError(f"unknown Execution Accelerator '{accelerator.name}' is requested")
        return cls(
            intra_threads=_count(known, "TF_NUM_INTRA_THREADS", 0),
            inter_threads=_count(known, "TF_NUM_INTER_THREADS", 0),
            own_threads=_flag(known, "TF_USE_PER_SESSION_THREADS"),
            tag=known.get("TF_GRAPH_TAG", "serve"),
            signature=known.get("TF_SIGNATURE_DEF", "serving_default"),
            share=max(_count(known, "MAX_SESSION_SHARE_COUNT", 1), 1),
            init_ops=_init_ops(known.get("TF_INIT_OPS_FILE", ""), files),
            xla=None if config.graph_level == 0 else config.graph_level > 0,
            mixed_precision=_mixed_precision(config),
        )

    def session_config(self, tf: Any, spec: InstanceSpec) -> Any:
        """The ``ConfigProto`` of an instance's session."""
        v1 = tf.compat.v1
        made = v1.ConfigProto(
            intra_op_parallelism_threads=self.intra_threads,
            inter_op_parallelism_threads=self.inter_threads,
            use_per_session_threads=self.own_threads,
            allow_soft_placement=True,
        )
        if spec.kind == "KIND_CPU":
            made.device_count["GPU"] = 0
        else:  # alike in all sessions that see GPUs: what the first one says of them holds for the process
            made.gpu_options.allow_growth = True
        if self.xla is not None:
            options = v1.OptimizerOptions
            made.graph_options.optimizer_options.global_jit_level = options.ON_1 if self.xla else options.OFF
        if self.mixed_precision and spec.kind == "KIND_GPU":
            made.graph_options.rewrite_options.auto_mixed_precision = 1
        return made


def _count(known: Mapping[str, str], key: str, default: int) -> int:
    if key not in known:
        return default
    number = parse_int(known[key])
    if number < 0:
        raise InvalidArgumentError(f"parameter '{key}' must be a non-negative number, got {number}")
    return number


def _flag(known: Mapping[str, str], key: str) -> bool:
    value = known.get(key, "no").lower()
    if value not in (*_YES, *_NO):
        raise InvalidArgumentError(f"parameter '{key}' must be yes or no, 1 or 0, on or off, got '{known[key]}'")
    return value in _YES


def _mixed_precision(config: ModelConfig) -> bool:
    names = [accelerator.name for accelerator in config.gpu_accelerators]
    for name in names:
        if name == "tensorrt":
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', TensorFlow from PyPI is built without TensorRT, so the "
                "execution accelerator 'tensorrt' cannot be used"
            )
        if name not in (_MIXED_PRECISION, _NEEDS_NOTHING):
            raise InvalidArgumentError(f"unknown Execution Accelerator '{name}' is requested")
    return _MIXED_PRECISION in names


def _init_ops(filename: str, files: ModelFiles) -> tuple[str, ...]:
    """Names of operations from a JSON file of the version's directory, else of the model's."""
    if not filename:
        return ()
    for folder in (str(files.version), ""):
        path = path_within(files.model_directory, folder, filename)
        if path is not None and path.is_file():
            return _read_init_ops(path)
    raise InvalidArgumentError(
        f"TF_INIT_OPS_FILE '{filename}' is neither in {files.version_directory} nor in {files.model_directory}"
    )


def _read_init_ops(path: Path) -> tuple[str, ...]:
    try:
        names = json.loads(path.read_text())["init_ops"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InvalidArgumentError(f"{path} must be a JSON object with a list 'init_ops': {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"'init_ops' in {path} must be a list of operation names")
    return tuple(names)
