"""What a person wants to know about a request log: how much, how unevenly, and of what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..generation.records import quantile_of, read_durations
from .request_log import LoggedRequest, RequestTraffic

_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class RateFacts:
    """How requests come; all of it 0 for fewer than two of them, and in a closed loop.

    Attributes:
        mean_hz: over the whole time.
        most_hz: in the busiest second.
        burstiness: variance of the number of requests in a second, by its mean: 1 where clients know nothing of each
            other, 0 at a constant rate, more in bursts.
        gap_variation: standard deviation of the time between two requests, by its mean; 1, 0 and more likewise.
    """

    mean_hz: float
    most_hz: float
    burstiness: float
    gap_variation: float


@dataclass(frozen=True, slots=True)
class ResultFacts:
    """What came of requests; times in microseconds, of those that were answered.

    Attributes:
        batch: mean rows of a batch, over requests.
        outcomes: of those that were not answered.
    """

    answered: int
    p50_us: float
    p95_us: float
    p99_us: float
    queue_us: float
    infer_us: float
    batch: float
    outcomes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """Of requests for generated text; times in microseconds, 0 if the log has no results.

    Attributes:
        prompt, generated: tokens of a request: mean, median and greatest.
        found: part of the tokens of prompts that were in memory already.
        first_us, between_us: p50, p95 and p99 of the time to the first token, and between two.
        preempted: requests that made room for others.
        step_tokens, step_texts, kv: means over steps: of tokens, of texts, and of the part of the memory in use.
    """

    prompt: tuple[float, float, int]
    generated: tuple[float, float, int]
    found: float
    first_us: tuple[float, float, float]
    between_us: tuple[float, float, float]
    preempted: int
    step_tokens: float
    step_texts: float
    kv: float


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Of the requests for a model.

    Attributes:
        rows, nbytes: mean and greatest.
        sequences: how many there are.
        steps: mean number of requests of one.
        results: None if the log has none.
        tokens: None if it generates no text.
    """

    model: str
    requests: int
    rate: RateFacts
    rows: tuple[float, int]
    nbytes: tuple[float, int]
    priorities: tuple[tuple[int, int], ...]
    timeouts: int
    sequences: int
    steps: float
    protocols: tuple[tuple[str, int], ...]
    tenants: tuple[tuple[str, int], ...]
    ensemble: bool
    results: ResultFacts | None
    tokens: TokenFacts | None = None


@dataclass(frozen=True, slots=True)
class TrafficFacts:
    """Of a whole log; the busiest models first."""

    requests: int
    seconds: float
    rate: RateFacts
    models: tuple[ModelFacts, ...]
    dropped: int
    began: str
    clients: int
    think_s: float


def summarise(traffic: RequestTraffic) -> TrafficFacts:
    """Look at a log."""
    requests, loop = traffic.requests, traffic.loop
    by_model: dict[str, list[LoggedRequest]] = {}
    for request in requests:
        by_model.setdefault(request.model, []).append(request)
    ordered = sorted(by_model.items(), key=lambda each: (-len(each[1]), each[0]))
    return TrafficFacts(
        len(requests),
        traffic.seconds,
        _rate(requests, traffic),
        tuple([_model(name, those, traffic) for name, those in ordered]),
        traffic.dropped,
        traffic.began,
        0 if loop is None else loop.clients,
        0.0 if loop is None else loop.think_s,
    )


def _rate(requests: Sequence[LoggedRequest], traffic: RequestTraffic) -> RateFacts:
    if traffic.loop is not None or len(requests) < 2:
        return RateFacts(0.0, 0.0, 0.0, 0.0)
    first_s = traffic.requests[0].offset_s
    offsets = np.array([request.offset_s for request in requests]) - first_s
    seconds = max(traffic.seconds, 1e-9)
    windows = max(1, int(np.ceil(seconds / _WINDOW_S)))
    counts = np.bincount(np.minimum((offsets / _WINDOW_S).astype(int), windows - 1), minlength=windows)
    whole = counts[:-1] if windows > 2 else counts  # the last second is not a whole one
    gaps = np.diff(offsets)
    return RateFacts(
        len(requests) / seconds,
        float(counts.max()) / min(_WINDOW_S, seconds),
        float(whole.var() / whole.mean()) if whole.sum() and len(whole) > 1 else 0.0,
        float(gaps.std() / gaps.mean()) if gaps.any() else 0.0,
    )


def _model(name: str, requests: Sequence[LoggedRequest], traffic: RequestTraffic) -> ModelFacts:
    sequences = Counter(request.sequence for request in requests if request.sequence)
    rows = [request.rows for request in requests]
    sizes = [request.nbytes for request in requests]
    return ModelFacts(
        name,
        len(requests),
        _rate(requests, traffic),
        (sum(rows) / len(rows), max(rows)),
        (sum(sizes) / len(sizes), max(sizes)),
        tuple(sorted(Counter(request.priority for request in requests if request.priority).items())),
        sum([request.timeout_us > 0 for request in requests]),
        len(sequences),
        sum(sequences.values()) / len(sequences) if sequences else 0.0,
        tuple(Counter(request.protocol for request in requests if request.protocol).most_common()),
        tuple(Counter(request.tenant for request in requests if request.tenant).most_common()),
        any(request.ensemble for request in requests),
        _results(requests),
        token_facts(requests),
    )


