"""What a configuration, and the backend's options, say about TensorRT models (docs/reference/backends.md#tensorrt)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...config.model import ModelConfig
from ...errors import InvalidArgumentError, UnsupportedError
from ..parameters import parse_bool

_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")
_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
_STRATEGY = "execution_context_allocation_strategy"
_SEVERAL_DEVICES = ("enable_multi_device", "multi_device_gpus", "multi_device_per_rank_engines")
_PRIORITY_MAX = 1


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """``--backend-config=tensorrt,…``.

    Attributes:
        plugins: libraries to load.
        version_compatible: whether plans may bring the code of the TensorRT version that made them.
    """

    plugins: tuple[str, ...]
    version_compatible: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> BackendOptions:
        """Read them. ``coalesce-request-input`` and ``execution-policy`` are checked, and change nothing: inputs are
        joined in pinned memory whatever they say, and every instance has a thread.

        Raises:
            InvalidArgumentError: one has a value that it cannot have.
        """
        parse_bool(options.get("coalesce-request-input", "false"))
        policy = options.get("execution-policy", _POLICIES[0])
        if policy not in _POLICIES:
            raise InvalidArgumentError(f"execution-policy must be {' or '.join(_POLICIES)}, not '{policy}'")
        plugins = tuple(path for path in options.get("plugins", "").split(";") if path)
        return cls(plugins, parse_bool(options.get("version-compatible", "false")))


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one model.

    Attributes:
        stream_priority: see `Device.stream`.
        strategy: how an execution context gets its memory: a name of TensorRT's ``ExecutionContextAllocationStrategy``.
        graphs: whether CUDA graphs are to be captured.
    """

    stream_priority: int
    strategy: str
    graphs: bool

    @classmethod
    def of(cls, config: ModelConfig) -> Settings:
        """Read them.

        Raises:
            InvalidArgumentError: one has a value that it cannot have.
            UnsupportedError: the model is to be spread over several GPUs.
        """
        strategy = config.parameters.get(_STRATEGY, _STRATEGIES[0])
        if strategy not in _STRATEGIES:
            raise InvalidArgumentError(
                f"Invalid value for '{_STRATEGY}': '{strategy}' for model instance '{config.name}'. Supported values "
                "are 'STATIC' and 'ON_PROFILE_CHANGE'."
            )
        for name in _SEVERAL_DEVICES:
            if name in config.parameters:
                raise UnsupportedError(
                    f"unable to load model '{config.name}': the parameter '{name}' asks for an engine over several "
                    "GPUs, which Trireme does not have; build one for a single GPU, and place instances on several"
                )
        optimization = config.message.optimization
        priority = -1 if optimization.priority == _PRIORITY_MAX else 0
        return cls(priority, strategy, optimization.cuda.graphs)
