"""The backend ``pytorch``: which kind of program a model is, how its instances are made, and how they execute batches
(docs/reference/backends.md#pytorch)."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...datatypes import BYTES
from ...errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError
from ...gpu.device import DeviceStream
from ...gpu.graphs import CapturedGraph, GraphChoice, GraphShape, capture_each, graph_shapes, input_shapes
from ...gpu.pipeline import Compute, GpuPipeline
from ...gpu.torch_device import TorchDevice, TorchStream, import_torch
from ...host_policies import usable_cores
from ...instances.orders import first_instance, input_gpu
from ..framework import (
    DeviceBatch,
    FrameworkBackend,
    FrameworkModel,
    ModelTensors,
    PipelineInstance,
    ThreadInstance,
    find_file,
    stream_priority,
)
from ..interface import InstanceSpec, ModelFiles, ModelInstance
from ..torch_threads import fair_share
from .formats import (
    PythonProgram,
    TorchScriptProgram,
    find_python_model,
    load_exported,
    load_python_module,
    load_torchscript,
)
from .program import (
    TORCH_NAMES,
    OutputCheck,
    Program,
    ProgramRunner,
    PyTorchSettings,
    error_types,
    execute_error,
    to_torch,
)

_log = logging.getLogger(__name__)

_EXPORTED = "torch_aoti"


class PyTorchBackend(FrameworkBackend):
    name = "pytorch"
    settling_runs = 3  # TorchScript watches two, and compiles for the third

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.reading_program = threading.Lock()  # torch.export.load is for one thread at a time
        self._inter_op_lock = threading.Lock()
        self._inter_op_threads = 0

    def import_library(self) -> Any:
        return import_torch()

    def uses_gpus(self) -> bool:
        return self.library.cuda.is_available()

    def load(self, config: ModelConfig, files: ModelFiles) -> PyTorchModel:
        return PyTorchModel(self, config, files)

    def ask_inter_op_threads(self, model_name: str, count: int) -> None:
        """Set how many threads torch runs independent operators on, unless that is set: there is one number a process,
        and the first to set it wins."""
        with self._inter_op_lock:
            if self._inter_op_threads == count:
                return
            try:
                self.library.set_num_interop_threads(count)
                self._inter_op_threads = count
            except RuntimeError:
                _log.warning(
                    "model '%s' asks for %d inter-op threads, but torch runs with %d already, and keeps that number "
                    "until the server is started again",
                    model_name,
                    count,
                    self.library.get_num_interop_threads(),
                )


class PyTorchModel(FrameworkModel[Program]):
    """A model whose configuration fits its file, as far as that can be told without running it."""

    def __init__(self, backend: PyTorchBackend, config: ModelConfig, files: ModelFiles) -> None:
        self._settings = settings = PyTorchSettings.of(config)
        super().__init__(config, files, text=True, share=math.inf if settings.share_weights else 1)
        self._torch = torch = backend.library
        self._devices = backend.services.torch_gpus
        self._is_python = bool(config.runtime) and config.runtime.endswith(".py")
        self._find(first_instance(config))
        self._check_datatypes()
        batching = self.tensors.batching
        self._checks = [OutputCheck(torch, *output, batching) for output in self.tensors.outputs.items()]
        self._graphs = graph_shapes(config, input_shapes(config))
        self._threads = settings.intra_op_threads or fair_share(config, usable_cores())
        self._reading_program = backend.reading_program
        self._loading = threading.Lock()
        if settings.inter_op_threads:
            backend.ask_inter_op_threads(config.name, settings.inter_op_threads)
        _set_jit(torch, settings)
        for line in settings.lines(config):
            _log.info("%s", line)
        self.first_program()

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        """Strings are no tensors: a model that has some goes through Python between copy and computation, and so do its
        batches, one after the other. So does a model that has put itself on devices of its choice (KIND_MODEL)."""
        on_gpu = spec.kind == "KIND_GPU" and not self.tensors.has_strings
        return PyTorchStreamInstance if on_gpu else PyTorchInstance

    @property
    def input_gpu(self) -> int | None:
        return None if self.tensors.has_strings else input_gpu(self.config)

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        program = self.program(spec)
        place = program.device
        gpu = self._devices.get(place.index or 0) if place.type == "cuda" else None
        runner = ProgramRunner(self._torch, program, self._settings, gpu)
        if gpu is None or self.instance_class(spec) is PyTorchInstance:
            return PyTorchInstance(self._torch, spec.name, self.tensors, runner, self._checks, self._threads)
        self._torch.set_num_threads(self._threads)
        priority = stream_priority(self.config)
        instance = PyTorchStreamInstance(spec.name, self.tensors, gpu, runner, self._checks, priority)
        if self._graphs:
            instance.capture(self._graphs)
        return instance

    def _find(self, spec: InstanceSpec) -> Path:
        files = self.files
        if self._is_python:
            path = files.model_path(self.config, spec, "model.py")
            return find_python_model(files.version_directory, os.path.relpath(path, files.version_directory))
        return find_file(self.config, files, spec, "model.pt2" if self.config.platform == _EXPORTED else "model.pt")

    def _check_datatypes(self) -> None:
        name, sequences = self.config.name, self.tensors.sequences
        text = self.config.platform != _EXPORTED and not self._is_python
        tensors = [("input", tensor.name, tensor.datatype, tensor.dims) for tensor in self.config.input]
        tensors += [("state", state.input_name, state.datatype, state.dims) for state in sequences.states]
        tensors += [("control input", each.name, each.datatype, (1,)) for each in sequences.controls]
        tensors += [("output", tensor.name, tensor.datatype, (1,)) for tensor in self.config.output]
        for role, tensor_name, datatype, dims in tensors:
            if datatype not in TORCH_NAMES and not (text and datatype is BYTES):
                raise InvalidArgumentError(
                    f"unsupported datatype {datatype.config_name} for {role} '{tensor_name}' for model '{name}'"
                )
            if datatype is BYTES and len(dims) != 1:
                raise InvalidArgumentError(
                    f"Triton only supports 1 dimensional List of String as input for '{tensor_name}' for model '{name}'"
                )

    def make(self, spec: InstanceSpec) -> Program:
        with self._loading:
            if spec.gpu is not None:
                gpu = self._gpu(spec)
                return gpu.load(partial(self._load, gpu.place, self._find(spec)))
            device = None if spec.kind == "KIND_MODEL" else self._torch.device("cpu")  # None: the model decides
            return self._load(device, self._find(spec))

    def reused(self) -> None:
        _log.info("Reusing TorchScript model for instance '%s'", self.config.name)

    def _gpu(self, spec: InstanceSpec) -> TorchDevice:
        try:
            return self._devices.get(spec.device_id)
        except UnavailableError as error:
            raise InvalidArgumentError(
                f"unable to load model '{self.config.name}', instance '{spec.name}' is to run on a GPU: {error}"
            ) from error

    def _load(self, device: Any, path: Path) -> Program:
        torch, name, names = self._torch, self.config.name, self.tensors
        if self.config.platform == _EXPORTED:
            with self._reading_program:
                alone = not self._settings.share_weights
                return load_exported(torch, path, name, names, device or torch.device("cpu"), alone=alone)
        if self._is_python:
            module = self._compiled(load_python_module(torch, path, name, device), path)
            return PythonProgram(torch, module, names, device)
        module = load_torchscript(torch, path, name, device)
        return TorchScriptProgram(torch, self._compiled(module, path), name, names, device)

    def _compiled(self, module: Any, path: Path) -> Any:
        options = self._settings.compile
        if options is None:
            return module
        if path.suffix == ".pt":
            _log.warning("model '%s' is TorchScript, which torch.compile does not take: not compiled", self.config.name)
            return module
        try:
            return self._torch.compile(module, **options)
        except error_types(self._torch) as error:
            raise InvalidArgumentError(f"torch.compile refused model '{self.config.name}': {error}") from error


def _set_jit(torch: Any, settings: PyTorchSettings) -> None:
    """What TorchScript's executor may do: torch keeps these for the whole process."""
    if settings.jit_executor is not None:
        torch._C._jit_set_profiling_executor(settings.jit_executor)
    if settings.jit_profiling is not None:
        torch._C._jit_set_profiling_mode(settings.jit_profiling)
    if settings.tensor_fuser is not None:
        torch._C._jit_set_texpr_fuser_enabled(settings.tensor_fuser)


