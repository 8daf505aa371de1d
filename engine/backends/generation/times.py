"""When the tokens of a request came: what metrics count of it, what its trace tells, and its record.

In the trace stand `PREFILL_START`, when its prompt was in a step first; `PREFILL_END` and `DECODE_START`, when it had
its first token; `DECODE_END`, and in the end what it came to (`GenerationNote`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...generation.records import GenerationRecord, StepShares, TokenGaps
from ...generation.requests import Generation
from ...job import Job
from ...metrics.statistics import GenerationStatistics
from ...tracing.record import GenerationNote


class StepBeginning(NamedTuple):
    """A step that begins.

    Attributes:
        number: of the step, counted by its instance.
        texts, tokens: that are in it.
        memory: the part of the memory of keys and values that is in use.
    """

    number: int
    now_ns: int
    texts: int
    tokens: int
    memory: float


class RequestTimes:
    """Of one request."""

    __slots__ = (
        "_begun_ns",
        "_between",
        "_ended",
        "_first_ns",
        "_last_ns",
        "_paused_ns",
        "_step",
        "_step_ended_ns",
        "_steps",
    )

    def __init__(self) -> None:
        self._begun_ns = self._first_ns = -1
        self._paused_ns = 0
        self._ended = False
        self._last_ns: dict[int, int] = {}  # of each choice, when its last token came
        self._step = self._step_ended_ns = 0  # the last one that it was in
        self._steps = StepShares()
        self._between = TokenGaps()

    def begins(self, job: Job, step: StepBeginning) -> None:
        """A text of it is in a step."""
        if self._begun_ns < 0:
            self._begun_ns = step.now_ns
            job.report_activity("PREFILL_START", step.now_ns)
        elif step.number > self._step + 1:
            self._paused_ns += max(0, step.now_ns - self._step_ended_ns)
        self._step = step.number
        self._steps.add(step.texts, step.tokens, step.memory)

    def step_over(self, now_ns: int) -> None:
        """A step that it was in is over."""
        self._step_ended_ns = now_ns

    def draws(self, job: Job, choices: Iterable[int], statistics: GenerationStatistics) -> None:
        """A token has come for each of these choices."""
        if job.batch is None:
            return
        now_ns = job.batch.now_ns()
        if not self._last_ns:
            self._first_ns = now_ns
            statistics.first_token.add((now_ns - job.received_ns) / 1e9)
            job.report_activity("PREFILL_END", now_ns)
            job.report_activity("DECODE_START", now_ns)
        for choice in choices:
            before_ns = self._last_ns.get(choice)
            if before_ns is not None:
                statistics.between_tokens.add((now_ns - before_ns) / 1e9)
                self._between.add(now_ns - before_ns)
            self._last_ns[choice] = now_ns

    def ends(self, job: Job, generations: Sequence[Generation]) -> None:
        """It is about to have its final answer.

        Args:
            generations: of its choices, as far as they have begun.
        """
        if self._ended or not generations:
            return
        self._ended = True
        first = generations[0]
        tokens = sum(len(each.new) for each in generations)
        preemptions = sum(each.preemptions for each in generations)
        job.generated = GenerationRecord(
            prompt=first.prompt,
            found=first.found,
            most_new=first.most_new,
            choices=first.choices,
            generated=tokens,
            preemptions=preemptions,
            begun_ns=self._begun_ns,
            first_ns=self._first_ns,
            paused_ns=self._paused_ns,
            steps=self._steps,
            between=self._between,
        )
        trace = job.request.trace
        if trace is not None:
            if self._last_ns:
                job.report_activity("DECODE_END", max(self._last_ns.values()))
            trace.note_generation(GenerationNote(first.prompt, first.found, tokens, preemptions))


def deadline_ns(job: Job) -> float:
    """When a request is too late: so long after it was received as it says; infinity if it does not."""
    timeout_us = job.request.timeout_us or job.request.parameters.get("timeout", 0)  # as `generate` hands it on
    return job.received_ns + timeout_us * 1_000 if type(timeout_us) is int and timeout_us > 0 else math.inf


def deadline_s(job: Job, now_s: float) -> float | None:
    """The same by another clock, which shows `now_s` now; None if there is none."""
    limit_ns = deadline_ns(job)
    return None if limit_ns == math.inf or job.batch is None else now_s + (limit_ns - job.batch.now_ns()) / 1e9
