"""The backend ``python``: a user's ``model.py``, each instance in a process of its own
(docs/reference/python-backend.md)."""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ..engine.backends.interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles
from ..engine.backends.parameters import parse_int
from ..engine.backends.registry import PYTHON, SCRIPT
from ..engine.backends.services import Services
from ..engine.cancellation import Cancellation
from ..engine.clock import SystemClock
from ..engine.config.adapters import vllm_adapters
from ..engine.config.json_text import write_json
from ..engine.config.model import ModelConfig
from ..engine.errors import InternalError, InvalidArgumentError, UnavailableError
from ..engine.instances.orders import first_instance
from .child.utils.event_loop import AsyncioLoop
from .instance import PythonInstance
from .launching import Environments, Interpreter, ModelThread, Process, describe_status, unhealthy
from .process_memory import private_bytes

logger = logging.getLogger("trireme.python")

EXECUTION = "EXECUTION"
IN_PROCESS = "in_process"

ASYNC_LIBRARY = "ASYNC_LIBRARY"
"""What coroutines of a model run on. In the server's process that is trio's event loop unless this says otherwise; in a
process of the model's own there need be nothing but asyncio's."""

_CHOICES = {"FORCE_CPU_ONLY_INPUT_TENSORS": ("yes", "no"), EXECUTION: ("process", IN_PROCESS)}
"""Parameters of models, each with the values that it may have, the default first."""

_KINDS = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_MODEL": "MODEL"}


class PythonBackend(Backend):
    """Runs Python models.

    Options (docs/reference/python-backend.md#files-and-imports): ``stub-timeout-seconds`` (30), how long a process may
    take to come up, and a model to end; ``auto-complete-timeout-seconds`` (300), for a model to complete its
    configuration; ``debug-port``, where its process waits for a debugger before it loads the model (0: it does not);
    ``slice-us`` (100), the time slices of models' processes (`slices`; 0: the kernel's own).

    Args:
        script: the file with the class of all models of a Python-based backend; None where each model has its own.

    Raises:
        InvalidArgumentError: an option is no number, or too small.
    """

    name = PYTHON

    def __init__(self, options: Mapping[str, str], script: Path | None = None) -> None:
        super().__init__(options)
        for name, least in _UNUSED.items():
            _option(options, name, least, least)
        self._timeout_s = _option(options, "stub-timeout-seconds", 30, 1)
        self._auto_complete_s = _option(options, "auto-complete-timeout-seconds", 300, 1)
        self._debug_port = _option(options, "debug-port", 0, 0)
        self._slice_us = _option(options, "slice-us", 100, 0)
        self._script = script
        if script is not None:
            self.runtime = SCRIPT
        self._environments = Environments()

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """See docs/reference/python-backend.md#auto-complete. InternalError if the model cannot be imported, or
        contradicts its configuration."""
        interpreter = self._check(config, files)
        settings = start_settings(config, files, self._script, InstanceSpec(config.name), auto_complete=True)
        process = Process(config.name, interpreter, self.services.confinement)
        rewritten = completed_config(config, process, settings, self._auto_complete_s, files.cancellation)
        return Completion(config.max_batch_size, rewritten=rewritten)

    def uses_gpus(self) -> bool:
        return True  # the model is told its GPU, and decides what to do with it

    def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
        interpreter = self._check(config, files)
        settings = partial(start_settings, config, files, self._script, debug_port=self._debug_port)
        model = PythonModel(config, settings, interpreter, self._timeout_s, self._slice_us, self.services)
        model.adapters = vllm_adapters(files.version_directory)
        return model

    def _check(self, config: ModelConfig, files: ModelFiles) -> Interpreter:
        path = Path(model_path(config, files, first_instance(config), self._script))
        if path.suffix != ".py":
            raise InternalError(f"model file '{path.name}' of model '{config.name}' must end in '.py'")
        if not path.is_file():
            raise InternalError(f"Python model file not found in '{path}'")
        check_parameters(config)
        account = self.services.confinement.account
        if account is not None and runs_in_process(config):
            raise InvalidArgumentError(
                f"model '{config.name}' asks to run in the server's process (parameter '{EXECUTION}'), but Python "
                f"models run as user '{account.name}' (--python-user)"
            )
        directory = None if self._script is None else self._script.parent
        return self._environments.interpreter(config, files, directory, shared=account is not None)


