"""The module that user code imports as ``triton_python_backend_utils``, usually as ``pb_utils``: all of its names.

`install` puts it into ``sys.modules``; the code that runs a model also says which model that is (`context`).
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .context import Logger, MemoryType, PreferredMemory, SharedMemory, ask, asking, current
from .errors import TritonError, TritonModelException, text
from .request import RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL
from .request import RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from .request import InferenceRequest, InferenceTrace
from .response import FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL
from .response import Host, InferenceResponse, InferenceResponseSender
from .tensor import (
    TRITON_STRING_TO_NUMPY,
    Tensor,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

NAME = "triton_python_backend_utils"
COMPILED_NAME = "c_python_backend_utils"  # where Triton keeps its classes: some models import them from there

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

shared_memory = SharedMemory()


def install() -> None:
    """Let ``import triton_python_backend_utils`` find this module under both its names, whatever else has them."""
    for name in (NAME, COMPILED_NAME):
        sys.modules[name] = sys.modules[__name__]


# Loading and unloading models, and where the own one is (docs/reference/python-backend.md#module-members).


def get_model_dir() -> str:
    """The directory of the model's version, in which ``model.py`` lies."""
    return current().version_directory


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Have the server load a model; it must let clients control its models.

    Args:
        config: JSON that takes the place of the model's configuration file.
        files: contents by "file:<path in the model's directory>".

    Raises:
        TritonModelException: it does not load.
    """
    model_name = text("load_model: model_name", model_name)
    config = text("load_model: config", config)
    if files is not None and not isinstance(files, Mapping):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    for path, content in (files or {}).items():
        if not isinstance(path, str) or not isinstance(content, bytes):
            raise TypeError(f"load_model: files must be bytes by str, found {type(content)} by {type(path)}")
    ask(asking("load_model"), "Failed to load model", "load_model", model_name, config, dict(files or {}))


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Have the server unload a model, and the models of an ensemble too if asked to.

    Raises:
        TritonModelException: the server refuses.
    """
    model_name = text("unload_model: model_name", model_name)
    ask(asking("unload_model"), "Failed to unload model", "unload_model", model_name, bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether requests for the model, in that version or any, would be accepted.

    Raises:
        TritonModelException: the version is no number.
    """
    model_name = text("is_model_ready: model_name", model_name)
    model_version = text("is_model_ready: model_version", model_version)
    host = asking("is_model_ready")
    return bool(ask(host, "Failed to check model readiness", "is_model_ready", model_name, model_version))


# -- Looking things up in requests, responses and configurations (docs/reference/python-backend.md#module-members)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    return _tensor(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    return _tensor(inference_response.output_tensors(), name)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return _entry(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return _entry(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether a model with this configuration may send any number of responses."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def _tensor(tensors: Iterable[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor._name == name), None)


def _entry(entries: Iterable[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry["name"] == name), None)


# A model's own metrics: `MetricFamily` and `Metric` (docs/reference/python-backend.md#metrics-and-the-log). A metric is
# on the server as long as its Python object lives, and no longer than its family's.


_FAMILY_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class MetricKind(enum.IntEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    __str__ = enum.Enum.__str__


@dataclass(eq=False)
class _Registered:
    """A family on the server; its metrics hold this, and thereby see that the family is gone."""

    host: Host
    kind: MetricKind
    number: int
    deleted: bool = False


class Metric:
    """One value with its labels. Made by ``MetricFamily.Metric``; equal labels are the same value."""

    __slots__ = ("_family", "_number")

    def __init__(self, family: _Registered, number: int) -> None:
        self._family = family
        self._number = number

    def increment(self, value: float) -> None:
        """Add to a counter (not less than 0) or a gauge."""
        self._ask("Failed to increment metric value", "metric_increment", _number(value))

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._ask("Failed to set metric value", "metric_set", _number(value))

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""
        self._ask("Failed to observe metric value", "metric_observe", _number(value))

    def value(self) -> float:
        """The present value of a counter or a gauge."""
        return self._ask("Failed to get metric value", "metric_value")

    def _ask(self, failure: str, method: str, *value: float) -> Any:
        if self._family.deleted:
            raise TritonModelException(f"{failure}: {_FAMILY_DELETED}")
        return ask(self._family.host, failure, method, self._number, *value)

    def __del__(self) -> None:
        if not self._family.deleted:
            self._family.host.ask("delete_metric", self._number)


def _number(value: float) -> float:
    if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        raise TypeError(f"a metric's value must be a number, found type {type(value)}")
    return float(value)


class MetricFamily:
    """A named group of metrics of one kind.

    Args:
        kind: COUNTER, GAUGE or HISTOGRAM, which are attributes of this class.

    Raises:
        TritonModelException: the server refuses it: a bad name, or the same name with another kind.
    """

    __slots__ = ("_registered",)

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        name = text("MetricFamily: name", name)
        description = text("MetricFamily: description", description)
        if not isinstance(kind, MetricKind):
            raise TypeError(f"MetricFamily: kind must be one such as MetricFamily.COUNTER, found type {type(kind)}")
        host = asking("MetricFamily")
        failure = "Error when creating MetricFamily"
        number = ask(host, failure, "create_family", name, description, kind.name.lower())
        self._registered = _Registered(host, kind, number)

    def Metric(  # noqa: N802 - its public name
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The metric with these labels.

        Args:
            buckets: upper bounds in rising order, for a histogram, and only for one.
        """
        family = self._registered
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if family.kind is not MetricKind.HISTOGRAM:
            if buckets is not None:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        elif buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        elif not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        bounds = None if buckets is None else tuple([_number(bound) for bound in buckets])
        named = {str(key): value for key, value in (labels or {}).items()}
        number = ask(family.host, "Error when creating Metric", "create_metric", family.number, named, bounds)
        return Metric(family, number)

    def __del__(self) -> None:
        registered = getattr(self, "_registered", None)
        if registered is not None:
            registered.deleted = True
            registered.host.ask("delete_family", registered.number)


# `ModelConfig`: what ``auto_complete_config`` adds to a configuration (docs/reference/python-backend.md#auto-complete).


class ModelConfig:
    """A model's configuration, as JSON, while it is completed."""

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The configuration itself, not a copy."""
        return self._model_config

    def _as_json(self) -> str:
        return json.dumps(self._model_config)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """
        Raises:
            ValueError: the configuration has a larger one.
        """
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Batch dynamically, unless the configuration says how to already. ValueError if it has another scheduler."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but auto-complete-config function for "
                    f"model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002 - its public name
        """Declare an input.

        Args:
            input: name, data_type (``TYPE_FP32`` ...), dims (without the batch dimension; one may stand without a
                list); optional, if wanted.

        Raises:
            ValueError: one of them is missing, something else is there, or the configuration contradicts.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Declare an output: name, data_type, dims. Raises as `add_input`."""
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, bool]) -> None:
        """
        Args:
            transaction_policy_dict: ``{"decoupled": True}``.

        Raises:
            ValueError: other keys, or another value in the configuration.
        """
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        for key, decoupled in transaction_policy_dict.items():
            if policy.setdefault(key, decoupled) != decoupled:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                    f"already set to '{policy[key]}'."
                )

    @property
    def _name(self) -> str:
        return self._model_config["name"]

    def _add(self, kind: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if set(given) - set(known):
            *most, last = (f"'{each}'" for each in known)
            others = f"{', '.join(most)} and {last}"
            raise ValueError(f"{kind} '{given.get('name', '')}' {where} contains property other than {others}.")
        if "name" not in given:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        name = given["name"]
        for needed in ("data_type", "dims"):
            if needed not in given:
                raise ValueError(f"{kind} '{name}' {where} is missing '{needed}' property.")
        entries = self._model_config.setdefault(kind, [])
        entry = next((entry for entry in entries if entry["name"] == name), None)
        if entry is None:
            entries.append({**given, "dims": _dims(given)})
        else:
            self._merge(kind, entry, given)

    def _merge(self, kind: str, entry: dict[str, Any], given: Mapping[str, Any]) -> None:
        """Fill in what `entry` leaves open; nothing of it if something contradicts."""
        name, data_type, dims = given["name"], given["data_type"], _dims(given)
        if entry["data_type"] not in ("TYPE_INVALID", data_type):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {entry['data_type']} for {kind} "
                f"'{name}', model provides {data_type}"
            )
        about = f"model '{self._name}', tensor '{name}': the model expects"
        if entry["dims"] and entry["dims"] != dims:
            raise ValueError(f"{about} dims {dims} but the model configuration specifies dims {entry['dims']}")
        if "optional" in given and entry.setdefault("optional", given["optional"]) != given["optional"]:
            raise ValueError(
                f"{about} optional {given['optional']} but the model configuration specifies optional "
                f"{entry['optional']}"
            )
        entry["data_type"] = data_type
        entry["dims"] = dims


def _dims(given: Mapping[str, Any]) -> list[Any]:
    """Its dims: a single number is one dimension, as protobuf's JSON has it."""
    dims = given["dims"]
    return [dims] if isinstance(dims, int) else list(dims)


__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "shared_memory",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]
