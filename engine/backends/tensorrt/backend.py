"""The backend ``tensorrt``: how plans are read, checked, and shared by instances (docs/reference/backends.md#tensorrt).

Written after TensorRT's reference (10.13 to 11.4) and tested against a stand-in for it; no GPU has seen it yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...errors import InvalidArgumentError, UnavailableError
from ...gpu.cupy_device import CupyDevice
from ...scheduling.batch import BatchLayout
from ..interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles
from .checks import check_engine, check_profiles, complete_from_engine
from .instance import TensorRtInstance
from .library import BackendOptions, Library, Settings, import_library, read_plan
from .signature import EngineTensors, chosen_profiles, engine_tensors

_DEFAULT_FILENAME = "model.plan"


@dataclass(frozen=True, slots=True)
class Engine:
    """A plan in the memory of a device, for all instances there.

    Attributes:
        raw: the ``ICudaEngine``.
    """

    device: CupyDevice
    raw: Any
    tensors: EngineTensors


class TensorRtBackend(Backend):
    """Runs TensorRT's plans on GPUs.

    Options: see `BackendOptions`.
    """

    name = "tensorrt"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._options = BackendOptions.of(options)
        self._lock = threading.Lock()
        self._library: Library | None = None

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """See docs/reference/model-configuration.md#completion-by-backends.

        Raises:
            TriremeError: the plan cannot be read, or contradicts the configuration.
        """
        groups = config.instance_group
        if not groups or groups[0].kind != "KIND_GPU":
            return None  # it cannot be loaded, and `load` says why
        spec = InstanceSpec(config.name, "KIND_GPU", groups[0].gpus[0])
        return complete_from_engine(config, self._read(config, files, spec).tensors)

    def uses_gpus(self) -> bool:
        return True

    def load(self, config: ModelConfig, files: ModelFiles) -> TensorRtModel:
        return TensorRtModel(config, lambda spec: self._read(config, files, spec), self._tensorrt)

    def _tensorrt(self) -> Library:
        with self._lock:
            if self._library is None:
                self._library = import_library(self._options.plugins)
            return self._library

    def _read(self, config: ModelConfig, files: ModelFiles, spec: InstanceSpec) -> Engine:
        path = files.model_path(config, spec, _DEFAULT_FILENAME)
        if not path.is_file():
            raise UnavailableError(f"unable to find '{path}' for model instance '{spec.name}'")
        library = self._tensorrt()
        device = self.services.gpus.get(spec.device_id)
        engine = read_plan(
            library, device, path, model=config.name, version_compatible=self._options.version_compatible
        )
        return Engine(device, engine, engine_tensors(library.trt, engine, config.name))


class TensorRtModel(LoadedModel):
    """A model whose configuration fits its plan: that of the first device; those of the others are read, and checked,
    when the first instance is made there.
    """

    def __init__(
        self, config: ModelConfig, read: Callable[[InstanceSpec], Engine], tensorrt: Callable[[], Library]
    ) -> None:
        self._settings = Settings.of(config)
        for group in config.instance_group:
            if group.kind != "KIND_GPU":
                raise InvalidArgumentError(
                    f"unable to load model '{config.name}', TensorRT backend supports only GPU device"
                )
        self._config = config
        self._read = read
        self._tensorrt = tensorrt
        self._sequences = sequence_batching(config) or SequenceBatching()
        self._layout = BatchLayout(config)
        self._lock = threading.Lock()
        self._engines: dict[int, Engine] = {}
        for group in config.instance_group[:1]:
            self._engine(InstanceSpec(f"{group.name}_0", group.kind, group.gpus[0]))

    def instance_class(self, spec: InstanceSpec) -> type[TensorRtInstance]:
        return TensorRtInstance

    def create_instance(self, spec: InstanceSpec) -> TensorRtInstance:
        engine = self._engine(spec)
        group_name = spec.name.rpartition("_")[0]
        names = next((group.profile for group in self._config.instance_group if group.name == group_name), ())
        profiles = chosen_profiles(engine.tensors, names, spec.name)
        check_profiles(self._config, profiles)
        return TensorRtInstance(
            self._tensorrt(),
            self._config,
            spec,
            engine.device,
            engine.raw,
            engine.tensors,
            profiles,
            self._settings,
            self._layout,
            self._sequences.states,
        )

    def close(self) -> None:
        self._engines.clear()

    def _engine(self, spec: InstanceSpec) -> Engine:
        """The engine of a device, read when it is first asked for."""
        with self._lock:
            if spec.device_id not in self._engines:
                engine = self._read(spec)
                check_engine(self._config, engine.tensors, self._sequences)
                self._engines[spec.device_id] = engine
            return self._engines[spec.device_id]
