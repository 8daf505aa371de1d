"""What a real run of a log came to, from the results that stand in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..engine.errors import InvalidArgumentError
from ..engine.logs.request_log import LoggedRequest
from ..engine.logs.request_summary import token_facts
from .summary import PLACES, RunSummary, latencies


def summary_of_log(log: Sequence[LoggedRequest], model: str = "") -> RunSummary:
    """Of all requests, or of those to one model.

    Raises:
        InvalidArgumentError: the log has no results.
    """
    wanted = [each for each in log if (not model or each.model == model) and each.result is not None]
    if not wanted:
        raise InvalidArgumentError("the log of the real run has no results; write it with --request-log-results")
    results = [(each, each.result) for each in wanted if each.result is not None]
    well = [(each, result) for each, result in results if not result.outcome]
    ends = [each.offset_s + result.total_us / 1e6 for each, result in results]
    span_s = max(ends) - min(each.offset_s for each in wanted)
    executed = [(each.rows, result.batch) for each, result in well if result.batch]
    executions = sum(rows / batch for rows, batch in executed)
    one = len({each.model for each, result in well if result.batch}) == 1
    return RunSummary(
        requests=len(wanted),
        answered=len(well),
        **latencies([result.total_us / 1e6 for _, result in well]),
        throughput=len(well) / span_s if span_s > 0 else float("nan"),
        batch_rows=sum(rows for rows, _ in executed) / executions if executions and one else float("nan"),
        refused=dict(Counter(result.outcome for _, result in results if result.outcome)),
        **logged_text_figures([each for each, _ in well], span_s),
    )


def logged_text_figures(log: Sequence[LoggedRequest], span_s: float) -> dict[str, Any]:
    """Those of `summary.text_figures`, from the results of requests that were answered well within so many seconds."""
    facts = token_facts(log)
    if facts is None:
        return {}
    texts = [each for each in log if each.prompt_tokens]
    found = {
        "tokens": sum(each.generated_tokens for each in texts) / span_s if span_s > 0 else float("nan"),
        "preempted": facts.preempted / len(texts),
        "kv": facts.kv,
        "step_texts": facts.step_texts,
        "step_tokens": facts.step_tokens,
    }
    for name, times in (("ttft", facts.first_us), ("itl", facts.between_us)):
        if any(times):
            found |= {f"{name}_{place}": each / 1e6 for place, each in zip(PLACES, times, strict=True)}
    return found
