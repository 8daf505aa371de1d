"""What a configuration's parameters say about how OpenVINO is to run (docs/reference/backends.md#openvino)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...config.model import ModelConfig
from ...errors import InvalidArgumentError

_HINTS = ("latency", "throughput", "cumulative_throughput")
_COUNTS = ("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of one model.

    Attributes:
        device: what OpenVINO calls it.
        properties: for compiling the model.
        pad_batches: fill batches up to the size that the model was made for.
        reshape: give the model the shapes of the configuration.
        extension: a shared library of operators, or empty.
    """

    device: str = "CPU"
    properties: Mapping[str, str] = field(default_factory=dict)
    pad_batches: bool = False
    reshape: bool = False
    extension: str = ""

    @classmethod
    def of(cls, config: ModelConfig) -> Settings:
        """Read them.

        Raises:
            InvalidArgumentError: a value is none of those that its parameter may have.
        """
        known = config.parameters
        properties: dict[str, str] = {}
        hint = known.get("PERFORMANCE_HINT", "").lower()
        if hint and hint not in _HINTS:
            raise InvalidArgumentError(
                "expected the parameter 'PERFORMANCE_HINT' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got " + hint
            )
        if hint:
            properties["PERFORMANCE_HINT"] = hint.upper()
        for key in _COUNTS:
            if key in known:
                properties[key] = _count(key, known[key].lower())
        if "NUM_STREAMS" in known:
            properties["NUM_STREAMS"] = _streams(known["NUM_STREAMS"].lower())
        if "HINT_BF16" in known:
            if known["HINT_BF16"].lower() != "yes":
                raise InvalidArgumentError(
                    f"expected the parameter 'HINT_BF16' to be YES, got {known['HINT_BF16'].lower()}"
                )
            properties["INFERENCE_PRECISION_HINT"] = "bf16"
        if _yes(known, "SKIP_OV_DYNAMIC_BATCHSIZE"):
            properties["ALLOW_AUTO_BATCHING"] = "NO"
        return cls(
            device=known.get("TARGET_DEVICE", "CPU").upper(),
            properties=properties,
            pad_batches=_yes(known, "ENABLE_BATCH_PADDING"),
            reshape=_yes(known, "RESHAPE_IO_LAYERS"),
            extension=known.get("CPU_EXTENSION_PATH", ""),
        )


def _yes(known: Mapping[str, str], key: str) -> bool:
    return known.get(key, "").lower() == "yes"


def _count(key: str, value: str) -> str:
    if not (value.isascii() and value.isdecimal()):
        raise InvalidArgumentError(f"expected the parameter '{key}' to be a non-negative number, got {value}")
    return value


def _streams(value: str) -> str:
    if value in ("auto", "numa"):
        return value.upper()
    if value.isascii() and value.isdecimal():
        return value
    raise InvalidArgumentError(f"expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got {value}")
