"""The backend ``pytorch``: which kind of program a model is, and how its instances are made
(docs/reference/backends.md#pytorch)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...datatypes import BYTES
from ...errors import InvalidArgumentError, UnavailableError
from ...gpu.devices import TorchDevices
from ...gpu.graphs import graph_shapes, input_shapes
from ...gpu.torch_device import TorchDevice
from ...instances.orders import first_instance, input_gpu
from ...scheduling.batch import BatchLayout
from ..interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from ..signature import fed_inputs
from .formats import (
    TorchScriptProgram,
    find_python_model,
    load_exported,
    load_python_module,
    load_torchscript,
    python_program,
)
from .instance import PyTorchInstance, PyTorchStreamInstance
from .program import Program, Runner, Settings, TensorNames, error_types, import_torch
from .tensors import Outputs, check_datatype

_log = logging.getLogger(__name__)

_EXPORTED = "torch_aoti"
_PRIORITY_MAX = 1


class PyTorchBackend(Backend):
    name = "pytorch"
    settling_runs = 3  # TorchScript watches two, and compiles for the third

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._inter_op = InterOpThreads()
        self._reading_program = threading.Lock()  # torch.export.load is for one thread at a time

    def uses_gpus(self) -> bool:
        return import_torch().cuda.is_available()

    def load(self, config: ModelConfig, files: ModelFiles) -> PyTorchModel:
        gpus = self.services.torch_gpus
        return PyTorchModel(import_torch(), config, files, self._inter_op, self._reading_program, gpus)


class InterOpThreads:
    """How many threads torch runs independent operators on: one number a process, and the first to set it wins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = 0

    def ask(self, torch: Any, model_name: str, count: int) -> None:
        """Set it, unless it is set."""
        with self._lock:
            if self._set == count:
                return
            try:
                torch.set_num_interop_threads(count)
                self._set = count
            except RuntimeError:
                _log.warning(
                    "model '%s' asks for %d inter-op threads, but torch runs with %d already, and keeps that number "
                    "until the server is started again",
                    model_name,
                    count,
                    torch.get_num_interop_threads(),
                )


