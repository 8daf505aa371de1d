"""What a planned run writes down while it runs: a few numbers a request and an execution."""

from __future__ import annotations

import math
from array import array

from ...actors import Reply
from ...engine.generation.iterations import Step
from ...engine.generation.records import GenerationRecord
from ...engine.job import ExecutionBatch, Job, SealReason
from ...engine.logs.request_log import LoggedRequest

NONE = math.nan
NO_BATCH = -1

REASONS = tuple(SealReason)
_REASON_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}


class Notes:
    """Columns with an entry for each request, in the order in which they came, and for each execution.

    Attributes:
        numbers: of requests that are not answered, by their replies.
        texts: of requests for generated text that are over, by number: what came of them, and when they were received.
    """

    def __init__(self) -> None:
        self.logged: list[LoggedRequest] = []
        self.admitted = array("d")
        self.answered = array("d")
        self.batch = array("l")
        self.refusal = array("b")
        self.numbers: dict[Reply, int] = {}
        self.batch_model = array("h")
        self.batch_instance = array("h")
        self.batch_requests = array("l")
        self.batch_rows = array("l")
        self.batch_reason = array("b")
        self.batch_begun = array("d")
        self.batch_started = array("d")
        self.batch_ended = array("d")
        self.batch_heard = array("d")
        self.texts: dict[int, tuple[GenerationRecord, float]] = {}
        self.step_model = array("h")
        self.step_instance = array("h")
        self.step_begun = array("d")
        self.step_ended = array("d")
        self.step_texts = array("l")
        self.step_tokens = array("l")
        self.step_memory = array("d")

    def text_over(self, job: Job, record: GenerationRecord) -> None:
        """What came of a request for generated text, which is over."""
        number = self.numbers.get(job.reply)  # type: ignore[call-overload]  # that of a step is another's
        if number is not None:
            self.texts[number] = record, job.received_ns / 1e9

    def step_begun_at(self, model: int, instance: int, step: Step, memory: float, now: float) -> int:
        """An instance computes a step, with such a part of its memory in use; the number of the step."""
        self.step_model.append(model)
        self.step_instance.append(instance)
        self.step_begun.append(now)
        self.step_ended.append(NONE)
        self.step_texts.append(len(step.pieces))
        self.step_tokens.append(step.tokens)
        self.step_memory.append(memory)
        return len(self.step_begun) - 1

    def request_came(self, logged: LoggedRequest) -> int:
        """A request has come; its number."""
        number = len(self.logged)
        self.logged.append(logged)
        self.admitted.append(NONE)
        self.answered.append(NONE)
        self.batch.append(NO_BATCH)
        self.refusal.append(0)
        return number

    def batch_begun_at(self, batch: ExecutionBatch, model: int, instance: int, now: float) -> int:
        """An instance executes a batch; the number of the execution."""
        number = len(self.batch_begun)
        numbers, batches = self.numbers, self.batch
        requests = 0
        for job in batch.jobs:
            if not job.is_null:
                requests += 1
                request = numbers.get(job.reply)  # type: ignore[call-overload]  # that of a step is another's
                if request is not None:
                    batches[request] = number
        self.batch_model.append(model)
        self.batch_instance.append(instance)
        self.batch_requests.append(requests)
        self.batch_rows.append(batch.rows)
        self.batch_reason.append(_REASON_NUMBERS[batch.sealed])
        self.batch_begun.append(now)
        self.batch_started.append(NONE)
        self.batch_ended.append(NONE)
        self.batch_heard.append(NONE)
        return number
