"""An instance of a Python model whose process says what a test says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf import text_format
from python_models import fp32

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.services import Services
from trireme.engine.clock import SystemClock
from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.errors import InternalError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceRequest
from trireme.python_backend.child.channel import Channel, socket_pair
from trireme.python_backend.instance import PythonInstance


class ScriptedProcess:
    """In place of a process: says what the test says."""

    stdout, stderr, killable = -1, -1, True

    def __init__(self) -> None:
        ours, theirs = socket_pair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.channel = Channel(ours, trusted=False)
        self.model = Channel(theirs)
        self.ended, self.bell = os.pipe()
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        self.channel.close()
        self.model.close()
        os.close(self.ended)
        os.close(self.bell)


class Answers:
    def deliver(self, outcome: object, final: bool) -> bool:
        return final


CONFIG = """
    name: "m" backend: "python" max_batch_size: 8
    input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
    output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
"""


@contextmanager
def scripted(config: str = CONFIG) -> Iterator[tuple[ScriptedProcess, PythonInstance]]:
    """An instance that executes a request, which it knows by the key 0."""
    process = ScriptedProcess()
    parsed = model_config(text_format.Parse(config, ModelConfigMessage()))
    settings = {"args": {"model_version": "1"}}
    instance = PythonInstance(parsed, InstanceSpec("m_0"), process, Services(), settings, 1.0)  # type: ignore[arg-type]
    instance.now_s = lambda: 0.0
    instance.later = lambda _seconds, _act: None
    instance.on_finished = lambda batch: None
    instance.on_ready = lambda error: None
    request = InferenceRequest("m", inputs=[fp32([1])])
    job = Job(request, {"INPUT0": request.inputs[0]}, 1, "m", 1, Answers())
    batch = ExecutionBatch([job], "m_0", SystemClock(), stream=lambda *_: None)
    instance.begin(batch, instance.prepare(batch))
    try:
        yield process, instance
    finally:
        instance.abandon(InternalError("over"))