class PyTorchModel(LoadedModel):
    """A model whose configuration fits its file, as far as that can be told without running it.

    The first instance is made from the module that the check has loaded.
    """

    def __init__(
        self,
        torch: Any,
        config: ModelConfig,
        files: ModelFiles,
        inter_op: InterOpThreads,
        reading_program: threading.Lock,
        devices: TorchDevices,
    ) -> None:
        self._torch = torch
        self._devices = devices
        self._config = config
        self._settings = settings = Settings.of(config)
        self._sequences = sequence_batching(config) or SequenceBatching()
        self._is_python = bool(config.runtime) and config.runtime.endswith(".py")
        self._files = files
        first = first_instance(config)
        self._find(first)
        self._names = _tensor_names(config, self._sequences)
        self._check_datatypes()
        self._layout = BatchLayout(config, text=True)
        self._outputs = Outputs(torch, config, self._layout, self._sequences.states)
        self._graphs = graph_shapes(config, input_shapes(config))
        self._dtypes = _input_dtypes(config, self._sequences)
        self._threads = settings.intra_op_threads or _fair_share(config)
        self._lock = threading.Lock()
        self._reading_program = reading_program
        self._shared: dict[str, Program] = {}
        if settings.inter_op_threads:
            inter_op.ask(torch, config.name, settings.inter_op_threads)
        _set_jit(torch, settings)
        for line in settings.lines(config):
            _log.info("%s", line)
        self._spare: tuple[str, int, Program] | None = None
        self._spare = (first.kind, first.device_id, self._program(first))

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        """Strings are no tensors: a model that has some goes through Python between copy and computation, and so do its
        batches, one after the other. So does a model that has put itself on devices of its choice (KIND_MODEL)."""
        on_gpu = spec.kind == "KIND_GPU" and not self._has_strings
        return PyTorchStreamInstance if on_gpu else PyTorchInstance

    @property
    def input_gpu(self) -> int | None:
        return None if self._has_strings else input_gpu(self._config)

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        with self._lock:
            program = self._take_spare(spec) or self._program(spec)
        torch, config = self._torch, self._config
        place = program.device
        gpu = self._devices.get(torch, place.index or 0) if place.type == "cuda" else None
        runner = Runner(torch, program, self._settings, gpu)
        rows = max(config.max_batch_size, 1)
        if gpu is None or self.instance_class(spec) is PyTorchInstance:
            return PyTorchInstance(torch, spec.name, runner, self._layout, self._outputs, rows, self._threads)
        return self._stream_instance(spec, gpu, runner, rows)

    def _stream_instance(
        self, spec: InstanceSpec, gpu: TorchDevice, runner: Runner, rows: int
    ) -> PyTorchStreamInstance:
        if self._threads:
            self._torch.set_num_threads(self._threads)
        instance = PyTorchStreamInstance(
            spec.name,
            gpu,
            runner,
            self._layout,
            self._outputs,
            rows,
            priority=-1 if self._config.message.optimization.priority == _PRIORITY_MAX else 0,
            stateful=bool(self._sequences.states),
        )
        if self._graphs:
            instance.capture(self._graphs, self._dtypes)
        return instance

    @property
    def _has_strings(self) -> bool:
        tensors = (*self._config.input, *self._config.output, *self._sequences.states, *self._sequences.controls)
        return any(tensor.datatype is BYTES for tensor in tensors)

    def close(self) -> None:
        self._spare = None
        self._shared = {}

    def _find(self, spec: InstanceSpec) -> Path:
        files = self._files
        if self._is_python:
            path = files.model_path(self._config, spec, "model.py")
            return find_python_model(files.version_directory, os.path.relpath(path, files.version_directory))
        default = "model.pt2" if self._config.platform == _EXPORTED else "model.pt"
        path = files.model_path(self._config, spec, default)
        if not path.is_file():
            raise UnavailableError(f"unable to find '{path}' for model instance '{self._config.name}'")
        return path

    def _check_datatypes(self) -> None:
        name = self._config.name
        text = self._config.platform != _EXPORTED and not self._is_python
        inputs = [("input", tensor.name, tensor.datatype, tensor.dims) for tensor in self._config.input]
        inputs += [("state", state.input_name, state.datatype, state.dims) for state in self._sequences.states]
        inputs += [("control input", each.name, each.datatype, (1,)) for each in self._sequences.controls]
        for role, tensor_name, datatype, dims in inputs:
            check_datatype(datatype, role, tensor_name, name, text=text)
            if datatype is BYTES and len(dims) != 1:
                raise InvalidArgumentError(
                    f"Triton only supports 1 dimensional List of String as input for '{tensor_name}' for model '{name}'"
                )
        for tensor in self._config.output:
            check_datatype(tensor.datatype, "output", tensor.name, name, text=text)

    def _take_spare(self, spec: InstanceSpec) -> Program | None:
        if self._spare is None or self._spare[:2] != (spec.kind, spec.device_id):
            return None
        program = self._spare[2]
        self._spare = None
        return program

    def _program(self, spec: InstanceSpec) -> Program:
        if spec.gpu is not None:
            gpu = self._gpu(spec)
            device, load = gpu.place, partial(gpu.load, lambda: self._load(gpu.place, self._find(spec)))
        else:
            device = None if spec.kind == "KIND_MODEL" else self._torch.device("cpu")  # None: the model decides
            load = partial(self._load, device, self._find(spec))
        if not self._settings.share_weights:
            return load()
        shared = self._shared.get(str(device))
        if shared is None:
            shared = self._shared[str(device)] = load()
        else:
            _log.info("Reusing TorchScript model for instance '%s'", self._config.name)
        return shared

    def _gpu(self, spec: InstanceSpec) -> TorchDevice:
        try:
            return self._devices.get(self._torch, spec.device_id)
        except UnavailableError as error:
            raise InvalidArgumentError(
                f"unable to load model '{self._config.name}', instance '{spec.name}' is to run on a GPU: {error}"
            ) from error

    def _load(self, device: Any, path: Path) -> Program:
        torch, name, names = self._torch, self._config.name, self._names
        if self._config.platform == _EXPORTED:
            with self._reading_program:
                alone = not self._settings.share_weights
                return load_exported(torch, path, name, names, device or torch.device("cpu"), alone=alone)
        if self._is_python:
            module = self._compiled(load_python_module(torch, path, name, device), path)
            return python_program(torch, module, names, device)
        module = load_torchscript(torch, path, name, device)
        return TorchScriptProgram(torch, self._compiled(module, path), name, names, device)

    def _compiled(self, module: Any, path: Path) -> Any:
        options = self._settings.compile
        if options is None:
            return module
        if path.suffix == ".pt":
            _log.warning(
                "model '%s' is TorchScript, which torch.compile does not take: not compiled", self._config.name
            )
            return module
        try:
            return self._torch.compile(module, **options)
        except error_types(self._torch) as error:
            raise InvalidArgumentError(f"torch.compile refused model '{self._config.name}': {error}") from error


def _tensor_names(config: ModelConfig, sequences: SequenceBatching) -> TensorNames:
    outputs = [tensor.name for tensor in config.output]
    outputs += [state.output_name for state in sequences.states if config.find_output(state.output_name) is None]
    return TensorNames(fed_inputs(config, sequences), tuple(outputs), bool(sequences.states))


def _input_dtypes(config: ModelConfig, sequences: SequenceBatching) -> dict[str, np.dtype]:
    """Of all inputs that have a shape of their own."""
    inputs = [(tensor.name, tensor.datatype) for tensor in config.input]
    inputs += [(control.name, control.datatype) for control in sequences.controls]
    inputs += [(state.input_name, state.datatype) for state in sequences.states]
    return {name: datatype.storage for name, datatype in inputs}


def _fair_share(config: ModelConfig) -> int:
    """Threads for an operator of one instance, so that those of one model do not fight for the cores."""
    on_cpu = sum(group.count for group in config.instance_group if group.kind != "KIND_GPU")
    return max(1, len(os.sched_getaffinity(0)) // max(1, on_cpu))


def _set_jit(torch: Any, settings: Settings) -> None:
    """What TorchScript's executor may do: torch keeps these for the whole process."""
    if settings.jit_executor is not None:
        torch._C._jit_set_profiling_executor(settings.jit_executor)
    if settings.jit_profiling is not None:
        torch._C._jit_set_profiling_mode(settings.jit_profiling)
    if settings.tensor_fuser is not None:
        torch._C._jit_set_texpr_fuser_enabled(settings.tensor_fuser)
