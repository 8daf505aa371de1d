"""The lines that verbose logs have about each request (``--log-verbose 1``), in Triton's words.

The lines are written by an object between a job and its reply, so requests that are not logged pay nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import TriremeError, request_prefix
from ..job import ExecutionBatch, Job, Outcome
from ..request import InferenceRequest
from ..tensor import Tensor

logger = logging.getLogger("trireme.requests")

_START, _END = 1, 2


@dataclass(slots=True)
class RequestLines:
    """Whether the requests of a server are logged, which can change at any time."""

    wanted: bool = False


def tell_queued(job: Job) -> None:
    """A job is about to be queued: log it, and from now on each of its steps."""
    request = job.request
    flags = _START * request.sequence_start | _END * request.sequence_end
    _say(
        job,
        f"prepared: request id: {job.id}, model: {job.model_name}, requested version: {request.model_version}, actual "
        f"version: {job.model_version}, flags: 0x{flags:x}, correlation id: {request.correlation_id}, batch size: "
        f"{job.rows}, priority: {request.priority}, timeout (us): {request.timeout_us}{_tensors(request)}",
    )
    _say_state(job, "INITIALIZED", "PENDING")
    job.reply = _ToldReply(job)


def tell_executing(batch: ExecutionBatch) -> None:
    jobs = [job for job in batch.jobs if not job.is_null]
    for job in jobs:
        _say_state(job, "PENDING", "EXECUTING")
    name = jobs[0].model_name if jobs else ""
    text = "model %s, instance %s, executing %d requests"
    logger.debug(text, name, batch.instance_name, len(jobs), extra=about(name))


def tell_executed(batch: ExecutionBatch) -> None:
    count = sum(not job.is_null for job in batch.jobs)
    text = "TRITONBACKEND_ModelInstanceExecute: model instance name %s released %d requests"
    logger.debug(text, batch.instance_name, count, extra=about(batch.jobs[0].model_name))


class _ToldReply:
    """Takes the place of a job's reply, to which it passes everything on."""

    __slots__ = ("_job", "_reply")

    def __init__(self, job: Job) -> None:
        self._job: Job | None = job
        self._reply = job.reply

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """See `engine.job.ReplyTarget`."""
        job = self._job
        if job is not None and outcome is not None and not isinstance(outcome, TriremeError):
            for tensor in outcome.outputs:
                _say(job, f"add response output: output: {_described(tensor)}")
        was_last = self._reply.deliver(outcome, final)
        if job is not None and final:
            self._job = None  # the job holds this: a cycle left here would be work for the collector
            _say_state(job, "PENDING" if job.batch is None else "EXECUTING", "RELEASED")
        return was_last


def _say(job: Job, text: str) -> None:
    logger.debug("%s%s", request_prefix(job.id), text, extra=about(job.model_name, job.id))


def _say_state(job: Job, before: str, after: str) -> None:
    _say(job, f"Setting state from {before} to {after}")


def _tensors(request: InferenceRequest) -> str:
    """The inputs as they came, and the outputs that were asked for, a line each."""
    lines: Iterable[str] = (
        "original inputs:",
        *(f"input: {_described(tensor)}" for tensor in request.inputs),
        "requested outputs:",
        *request.requested_outputs,
    )
    return "".join(f"\n{line}" for line in lines)


def _described(tensor: Tensor) -> str:
    shape = ",".join(map(str, tensor.shape[:64]))
    return f"{tensor.name}, type: {tensor.datatype.name}, shape: [{shape}]"


# -- What a log record is about, where that is known; structured logs tell it in fields of their own


def about(model: str = "", request_id: str = "") -> dict[str, str]:
    """For ``extra`` of a logging call: the model, and the client's name for the request; empty for neither."""
    return {"model": model, "request_id": request_id}