# -- Instances: one that executes a batch on its thread, and one on a GPU that enqueues it, by CUDA graphs if wanted


class PyTorchInstance(ThreadInstance):
    """An instance on the CPU, or one that the device may be waited for.

    Args:
        checks: for each value that the model gives.
        threads: that one operator of this instance may use. torch keeps the number for each thread that calls it, so
            instances do not take it from each other.
    """

    def __init__(
        self,
        torch: Any,
        name: str,
        tensors: ModelTensors,
        runner: ProgramRunner,
        checks: Sequence[OutputCheck],
        threads: int,
    ) -> None:
        super().__init__(name, tensors, runner.run, error_types(torch))
        self._torch = torch
        self._runner = runner
        self._checks = checks
        self._converts = self._fetches = True
        torch.set_num_threads(threads)

    def _convert(self, inputs: dict[str, Any], rows: int, jobs: int) -> dict[str, Any]:
        device = self._runner.program.device
        own = jobs > 1  # joined from several, and not what a job has brought
        return {name: to_torch(self._torch, array, device, own=own) for name, array in inputs.items()}

    def _fetch(self, outputs: Sequence[Any]) -> list[np.ndarray]:
        try:
            arrays = [check.array(value) for check, value in zip(self._checks, outputs, strict=True)]
        except self._errors as error:  # what a GPU did wrong may show only when its results are fetched
            raise execute_error(error) from error
        self._runner.clean()
        return arrays

    def _failure(self, error: Exception) -> InternalError:
        return execute_error(error)

    def close(self) -> None:
        super().close()
        self._runner.close()


