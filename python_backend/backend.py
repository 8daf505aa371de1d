"""The backend ``python``: a user's ``model.py``, each instance in a process of its own
(docs/reference/python-backend.md)."""

from __future__ import annotations

import contextlib
import logging
import select
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..engine.backends.confinement import Confinement
from ..engine.backends.interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles
from ..engine.backends.registry import PYTHON, SCRIPT
from ..engine.backends.services import Services
from ..engine.cancellation import Cancellation
from ..engine.clock import SystemClock
from ..engine.config.model import ModelConfig
from ..engine.errors import InternalError, InvalidArgumentError, UnavailableError
from ..engine.instances.orders import first_instance
from .child import protocol
from .child.channel import Channel, ChannelClosedError
from .child.codec import MessageError
from .child.utils.event_loop import AsyncioLoop
from .instance import PythonInstance, unhealthy
from .launching import Environments, Interpreter, ModelThread, Process, describe_status
from .output import OutputLog, Pace, log_line
from .settings import (
    EXECUTION,
    check_parameters,
    model_path,
    most_batches,
    read_options,
    runs_in_process,
    start_settings,
    wants_asyncio,
)


class PythonBackend(Backend):
    """Runs Python models.

    Options: ``stub-timeout-seconds`` (30), how long a process may take to come up, and a model to end;
    ``auto-complete-timeout-seconds`` (300) and ``debug-port``, see `PythonOptions`. Those about the size of shared
    memory are accepted and have no effect.

    Args:
        script: the file with the class of all models of a Python-based backend; None where each model has its own.
    """

    name = PYTHON

    def __init__(self, options: Mapping[str, str], script: Path | None = None) -> None:
        super().__init__(options)
        self._settings = read_options(options)
        self._script = script
        if script is not None:
            self.runtime = SCRIPT
        self._environments = Environments()

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """See docs/reference/python-backend.md#auto-complete.

        Raises:
            InternalError: the model cannot be imported, or contradicts its configuration.
        """
        interpreter = self._check(config, files)
        settings = start_settings(config, files, InstanceSpec(config.name), self._script, auto_complete=True)
        limit_s = self._settings.auto_complete_s
        confinement = self.services.confinement
        rewritten = completed_config(config.name, interpreter, confinement, settings, limit_s, files.cancellation)
        return Completion(config.max_batch_size, rewritten=rewritten)

    def uses_gpus(self) -> bool:
        return True  # the model is told its GPU, and decides what to do with it

    def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
        interpreter = self._check(config, files)

        def settings(spec: InstanceSpec) -> dict[str, Any]:
            return start_settings(config, files, spec, self._script, debug_port=self._settings.debug_port)

        return PythonModel(config, settings, interpreter, self._settings.timeout_s, self.services)

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


class PythonModel(LoadedModel):
    """A model whose file is there; whether it can be imported, its instances find out."""

    def __init__(
        self,
        config: ModelConfig,
        settings: Callable[[InstanceSpec], dict[str, Any]],
        interpreter: Interpreter,
        timeout_s: float,
        services: Services,
    ) -> None:
        self._config = config
        self._settings = settings
        self._interpreter = interpreter
        self._timeout_s = timeout_s
        self._services = services
        self._most_batches = most_batches(config)

    def instance_class(self, spec: InstanceSpec) -> type[PythonInstance]:
        return PythonInstance

    def create_instance(self, spec: InstanceSpec) -> PythonInstance:
        if runs_in_process(self._config):
            make_loop = None if wants_asyncio(self._config) else self._services.event_loop
            process = ModelThread(spec.name, make_loop or AsyncioLoop)
        else:
            process = Process(spec.name, self._interpreter, self._services.confinement)
        settings = self._settings(spec)
        most = self._most_batches
        return PythonInstance(self._config, spec, process, self._services, settings, self._timeout_s, most)


# -- Asking a model about its configuration, in a process that lives no longer than that


logger = logging.getLogger("trireme.python")

_LAST_WORD_S = 1.0
"""Between the end of what a process says and its own end."""

_END_S = 10.0
"""A process that was killed is gone within this time, or is beyond help."""


def completed_config(
    name: str,
    interpreter: Interpreter,
    confinement: Confinement,
    settings: dict[str, Any],
    limit_s: float,
    cancellation: Cancellation,
) -> str:
    """What ``auto_complete_config`` makes of the configuration, as JSON. What the model prints is logged as it comes.

    Args:
        settings: `protocol.START`, with ``auto_complete``.
        cancellation: of the load; it ends the process.

    Raises:
        InternalError: the model cannot be imported, does not like its configuration, or does not answer.
        UnavailableError: the load was cancelled.
    """
    process = Process(name, interpreter, confinement, timeout_s=limit_s)
    pace = Pace()
    logs = {
        process.stdout: OutputLog(process.stdout, name, pace),
        process.stderr: OutputLog(process.stderr, name, pace, logging.WARNING),
    }
    too_late = threading.Event()
    watchdog = threading.Timer(limit_s, _give_up, (process, too_late))
    watchdog.start()
    try:
        with cancellation.ending(process.kill):
            with contextlib.suppress(ChannelClosedError):  # it may have said why it is gone
                process.channel.send((protocol.START, settings))
            return _answer(process, logs, too_late)
    except (ChannelClosedError, MessageError):
        if cancellation.cancelled:
            raise UnavailableError(f"auto_complete_config of model '{name}' was ended with the load") from None
        if too_late.is_set():
            raise InternalError(
                f"auto_complete_config of model '{name}' has not returned within {limit_s:g} s"
            ) from None
        process.wait(_LAST_WORD_S)
        how = describe_status(process.status)
        logger.error("the process that was asked about the configuration of model '%s' is gone: %s", name, how)
        raise unhealthy(name) from None
    finally:
        watchdog.cancel()
        process.kill()
        process.wait(_END_S)
        for log in logs.values():
            log.close()
        process.close()


def _give_up(process: Process, too_late: threading.Event) -> None:
    too_late.set()
    process.kill()


def _answer(process: Process, logs: dict[int, OutputLog], too_late: threading.Event) -> str:
    clock = SystemClock()
    lines = _LogLines(process.channel)
    poll = select.poll()
    for descriptor in (process.channel.fileno(), *logs):
        poll.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            log = logs.get(descriptor)
            if log is None:
                config = _heard(process, lines)
                if config is not None:
                    return config
                continue
            pause_s = log.read(clock.now_s())
            if pause_s is None:
                poll.unregister(descriptor)
            elif pause_s:
                too_late.wait(pause_s)


def _heard(process: Process, lines: _LogLines) -> str | None:
    """The configuration, if that is what has come."""
    message = process.channel.receive()
    if message is None:
        return None
    kind, *rest = message.head
    if kind == protocol.FAILED:
        raise InternalError(rest[0])
    if kind == protocol.LOG:
        lines.take(*rest)
    return rest[0] if kind == protocol.STARTED else None


class _LogLines:
    """Logs lines, and tells the process when it may send more.

    Not for each line: a process that logs need not read, and its socket holds few messages. When that is full, both
    ends would wait for each other.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._taken = 0

    def take(self, level: str, filename: str, line: int, text: str) -> None:
        log_line(level, filename, line, text)
        self._taken += protocol.log_cost(text)
        if self._taken >= protocol.LOG_WINDOW // 4:
            self._channel.send((protocol.LOGGED, self._taken))
            self._taken = 0