def token_facts(requests: Sequence[LoggedRequest]) -> TokenFacts | None:
    """Of those requests that asked for generated text; None if there are none."""
    its = [request for request in requests if request.prompt_tokens]
    if not its:
        return None
    prompts = np.array([request.prompt_tokens for request in its])
    generated = np.array([request.generated_tokens for request in its])
    results = [request.result for request in its if request.result is not None]
    first = [result.first_token_us for result in results if result.first_token_us]
    between = [pair for result in results for pair in read_durations(result.between_us)]
    shares = sum(result.step_share for result in results)
    whole = shares or 1.0
    return TokenFacts(
        (float(prompts.mean()), float(np.median(prompts)), int(prompts.max())),
        (float(generated.mean()), float(np.median(generated)), int(generated.max())),
        sum(request.found_tokens for request in its) / int(prompts.sum()),
        _three(np.percentile(first, (50, 95, 99)).tolist() if first else ()),
        _three([quantile_of(between, place) for place in (0.5, 0.95, 0.99)] if between else ()),
        sum(result.preemptions > 0 for result in results),
        sum(result.step_tokens * result.step_share for result in results) / whole,
        sum(result.step_pieces for result in results) / whole,
        sum(result.kv * result.step_share for result in results) / whole,
    )


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = values or (0.0, 0.0, 0.0)
    return float(first), float(second), float(third)


def _results(requests: Sequence[LoggedRequest]) -> ResultFacts | None:
    results = [request.result for request in requests if request.result is not None]
    if not results:
        return None
    good = [result for result in results if not result.outcome]
    p50, p95, p99 = np.percentile([each.total_us for each in good], (50, 95, 99)) if good else (0.0, 0.0, 0.0)
    executed = [each for each in good if each.batch]
    return ResultFacts(
        len(good),
        float(p50),
        float(p95),
        float(p99),
        _mean([each.queue_us for each in good]),
        _mean([each.infer_us for each in good]),
        _mean([each.batch for each in executed]),
        tuple(Counter(each.outcome for each in results if each.outcome).most_common()),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def summary_lines(facts: TrafficFacts) -> Iterator[str]:
    """The summary as text."""
    if facts.clients:
        thinking = f", who think for {facts.think_s:g} s on average" if facts.think_s else ""
        yield f"{_requests(facts.requests)} of {facts.clients} clients in a closed loop{thinking}"
    else:
        began = f", from {facts.began}" if facts.began else ""
        yield f"{_requests(facts.requests)} in {facts.seconds:.3f} s{began}"
        yield from _rate_lines(facts.rate)
    if facts.dropped:
        yield f"{facts.dropped} more are missing: there was no room to log them"
    for model in facts.models:
        yield ""
        share = model.requests / facts.requests
        yield f"{model.model}{' (ensemble)' if model.ensemble else ''}: {_requests(model.requests)}, {share:.1%}"
        if not facts.clients and len(facts.models) > 1:
            yield from (f"  {line}" for line in _rate_lines(model.rate))
        yield from (f"  {line}" for line in _model_lines(model))


def _token_lines(tokens: TokenFacts) -> Iterator[str]:
    for name, (mean, median, most) in (("prompts", tokens.prompt), ("generated", tokens.generated)):
        yield f"{name}: {mean:.1f} tokens on average, {median:.0f} in the middle, {most} at most"
    if tokens.found:
        yield f"of the prompts {tokens.found:.1%} were in memory already"
    for name, times in (("first token", tokens.first_us), ("between tokens", tokens.between_us)):
        if any(times):
            yield f"{name}: " + ", ".join(
                f"p{place} {each / 1e3:.3f} ms" for place, each in zip((50, 95, 99), times, strict=True)
            )
    if tokens.step_tokens:
        yield (
            f"steps of {tokens.step_texts:.2f} texts and {tokens.step_tokens:.1f} tokens, with {tokens.kv:.0%} of the "
            f"memory in use; {_requests(tokens.preempted)} made room"
        )


def _requests(count: int) -> str:
    return f"{count} request{'s' * (count != 1)}"


def _rate_lines(rate: RateFacts) -> Iterator[str]:
    """Nothing where there is no rate, as of a single request."""
    if rate.mean_hz:
        yield (
            f"{rate.mean_hz:.1f} a second, {rate.most_hz:.0f} in the busiest; burstiness {rate.burstiness:.2f}, "
            f"variation of gaps {rate.gap_variation:.2f}"
        )


def _model_lines(model: ModelFacts) -> Iterator[str]:
    yield f"rows: {model.rows[0]:.2f} on average, {model.rows[1]} at most"
    if model.nbytes[1]:
        yield f"bytes: {model.nbytes[0]:.0f} on average, {model.nbytes[1]} at most"
    if model.sequences:
        yield f"sequences: {model.sequences}, of {model.steps:.1f} requests on average"
    for name, counts in (("priorities", model.priorities), ("protocols", model.protocols), ("tenants", model.tenants)):
        if counts:
            yield f"{name}: {', '.join(f'{each} ({count})' for each, count in counts)}"
    if model.timeouts:
        yield f"with a timeout: {model.timeouts}"
    if model.tokens is not None:
        yield from _token_lines(model.tokens)
    results = model.results
    if results is not None:
        yield (
            f"answered: {results.answered}; p50 {results.p50_us / 1e3:.3f} ms, p95 {results.p95_us / 1e3:.3f} ms, p99 "
            f"{results.p99_us / 1e3:.3f} ms; in the queue {results.queue_us / 1e3:.3f} ms, computed for "
            f"{results.infer_us / 1e3:.3f} ms, in batches of {results.batch:.2f} rows on average"
        )
        if results.outcomes:
            yield f"not answered: {', '.join(f'{name} ({count})' for name, count in results.outcomes)}"
