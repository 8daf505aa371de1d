"""The backend ``tensorrt``: how plans are read, checked, and shared by instances (docs/reference/backends.md#tensorrt).

Written after TensorRT's reference (10.13 to 11.4) and tested against a stand-in for it; no GPU has seen it yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...config.model import ModelConfig
from ...errors import InvalidArgumentError
from ...gpu.cupy_device import CupyDevice
from ..framework import FrameworkBackend, FrameworkModel, find_file
from ..interface import Completion, InstanceSpec, ModelFiles
from .checks import check_engine, check_profiles, complete_from_engine
from .instance import TensorRtInstance
from .library import BackendOptions, Library, Settings, import_library, read_plan
from .signature import EngineTensors, chosen_profiles, engine_tensors


@dataclass(frozen=True, slots=True)
class Engine:
    """A plan in the memory of a device, for all instances there.

    Attributes:
        raw: the ``ICudaEngine``.
    """

    device: CupyDevice
    raw: Any
    tensors: EngineTensors


class TensorRtBackend(FrameworkBackend):
    """Runs TensorRT's plans on GPUs.

    Options: see `BackendOptions`.
    """

    name = "tensorrt"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._options = BackendOptions.of(options)

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """See docs/reference/model-configuration.md#completion-by-backends.

        Raises:
            TriremeError: the plan cannot be read, or contradicts the configuration.
        """
        groups = config.instance_group
        if not groups or groups[0].kind != "KIND_GPU":
            return None  # it cannot be loaded, and `load` says why
        spec = InstanceSpec(config.name, "KIND_GPU", groups[0].gpus[0])
        return complete_from_engine(config, self.read(config, files, spec).tensors)

    def uses_gpus(self) -> bool:
        return True

    def load(self, config: ModelConfig, files: ModelFiles) -> TensorRtModel:
        return TensorRtModel(self, config, files)

    def import_library(self) -> Library:
        return import_library(self._options.plugins)

    def read(self, config: ModelConfig, files: ModelFiles, spec: InstanceSpec) -> Engine:
        """The plan of an instance, in the memory of its device.

        Raises:
            TriremeError: it cannot be read.
        """
        path = find_file(config, files, spec, "model.plan", name=spec.name)
        library = self.library
        device = self.services.gpus.get(spec.device_id)
        engine = read_plan(
            library, device, path, model=config.name, version_compatible=self._options.version_compatible
        )
        return Engine(device, engine, engine_tensors(library.trt, engine, config.name))


class TensorRtModel(FrameworkModel[Engine]):
    """A model whose configuration fits its plan: that of the first device; those of the others are read, and checked,
    when the first instance is made there.
    """

    def __init__(self, backend: TensorRtBackend, config: ModelConfig, files: ModelFiles) -> None:
        self._settings = Settings.of(config)
        for group in config.instance_group:
            if group.kind != "KIND_GPU":
                raise InvalidArgumentError(
                    f"unable to load model '{config.name}', TensorRT backend supports only GPU device"
                )
        super().__init__(config, files, share=math.inf)
        self._backend = backend
        for group in config.instance_group[:1]:
            self.program(InstanceSpec(f"{group.name}_0", group.kind, group.gpus[0]))

    def instance_class(self, spec: InstanceSpec) -> type[TensorRtInstance]:
        return TensorRtInstance

    def create_instance(self, spec: InstanceSpec) -> TensorRtInstance:
        engine = self.program(spec)
        group_name = spec.name.rpartition("_")[0]
        names = next((group.profile for group in self.config.instance_group if group.name == group_name), ())
        profiles = chosen_profiles(engine.tensors, names, spec.name)
        check_profiles(self.config, profiles)
        return TensorRtInstance(
            self._backend.library,
            self.config,
            spec.name,
            self.tensors,
            engine.device,
            engine.raw,
            engine.tensors,
            profiles,
            self._settings,
        )

    def make(self, spec: InstanceSpec) -> Engine:
        engine = self._backend.read(self.config, self.files, spec)
        check_engine(self.config, engine.tensors, self.tensors.sequences)
        self.tensors.scalars = engine.tensors.signature.scalars
        return engine
