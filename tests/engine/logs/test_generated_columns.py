"""What request logs tell of generated text: tokens always, and with results when they came."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from counting_network import CountingBackend, asks, refused, whole, write_model

from trireme.actors import InferenceServer
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.clock import SystemClock
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.generation.records import StepShares, TokenGaps, quantile_of, read_durations
from trireme.engine.logs.generators import PoissonArrivals, RequestKind, TokenLengths, generate
from trireme.engine.logs.request_log import LoggedRequest, LoggedResult, RequestTraffic, read_traffic, write_request_log
from trireme.engine.logs.request_recorder import RequestRecorder
from trireme.engine.logs.request_summary import summarise, summary_lines, token_facts
from trireme.engine.options import ServerOptions


async def recorded(repository: Path, *, results: bool) -> RequestTraffic:
    """Two requests that begin alike, one of them with two choices, another one, and one that is wrong."""
    write_model(repository, block_tokens=4)
    recorder = RequestRecorder(SystemClock(), b"key", results=results)
    backends = BackendRegistry(lambda _name: {}, {"generation": CountingBackend})
    options = ServerOptions(model_repository=(repository,))
    async with InferenceServer(options, backends=backends, request_log=recorder) as server:
        await whole(server, asks("abcdefgh", max_tokens=4, n=2))
        await whole(server, asks("abcdefgh", max_tokens=3))
        await whole(server, asks("hgfedcba", max_tokens=3))
        await refused(server, asks("abc", colour=3))
    lines = [line.decode() for line in recorder.encode(recorder.take())]
    return read_traffic([recorder.head.decode(), *lines])


async def test_a_log_has_the_tokens_without_results(tmp_path: Path) -> None:
    traffic = await recorded(tmp_path, results=False)
    two, one, other, wrong = traffic.requests
    assert (two.prompt_tokens, two.found_tokens, two.max_tokens, two.choices, two.generated_tokens) == (8, 0, 4, 2, 8)
    assert (one.prompt_tokens, one.found_tokens, one.max_tokens, one.choices, one.generated_tokens) == (8, 4, 3, 1, 3)
    assert (other.prompt_tokens, other.found_tokens, other.max_tokens, other.generated_tokens) == (8, 0, 3, 3)
    assert wrong.prompt_tokens == 0
    assert all(each.result is None for each in traffic.requests)


async def test_results_tell_when_tokens_came(tmp_path: Path) -> None:
    traffic = await recorded(tmp_path, results=True)
    two, one, _other, wrong = (each.result for each in traffic.requests)
    assert two is not None
    assert one is not None
    assert wrong is not None
    assert (wrong.outcome, wrong.first_token_us) == ("failed", 0)
    assert 0 < one.first_token_us <= one.total_us
    assert abs(one.queue_us + one.infer_us - one.total_us) < one.total_us
    assert sum(count for _, count in read_durations(one.between_us)) == 2
    assert sum(count for _, count in read_durations(two.between_us)) == 6, "of each choice, but for its first"
    assert (one.step_pieces, one.step_share, one.preemptions) == (3, 3.0, 0)
    assert (two.step_pieces, two.step_share) == (1 + 2 * 3, 4.0), "one step of the prompt, three of two texts each"
    assert one.step_tokens == pytest.approx((4 + 1 + 1) / 3, abs=1e-3)
    facts = token_facts(traffic.requests[:2])
    assert facts is not None
    assert facts.step_texts == pytest.approx(10 / 7)
    assert facts.found == pytest.approx(4 / 16)
    assert 0 < facts.kv < 1


def test_a_summary_tells_of_tokens() -> None:
    result = LoggedResult(
        90_000.0, first_token_us=30_000.0, between_us="20000x2,40000x1", step_pieces=4, step_share=2.0
    )
    request = LoggedRequest(0.5, "m", prompt_tokens=10, found_tokens=5, max_tokens=8, generated_tokens=4, result=result)
    traffic = read_traffic(write_request_log(RequestTraffic([request])))
    assert traffic.requests == [request]
    text = "\n".join(summary_lines(summarise(traffic)))
    assert "prompts: 10.0 tokens on average, 10 in the middle, 10 at most" in text
    assert "of the prompts 50.0% were in memory already" in text
    assert "first token: p50 30.000 ms" in text
    assert "between tokens: p50 20.000 ms, p95 40.000 ms, p99 40.000 ms" in text


@pytest.mark.parametrize("text", ["5", "x3", "5x0", "-1x2", "nanx1", "1e30x1", "5x2,"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="durations must be"):
        read_durations(text)
    with pytest.raises(InvalidArgumentError, match="line 1 of the request log: between_us"):
        read_traffic([json.dumps({"offset_s": 0, "model": "m", "total_us": 1, "between_us": text})])


def test_durations_are_kept_within_a_hundredth() -> None:
    chance, kept = Random(1), TokenGaps()
    given = [chance.randint(2_000, 400_000_000) for _ in range(1_000)]
    for each in given:
        kept.add(each)
    pairs = read_durations(kept.text())
    assert sum(count for _, count in pairs) == 1_000
    for place in (0.1, 0.5, 0.99):
        exact = sorted(given)[round(place * 1_000) - 1] / 1_000
        assert quantile_of(pairs, place) == pytest.approx(exact, rel=0.02)


def test_shares_of_steps_make_up_the_steps() -> None:
    """Three texts in two steps: one of two texts, one of three."""
    records = [StepShares() for _ in range(3)]
    for each in records[:2]:
        each.add(2, 12, 0.5)
    for each in records:
        each.add(3, 3, 0.2)
    assert sum(each.share for each in records) == pytest.approx(2)
    assert sum(each.tokens for each in records) == pytest.approx(15)
    assert sum(each.memory for each in records) == pytest.approx(0.7)


def test_lengths_are_drawn_within_the_context() -> None:
    lengths = TokenLengths(100, 50, 1.0, 1.0, most_new=200, context=300, shared=30)
    kind = RequestKind("m", tokens=lengths)
    traffic = generate(PoissonArrivals(100), [kind], 20)
    prompts = sorted(each.prompt_tokens for each in traffic.requests)
    assert 80 < prompts[len(prompts) // 2] < 120
    for each in traffic.requests:
        assert each.prompt_tokens + each.max_tokens <= 300
        assert 1 <= each.generated_tokens <= each.max_tokens <= 200
        assert each.found_tokens == min(30, each.prompt_tokens - 1)
    assert traffic == read_traffic(write_request_log(traffic))


@pytest.mark.parametrize("wrong", [{"prompt": 0}, {"new": 0.5}, {"prompt_spread": -1}, {"context": 1}, {"shared": -1}])
def test_lengths_that_are_none(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        TokenLengths(**{"prompt": 10, "new": 10, **wrong})  # type: ignore[arg-type]
