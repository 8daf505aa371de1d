"""How tokens are drawn (the steps of `engine.generation.sampling`)."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.generation.sampling import Sampler, Sampling

LOGITS = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32))


def drawn(count: int = 400, prompt: tuple[int, ...] = (), **asked: Any) -> Counter[int]:
    """What is drawn with so many seeds, each from the same logits."""
    tokens = [Sampler(Sampling(seed=seed, **asked), prompt, 5).draw(LOGITS).token for seed in range(count)]
    return Counter(tokens)


def test_tokens_come_by_their_probability() -> None:
    found = drawn(4_000)
    assert found.keys() == {0, 1, 2, 3, 4}
    assert [found[token] / 4_000 for token in range(5)] == pytest.approx(np.exp(LOGITS), abs=0.03)


def test_temperature_0_takes_the_most_probable() -> None:
    assert drawn(20, temperature=0) == {0: 20}
    equal = np.array([1.0, 3.0, 3.0], np.float32)
    assert Sampler(Sampling(temperature=0), (), 3).draw(equal).token == 1


def test_a_temperature_flattens_or_sharpens() -> None:
    assert drawn(temperature=0.25)[0] > 340
    assert drawn(temperature=2.0)[0] < 160


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.75}, {0, 1}),
        ({"min_p": 0.45}, {0, 1}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.9, "min_p": 0.4}, {0, 1}),
    ],
)
def test_the_improbable_is_out(asked: dict[str, Any], left: set[int]) -> None:
    assert drawn(**asked).keys() == left


def test_what_was_said_is_less_probable() -> None:
    assert drawn(50, temperature=0, bias={4: 100.0}) == {4: 50}
    # Logarithms of probabilities are negative, and so multiplied.
    assert drawn(10, prompt=(0,), temperature=0, repetition=3.0) == {1: 10}
    for asked in (Sampling(0, presence=1.0), Sampling(0, frequency=1.0), Sampling(0, repetition=3.0)):
        sampler = Sampler(asked, (), 5)
        assert [sampler.draw(LOGITS).token for _ in range(2)] == [0, 1], asked


def test_frequency_counts_and_presence_does_not() -> None:
    logits = np.array([5.0, 2.5, 0.0], np.float32)
    often = Sampler(Sampling(temperature=0, frequency=1.0), (), 3)
    once = Sampler(Sampling(temperature=0, presence=2.0), (), 3)
    assert [often.draw(logits).token for _ in range(5)] == [0, 0, 0, 1, 0]
    assert [once.draw(logits).token for _ in range(5)] == [0, 0, 0, 0, 0]


def test_a_prompt_is_repeated_and_not_frequent() -> None:
    assert drawn(10, prompt=(0, 0), temperature=0, frequency=2.0, presence=2.0) == {0: 10}


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30), st.integers(0, 2**70), st.data())
def test_a_seed_draws_the_same_whatever_was_computed_before(
    logits: list[float], seed: int, data: st.DataObject
) -> None:
    asked = Sampling(temperature=data.draw(st.floats(0.1, 2)), top_p=data.draw(st.floats(0.1, 1)), seed=seed)
    rows = np.array(logits, np.float32)
    first, second = Sampler(asked, (), len(rows)), Sampler(asked, (), len(rows))
    assert [first.draw(rows).token for _ in range(5)] == [second.draw(rows).token for _ in range(5)]


def test_choices_and_places_draw_by_themselves() -> None:
    flat = np.zeros(1_000, np.float32)
    texts = [[Sampler(Sampling(seed=5), (), 1_000, choice).draw(flat).token for choice in range(8)]]
    sampler = Sampler(Sampling(seed=5), (), 1_000)
    texts.append([sampler.draw(flat).token for _ in range(8)])
    assert all(len(set(text)) > 5 for text in texts)


def test_what_is_not_allowed_is_not_drawn() -> None:
    allowed = np.array([False, False, True, True, False])
    tokens = {Sampler(Sampling(seed=seed), (), 5).draw(LOGITS, allowed).token for seed in range(100)}
    assert tokens == {2, 3}
    with pytest.raises(InternalError, match="no token is possible any more"):
        Sampler(Sampling(), (), 5).draw(LOGITS, np.zeros(5, bool))


@pytest.mark.parametrize("flatness", [0.001, 4.0])
@pytest.mark.parametrize("asked", [{"top_p": 0.7}, {"top_k": 40}, {"top_k": 40, "top_p": 0.7, "min_p": 0.01}])
def test_of_many_tokens_those_are_left_that_sorting_all_would_leave(flatness: float, asked: dict[str, Any]) -> None:
    logits = np.random.default_rng(1).normal(size=4_000).astype(np.float32).round(1) * np.float32(flatness)
    weights = np.exp(logits.astype(np.float64))
    order = np.argsort(-weights, kind="stable")[: asked.get("top_k", len(weights))]
    sums = weights[order].cumsum()
    count = np.searchsorted(sums, asked.get("top_p", 1.0) * sums[-1]) + 1
    left = {int(each) for each in order[:count] if weights[each] >= asked.get("min_p", 0.0) * weights.max()}
    found = {Sampler(Sampling(seed=seed, **asked), (), 4_000).draw(logits).token for seed in range(200)}
    assert found <= left
    assert len(found) > min(len(left) / 4, 15)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(temperature: float, value: float) -> None:
    broken = LOGITS.copy()
    broken[3] = value
    with pytest.raises(InternalError, match="not numbers"):
        Sampler(Sampling(temperature=temperature), (), 5).draw(broken)


def test_what_the_model_rules_out_is_not_drawn() -> None:
    masked = LOGITS.copy()
    masked[1:] = -np.inf
    assert Sampler(Sampling(), (), 5).draw(masked).token == 0


def test_log_probabilities_are_the_models() -> None:
    told = Sampler(Sampling(temperature=0, logprobs=2, bias={2: 50.0}), (), 5).draw(LOGITS + 3)
    assert (told.token, told.logprob) == (2, pytest.approx(math.log(0.125), abs=1e-6))
    assert [token for token, _ in told.most_probable] == [0, 1]
    assert told.most_probable[0][1] == pytest.approx(math.log(0.5), abs=1e-6)
    assert Sampler(Sampling(temperature=0), (), 5).draw(LOGITS).most_probable == ()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; expected 0 to 2"),
        ({"temperature": math.nan}, "temperature is nan; expected 0 to 2"),
        ({"top_k": -1}, "top_k is -1; expected 0 or more"),
        ({"top_p": 0.0}, "top_p is 0.0; expected more than 0 up to 1"),
        ({"min_p": 1.5}, "min_p is 1.5; expected 0 to 1"),
        ({"repetition": 0.0}, "repetition_penalty is 0.0; expected more than 0"),
        ({"presence": 3.0}, "presence_penalty is 3.0; expected -2 to 2"),
        ({"frequency": -3.0}, "frequency_penalty is -3.0; expected -2 to 2"),
        ({"bias": {7: 101.0}}, "the logit bias of token 7 is 101.0; expected -100 to 100"),
        ({"logprobs": 21}, "logprobs is 21; expected 0 to 20"),
    ],
)
def test_what_is_out_of_its_range_is_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Sampling(**asked)
    assert str(caught.value) == why


def test_a_bias_for_a_token_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a logit bias for token 5; expected 0 to 4"):
        Sampler(Sampling(bias={5: 1.0}), (), 5)