@dataclass(eq=False)
class PythonModel(LoadedModel):
    """A model whose file is there; whether it can be imported, its instances find out."""

    config: ModelConfig
    settings: Callable[[InstanceSpec], dict[str, Any]]
    interpreter: Interpreter
    timeout_s: float
    slice_us: int
    services: Services

    def __post_init__(self) -> None:
        self._most_batches = most_batches(self.config)
        self._processes = WeakSet[Process]()

    @property
    def reads_regions(self) -> bool:
        return not self.config.response_cache  # which looks at inputs

    def instance_class(self, spec: InstanceSpec) -> type[PythonInstance]:
        return PythonInstance

    def process_bytes(self) -> int:
        return sum(private_bytes(process.pid) for process in self._processes if process.status is None)

    def create_instance(self, spec: InstanceSpec) -> PythonInstance:
        if runs_in_process(self.config):
            wants_asyncio = self.config.parameters.get(ASYNC_LIBRARY) == "asyncio"
            make_loop = None if wants_asyncio else self.services.event_loop
            process = ModelThread(spec.name, make_loop or AsyncioLoop)
        else:
            process = Process(spec.name, self.interpreter, self.services.confinement, self.slice_us)
            self._processes.add(process)
        settings, timeout_s = self.settings(spec), self.timeout_s
        return PythonInstance(self.config, spec, process, self.services, settings, timeout_s, self._most_batches)


# -- Asking a model about its configuration, in a process that lives no longer than that


_LAST_WORD_S = 1.0
"""Between the end of what a process says and its own end."""

_END_S = 10.0
"""A process that was killed is gone within this time, or is beyond help."""


def completed_config(
    config: ModelConfig, process: Process, settings: dict[str, Any], limit_s: float, cancellation: Cancellation
) -> str:
    """What ``auto_complete_config`` makes of the configuration, as JSON. What the model prints is logged as it comes.
    InternalError if the model cannot be imported, does not like its configuration, or does not answer;
    UnavailableError if the load was cancelled, which ends the process."""
    name = config.name
    too_late = threading.Event()

    def give_up() -> None:
        too_late.set()
        process.kill()

    # Such a model may ask the server for nothing, so it gets none of its services.
    instance = PythonInstance(config, InstanceSpec(name), process, Services(), settings, _END_S)
    watchdog = threading.Timer(limit_s, give_up)
    watchdog.start()
    try:
        with cancellation.ending(process.kill):
            if _started(instance, too_late):
                return instance.completed
        if cancellation.cancelled:
            raise UnavailableError(f"auto_complete_config of model '{name}' was ended with the load")
        if too_late.is_set():
            raise InternalError(f"auto_complete_config of model '{name}' has not returned within {limit_s:g} s")
        process.wait(_LAST_WORD_S)
        how = describe_status(process.status)
        logger.error("the process that was asked about the configuration of model '%s' is gone: %s", name, how)
        raise unhealthy(name)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait(_END_S)
        instance.abandon(unhealthy(name))


def _started(instance: PythonInstance, too_late: threading.Event) -> bool:
    """Take in what the process says and prints, until it has started (True), or says nothing more."""

    def later(delay_s: float, call: Callable[[], None]) -> None:
        too_late.wait(delay_s)
        call()

    instance.now_s, instance.later = SystemClock().now_s, later
    heard, outputs = instance.sources()[instance.fileno()], instance.outputs()
    poll = select.poll()
    for descriptor in (instance.fileno(), *outputs):
        poll.register(descriptor, select.POLLIN)
    while not instance.started:
        for descriptor, _ in poll.poll():
            if descriptor not in outputs:
                if not heard():
                    return instance.started
                continue
            pause_s = outputs[descriptor](instance.now_s())
            if pause_s is None:
                poll.unregister(descriptor)
            elif pause_s:
                too_late.wait(pause_s)
    return True


