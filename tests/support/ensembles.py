"""Ensembles for tests: configurations from a few words, and a small world in which members answer when told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from google.protobuf import text_format

from trireme.engine.config import ModelConfig, model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.datatypes import FP32
from trireme.engine.ensemble import (
    CancelSteps,
    EnsembleAction,
    EnsembleCore,
    EnsemblePlan,
    EnsembleRun,
    Fail,
    Respond,
    StepCall,
    Submit,
)
from trireme.engine.errors import TriremeError
from trireme.engine.job import Job, Outcome
from trireme.engine.request import InferenceRequest, InferenceResponse, ParameterValue
from trireme.engine.tensor import Tensor

Tensors = Sequence[str]
"""Each ``NAME``, ``NAME TYPE``, or ``NAME TYPE dims``, as in ``A FP32 -1,4``; a ``?`` after the name is optional, and
what follows a ``/`` is the reshape."""


def config(name: str, inputs: Tensors, outputs: Tensors, rest: str = "", max_batch_size: int = 0) -> ModelConfig:
    """A configuration, as it is when it is complete; nothing is checked."""
    text = [f'name: "{name}" max_batch_size: {max_batch_size} {rest}']
    text += [f"input {{ {_tensor(tensor)} }}" for tensor in inputs]
    text += [f"output {{ {_tensor(tensor)} }}" for tensor in outputs]
    return model_config(text_format.Parse(" ".join(text), ModelConfigMessage()))


def member(
    name: str,
    inputs: Tensors = ("IN",),
    outputs: Tensors = ("OUT",),
    max_batch_size: int = 0,
    decoupled: bool = False,
) -> ModelConfig:
    rest = 'backend: "python"' + " model_transaction_policy { decoupled: true }" * decoupled
    return config(name, inputs, outputs, rest, max_batch_size)


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str], version: int = -1) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble(
    steps: Sequence[str],
    inputs: Tensors = ("I",),
    outputs: Tensors = ("O",),
    max_batch_size: int = 0,
    name: str = "e",
    rest: str = "",
) -> ModelConfig:
    scheduling = f'platform: "ensemble" ensemble_scheduling {{ {" ".join(steps)} {rest} }}'
    return config(name, inputs, outputs, scheduling, max_batch_size)


def _tensor(text: str) -> str:
    text, _, reshape = text.partition("/")
    name, datatype, dims = (*text.split(), "FP32", "-1")[:3] if " " in text else (text, "FP32", "-1")
    optional = name.endswith("?")
    return (
        f'name: "{name.rstrip("?")}" data_type: TYPE_{datatype} dims: [{dims}]'
        + " optional: true" * optional
        + (f" reshape {{ shape: [{reshape.strip()}] }}" if reshape else "")
    )


def tensor(name: str, *values: float, shape: tuple[int, ...] | None = None) -> Tensor:
    array = np.array(values, np.float32)
    return Tensor(name, FP32, shape or array.shape, array=array.reshape(shape or array.shape))


class Inbox:
    """The reply of a job: keeps what it is given, and notices a second final answer."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Outcome, bool]] = []

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        assert not any(final for _, final in self.outcomes), "an answer after the final one"
        self.outcomes.append((outcome, final))
        return final


def job(
    *inputs: Tensor,
    rows: int = 1,
    outputs: tuple[str, ...] = (),
    parameters: dict[str, ParameterValue] | None = None,
    **fields: object,
) -> Job:
    """A job for ensemble ``e``."""
    request = InferenceRequest("e", id="r1", requested_outputs=outputs, parameters=parameters or {}, **fields)  # type: ignore[arg-type]
    return Job(request, {each.name: each for each in inputs}, rows, "e", 1, Inbox())


class World:
    """A core, and the calls that its members are working on."""

    def __init__(self, plan: EnsemblePlan) -> None:
        self.core = EnsembleCore(plan)
        self.calls: dict[StepCall, InferenceRequest] = {}
        self.submitted: list[tuple[int, StepCall]] = []
        self.cancelled: list[StepCall] = []
        self.most_inflight: dict[int, int] = {}

    def start(self, job: Job) -> EnsembleRun:
        run = self.core.start(job)
        self.act()
        return run

    def answer(self, call: StepCall, *outputs: Tensor, final: bool = True, **parameters: ParameterValue) -> None:
        """The member answers with these outputs; with none, it has nothing (more) to say."""
        response = InferenceResponse("m", 1, "", list(outputs), parameters) if outputs or parameters else None
        self.respond(call, response, final)

    def respond(self, call: StepCall, response: InferenceResponse | None, final: bool = True) -> None:
        if final:
            del self.calls[call]
        self.core.step_answered(call, response, final)
        self.act()

    def fail(self, call: StepCall, error: TriremeError, final: bool = True) -> None:
        if final:
            del self.calls[call]
        self.core.step_answered(call, error, final)
        self.act()

    def cancel(self, run: EnsembleRun) -> None:
        self.core.cancel(run)
        self.act()

    def call(self, model: str) -> StepCall:
        """The oldest call that this model is working on."""
        return next(call for call in self.calls if call.step.model_name == model)

    @property
    def working(self) -> list[str]:
        """Models that work on calls, in the order of these."""
        return [call.step.model_name for call in self.calls]

    def act(self) -> None:
        while (action := self.core.next_action()) is not None:
            self._do(action)
        assert self.core.next_action() is None

    def _do(self, action: EnsembleAction) -> None:
        match action:
            case Submit(call, request):
                self.calls[call] = request
                self.submitted.append((call.step.index, call))
                same = sum(other.step is call.step for other in self.calls)
                self.most_inflight[call.step.index] = max(same, self.most_inflight.get(call.step.index, 0))
            case CancelSteps(calls):
                self.cancelled += calls
            case Respond(run, response, final):
                run.job.reply.deliver(response, final)
            case Fail(run, error):
                run.job.reply.deliver(error, True)


def outcomes(job: Job) -> list[tuple[Outcome, bool]]:
    """What a job was answered."""
    assert isinstance(job.reply, Inbox)
    return job.reply.outcomes


def response(job: Job) -> InferenceResponse:
    """The one response that a job was answered with, finally."""
    (outcome, final), *others = outcomes(job)
    assert isinstance(outcome, InferenceResponse), f"answered with {outcome!r}"
    assert final
    assert not others
    return outcome


def error(job: Job) -> TriremeError:
    """The error that a job was answered with, finally."""
    outcome, final = outcomes(job)[-1]
    assert isinstance(outcome, TriremeError), f"answered with {outcome!r}"
    assert final
    return outcome


def values(response: InferenceResponse) -> dict[str, list[float]]:
    """The elements of each output."""
    return {each.name: each.array.ravel().tolist() for each in response.outputs}
