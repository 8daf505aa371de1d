"""When the tokens of a request came: what metrics count of it, and what its trace tells.

In the trace stand `PREFILL_START`, when its prompt was in a step first; `PREFILL_END` and `DECODE_START`, when it had
its first token; `DECODE_END`, and in the end what it came to (`GenerationNote`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...generation.requests import Generation
from ...job import Job
from ...metrics.statistics import GenerationStatistics
from ...tracing.record import GenerationNote


class RequestTimes:
    """Of one request."""

    __slots__ = ("_begun", "_ended", "_last_ns")

    def __init__(self) -> None:
        self._begun = False
        self._ended = False
        self._last_ns: dict[int, int] = {}  # of each choice, when its last token came

    def begins(self, job: Job) -> None:
        """It is in a step; only the first time counts."""
        if not self._begun and job.batch is not None:
            self._begun = True
            job.report_activity("PREFILL_START", job.batch.now_ns())

    def draws(self, job: Job, choices: Iterable[int], statistics: GenerationStatistics) -> None:
        """A token has come for each of these choices."""
        if job.batch is None:
            return
        now_ns = job.batch.now_ns()
        if not self._last_ns:
            statistics.first_token.add((now_ns - job.received_ns) / 1e9)
            job.report_activity("PREFILL_END", now_ns)
            job.report_activity("DECODE_START", now_ns)
        for choice in choices:
            before_ns = self._last_ns.get(choice)
            if before_ns is not None:
                statistics.between_tokens.add((now_ns - before_ns) / 1e9)
            self._last_ns[choice] = now_ns

    def ends(self, job: Job, generations: Sequence[Generation]) -> None:
        """It is about to have its final answer.

        Args:
            generations: of its choices, as far as they have begun.
        """
        trace = job.request.trace
        if trace is None or self._ended or not generations:
            return
        self._ended = True
        if self._last_ns:
            job.report_activity("DECODE_END", max(self._last_ns.values()))
        first = generations[0]
        tokens = sum(len(each.new) for each in generations)
        preemptions = sum(each.preemptions for each in generations)
        trace.note_generation(GenerationNote(first.prompt, first.found, tokens, preemptions))