# -- Parameters of models, and the settings that a model's process gets at its start (`child.protocol.START`)


def model_path(config: ModelConfig, files: ModelFiles, spec: InstanceSpec, script: Path | None) -> str:
    """The file with the model's class: the user's, or a Python-based backend's."""
    return str(script or files.model_path(config, spec, SCRIPT))


def check_parameters(config: ModelConfig) -> None:
    """InvalidArgumentError if one of the backend's own parameters has a value that it cannot have."""
    for name, values in _CHOICES.items():
        value = config.parameters.get(name, values[0])
        if value not in values:
            expected = " or ".join(f"'{value}'" for value in values)
            raise InvalidArgumentError(
                f"parameter '{name}' of model '{config.name}' must be {expected}, but is '{value}'"
            )
    library = config.parameters.get(ASYNC_LIBRARY, "asyncio")
    allowed = ("trio", "asyncio") if runs_in_process(config) else ("asyncio",)
    if library not in allowed:
        expected = " or ".join(f"'{value}'" for value in allowed)
        where = "the server's process" if runs_in_process(config) else "a process of its own"
        raise InvalidArgumentError(
            f"parameter '{ASYNC_LIBRARY}' of model '{config.name}', which runs in {where}, must be {expected}, but is "
            f"'{library}'"
        )


def runs_in_process(config: ModelConfig) -> bool:
    return config.parameters.get(EXECUTION) == IN_PROCESS


def start_settings(
    config: ModelConfig,
    files: ModelFiles,
    script: Path | None,
    spec: InstanceSpec,
    *,
    auto_complete: bool = False,
    debug_port: int = 0,
) -> dict[str, Any]:
    return {
        "model_path": model_path(config, files, spec, script),
        "search_paths": () if script is None else (str(script.parent),),
        "package": f"{spec.name}_{files.version}" if runs_in_process(config) else None,
        "decoupled": config.decoupled,
        "auto_complete": auto_complete,
        "debug_port": debug_port,
        "args": {
            "model_config": write_json(config.message).decode(),
            "model_instance_kind": _KINDS.get(spec.kind, "CPU"),
            "model_instance_name": spec.name,
            "model_instance_device_id": str(spec.device_id),
            "model_repository": str(files.model_directory),
            "model_version": str(files.version),
            "model_name": config.name,
        },
    }


# -- How many batches a model may execute at once whose ``execute`` is a coroutine


PARAMETER = "MAX_OVERLAPPING_BATCHES"


def most_batches(config: ModelConfig) -> int:
    """What the parameter says, a whole number of at least 1. Requests of a sequence come one after the other, so a
    model with sequence batching executes one batch at a time, whatever it says."""
    text = config.parameters.get(PARAMETER, "16")
    try:
        number = parse_int(text)
    except InvalidArgumentError:
        number = 0
    if number < 1:
        raise InvalidArgumentError(
            f"parameter '{PARAMETER}' of model '{config.name}' must be a whole number of at least 1, got '{text}'"
        )
    return 1 if config.has_sequence_batching else number


_MIB = 1 << 20
_UNUSED = {
    "shm-default-byte-size": _MIB,
    "shm-growth-byte-size": 1,
    "shm_message_queue_size": 1,
    "thread-pool-size": 1,
}
"""Checked, and of no effect: shared memory is made as it is needed, and calls to other models take no threads. By name,
the least value."""


def _option(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    if name not in options:
        return default
    value = parse_int(options[name], bits=64)
    if value < least:
        raise InvalidArgumentError(f"{name} must be at least {least}, got {value}")
    return value
