"""Models that do what each request tells them to, answer by answer.

The request parameter ``script`` holds steps, separated by blanks:

    say       answer: OUT is IN plus the number of answers before
    say!      the same, as the final answer
    end       the final answer, without a response
    fail:X    the final answer is the error X
    err:X     answer with the error X, and go on
    note:X    answer with the response parameter ``note``, and go on
    mirror    the final answer, without an output: the request's parameters, but for the script, are the response's
    wait:G    wait until the test opens the gate G
    until-cancelled
              wait until the client has given up
    flood:N   say N times
    activity:X
              report the activity X to the request's trace
    report:X  report the next response (`Job.report_response`): it took 30 ns to compute and 70 ns to copy, and was X

Without a script it is ``say!``.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError
from trireme.engine.instances.answer_window import AnswerWindow
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.metrics.statistics import ResponseOutcome, ResponseTimes
from trireme.engine.tensor import Tensor

PATIENCE_S = 60.0

_CONFIG = """
backend: "scripted"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" }
"""

_MODELS = {
    "plain": "instance_group { kind: KIND_CPU count: 4 }",
    "queued": "max_batch_size: 1 dynamic_batching { } instance_group { kind: KIND_CPU count: 1 }",
    "many": "model_transaction_policy { decoupled: true } instance_group { kind: KIND_CPU count: 4 }",
}
"""Answers once, four requests at a time; answers once, one at a time, with a queue; answers often, four at a time."""


@dataclass
class Script:
    """The test's hands on the models.

    Attributes:
        gates: by name; closed until the test sets them.
        begun: IDs of the requests whose execution has begun, in order.
        said: answers given, by request ID (the last of that ID).
        cancelled: IDs of the requests that a model saw to be cancelled.
        loaded: models by name.
        windows: what holds back the models that answer often, by request ID (the last of that ID).
    """

    gates: dict[str, threading.Event] = field(default_factory=lambda: defaultdict(threading.Event))
    begun: list[str] = field(default_factory=list)
    said: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    cancelled: list[str] = field(default_factory=list)
    loaded: dict[str, LoadedModel] = field(default_factory=dict)
    windows: dict[str, AnswerWindow] = field(default_factory=dict)
    closing: bool = False

    def open(self, *gates: str) -> None:
        for gate in gates:
            self.gates[gate].set()

    def close(self) -> None:
        """Let everything go that still waits for something."""
        self.closing = True
        for gate in list(self.gates.values()):
            gate.set()

    def run(self, job: Job) -> None:
        """Do what a request tells."""
        if job.window is not None:
            self.windows[job.id] = job.window
        self.begun.append(job.id)
        said = 0  # of this job: requests that run at the same time may share an ID
        self.said[job.id] = 0
        for step in str(job.request.parameters.get("script", "say!")).split():
            verb, _, what = step.partition(":")
            match verb:
                case "say" | "say!":
                    said = self._say(job, said, final=verb == "say!")
                case "end":
                    job.respond(None, final=True)
                case "fail":
                    job.fail(InternalError(what))
                case "err":
                    job.fail(InternalError(what), final=False)
                case "note":
                    job.respond(job.response([], {"note": what}), final=False)
                case "mirror":
                    job.respond(job.response([], {k: v for k, v in job.request.parameters.items() if k != "script"}))
                case "wait":
                    assert self.gates[what].wait(PATIENCE_S) or self.closing
                case "until-cancelled":
                    never = threading.Event()
                    while not job.cancelled and not self.closing:
                        never.wait(0.002)
                    if job.cancelled:
                        self.cancelled.append(job.id)
                case "report":
                    job.report_response(ResponseTimes(said, ResponseOutcome(what), 1_000, 1_030, 1_100))
                case "activity":
                    job.report_activity(what, time.monotonic_ns())
                case "flood":
                    for _ in range(int(what)):
                        if job.cancelled:
                            self.cancelled.append(job.id)
                            break
                        said = self._say(job, said, final=False)
                case _:
                    raise AssertionError(f"no step is called {step}")

    def _say(self, job: Job, said: int, final: bool) -> int:
        tensor = job.inputs["IN"]
        values = tensor.array + np.float32(said)
        self.said[job.id] = said + 1
        job.respond(job.response([Tensor("OUT", FP32, tensor.shape, array=values)]), final)
        return said + 1

    def backends(self) -> BackendRegistry:
        """A registry that knows only the scripted backend."""
        script = self

        class Instance(ModelInstance):
            def execute(self, batch: ExecutionBatch) -> None:
                for job in batch.jobs:
                    script.run(job)

        class Loaded(LoadedModel):
            def create_instance(self, spec: InstanceSpec) -> ModelInstance:
                return Instance()

        class Scripted(Backend):
            name = "scripted"

            def __init__(self, options: Mapping[str, str]) -> None:
                super().__init__(options)

            def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
                script.loaded[config.name] = Loaded()
                return script.loaded[config.name]

        return BackendRegistry(lambda _name: {}, {"scripted": Scripted})


def write_scripted_models(repository: Path) -> None:
    """``plain``, ``queued`` and ``many``: FP32[n] in, FP32[n] out."""
    for name, extra in _MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(_CONFIG + extra)
        (repository / name / "labels.txt").write_text("zero\none\n")