# A program as CUDA graphs: captured once for each shape, and then launched as a whole (see `gpu.graphs`).
#
# Rules:
#  1. A smaller batch is padded with zeros, never with what another one has left; what comes out of the padding is cut
#     off. Only the batch size is padded: what a larger shape would do to the outputs, PyTorch does not tell.
#  2. The program is run a few times before it is captured, because TorchScript and the libraries beneath settle on
#     their ways then.


_WARM_UP_RUNS = 3


class PyTorchStreamInstance(PipelineInstance):
    """An instance on a GPU of a model without strings: it enqueues copies and computation on streams of its own."""

    def __init__(
        self,
        name: str,
        tensors: ModelTensors,
        device: TorchDevice,
        runner: ProgramRunner,
        checks: Sequence[OutputCheck],
        priority: int = 0,
    ) -> None:
        super().__init__(name, tensors, GpuPipeline(device, priority))
        self._device = device
        self._runner = runner
        self._checks = checks
        self._captured: GraphChoice[CapturedGraph] | None = None
        device.loaded(self._pipeline.compute)

    def capture(self, shapes: Sequence[GraphShape]) -> None:
        """Capture CUDA graphs, which then serve the batches that they fit. See the rules above.

        Raises:
            SickDeviceError: see `TorchDevice.errors`.
        """
        self._captured = self._device.load(partial(capture_each, shapes, self._capture, self._refused))

    def close(self) -> None:
        self._captured = None
        del self._pipeline
        self._runner.close()

    def _prepare(self, run: DeviceBatch, inputs: dict[str, Any]) -> Compute:
        run.outputs = tuple(self._tensors.outputs)
        return partial(self._compute, run)

    def _compute(self, run: DeviceBatch, stream: DeviceStream, arrays: Sequence[Any]) -> Sequence[Any]:
        """See `pipeline.Compute`."""
        assert isinstance(stream, TorchStream)
        inputs = dict(zip(run.names, arrays, strict=True))
        captured = None if self._captured is None else self._captured.fitting(run.rows, inputs)
        with self._device.errors(), stream.active():
            if captured is None:
                results = list(self._enqueue(inputs).values())
                self._runner.clean()
                return results
            for name, given in inputs.items():
                _fill(captured.inputs[name], given)
            captured.graph.launch(stream)
            return [_cut(output, run.rows, captured.rows) for output in captured.outputs.values()]

    def _enqueue(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Enqueue a run on the current stream.

        Returns:
            The results by name, held to the configuration, contiguous and on the program's device.
        """
        device, values = self._runner.program.device, self._runner.run(inputs)
        outputs = zip(self._tensors.outputs, self._checks, values, strict=True)
        return {name: check.on_device(value, device) for name, check, value in outputs}

    def _capture(self, shape: GraphShape) -> CapturedGraph:
        outputs: dict[str, Any] = {}
        stream = self._pipeline.compute
        assert isinstance(stream, TorchStream)
        with self._device.errors(), stream.active():
            inputs = {
                name: self._device.empty(shape.shape(name), self._tensors.inputs[name].storage).zero_()
                for name in shape.shapes
            }
            for _ in range(_WARM_UP_RUNS):
                self._enqueue(inputs)
        graph = self._device.capture(stream, lambda: outputs.update(self._enqueue(inputs)))
        # Rule 1: in all other dimensions only the exact shapes fit.
        return CapturedGraph(shape.rows, shape.shapes, shape.lower_rows, shape.shapes, graph, inputs, outputs)

    def _refused(self, shape: GraphShape, error: TriremeError) -> None:
        _log.warning("instance '%s': no CUDA graph for batch size %d: %s", self._name, shape.rows, error)


def _fill(target: Any, given: Any) -> None:
    rows = given.shape[0] if given.dim() else 0
    if given.shape == target.shape:
        target.copy_(given, non_blocking=True)
    else:
        target.narrow(0, 0, rows).copy_(given, non_blocking=True)
        target.narrow(0, rows, target.shape[0] - rows).zero_()


def _cut(output: Any, rows: int, captured_rows: int) -> Any:
    if captured_rows and output.dim() and output.shape[0] == captured_rows:
        output = output.narrow(0, 0, rows)
    return output.clone()
