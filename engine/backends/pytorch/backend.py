"""The backend ``pytorch``: which kind of program a model is, and how its instances are made (backends.md §3)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...errors import InvalidArgumentError, UnavailableError
from ...instance_orders import first_instance
from ...scheduling.batch import BatchLayout
from ..interface import Backend, InstanceSpec, LoadedModel, ModelFiles
from ..signature import fed_inputs
from .exported import load_exported
from .instance import PyTorchInstance
from .library import error_types, import_torch
from .program import Program, TensorNames
from .python_class import find_python_model, load_python_module, python_program
from .settings import Settings
from .tensors import check_datatype
from .torchscript import TorchScriptProgram, load_torchscript

_log = logging.getLogger(__name__)

_EXPORTED = "torch_aoti"


class PyTorchBackend(Backend):
    """Runs PyTorch models."""

    name = "pytorch"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._inter_op = InterOpThreads()
        self._reading_program = threading.Lock()  # torch.export.load is for one thread at a time

    def uses_gpus(self) -> bool:
        return import_torch().cuda.is_available()

    def load(self, config: ModelConfig, files: ModelFiles) -> PyTorchModel:
        return PyTorchModel(import_torch(), config, files, self._inter_op, self._reading_program)


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
    ) -> None:
        self._torch = torch
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
        self._threads = settings.intra_op_threads or _fair_share(config)
        self._lock = threading.Lock()
        self._reading_program = reading_program
        self._shared: dict[str, Program] = {}
        if settings.inter_op_threads:
            inter_op.ask(torch, config.name, settings.inter_op_threads)
        _set_jit(torch, settings)
        self._spare: tuple[str, int, Program] | None = None
        self._spare = (first.kind, first.device_id, self._program(first))

    def create_instance(self, spec: InstanceSpec) -> PyTorchInstance:
        with self._lock:
            program = self._take_spare(spec) or self._program(spec)
        return PyTorchInstance(
            self._torch,
            self._config,
            spec,
            program,
            self._settings,
            self._layout,
            self._sequences.states,
            self._threads,
        )

    def close(self) -> None:
        self._spare = None
        self._shared = {}

    def _find(self, spec: InstanceSpec) -> Path:
        files = self._files
        if self._is_python:
            path = files.model_path(self._config, spec, "model.py")
            return find_python_model(files.version_directory, str(path.relative_to(files.version_directory)))
        default = "model.pt2" if self._config.platform == _EXPORTED else "model.pt"
        path = files.model_path(self._config, spec, default)
        if not path.is_file():
            raise UnavailableError(f"unable to find '{path}' for model instance '{self._config.name}'")
        return path

    def _check_datatypes(self) -> None:
        name = self._config.name
        text = self._config.platform != _EXPORTED and not self._is_python
        for tensor in self._config.input:
            check_datatype(tensor.datatype, "input", tensor.name, name, text=text)
            if text and tensor.datatype.size == 0 and len(tensor.dims) != 1:
                raise InvalidArgumentError(
                    f"Triton only supports 1 dimensional List of String as input for '{tensor.name}' for model '{name}'"
                )
        for tensor in self._config.output:
            check_datatype(tensor.datatype, "output", tensor.name, name, text=text)
        for state in self._sequences.states:
            check_datatype(state.datatype, "state", state.input_name, name, text=False)

    def _take_spare(self, spec: InstanceSpec) -> Program | None:
        if self._spare is None or self._spare[:2] != (spec.kind, spec.device_id):
            return None
        program = self._spare[2]
        self._spare = None
        return program

    def _program(self, spec: InstanceSpec) -> Program:
        device = self._device(spec)
        if not self._settings.share_weights:
            return self._load(device, self._find(spec))
        key = str(device)
        return self._shared.setdefault(key, self._shared.get(key) or self._load(device, self._find(spec)))

    def _device(self, spec: InstanceSpec) -> Any:
        """None for KIND_MODEL, where the model decides."""
        torch = self._torch
        if spec.kind == "KIND_MODEL":
            return None
        if spec.kind != "KIND_GPU":
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise InvalidArgumentError(
                f"unable to load model '{self._config.name}', instance '{spec.name}' is to run on a GPU, and torch "
                f"{torch.__version__} finds none"
            )
        return torch.device("cuda", spec.device_id)

    def _load(self, device: Any, path: Path) -> Program:
        torch, name, names = self._torch, self._config.name, self._names
        if self._config.platform == _EXPORTED:
            with self._reading_program:
                return load_exported(torch, path, name, names, device or torch.device("cpu"))
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
