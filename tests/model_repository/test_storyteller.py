"""`storyteller` computes what was trained, and has learned to write."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from recording_host import RecordingHost
from repository_models import REPOSITORY, opened

from trireme.python_backend.child.utils.runner import Runner

Words = Callable[..., list[str]]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with opened("storyteller", RecordingHost(decoupled=True)) as runner:
        yield runner


@pytest.fixture(scope="module")
def network(runner: Runner) -> Any:
    return runner._model.network


@pytest.fixture(scope="module")
def words(runner: Runner, network: Any) -> Words:
    """The words behind a prompt."""
    tell = runner._model.tell.__globals__["words"]

    def told(prompt: str, length: int = 100, temperature: float = 0.5, seed: int = 1) -> list[str]:
        return list(tell(network, prompt, length, temperature, np.random.default_rng(seed)))

    return told


@pytest.fixture(scope="module")
def story() -> str:
    return (REPOSITORY / "storyteller.txt").read_text()


def scores(network: Any, text: str) -> np.ndarray:
    """The logarithm of each character's probability, before and after it was read, by the model's own steps."""
    state, rows = network.start(), []
    for character in text:
        rows.append(network.output @ state + network.output_bias)
        state = network.read(state, character)
    return np.array(rows)


def test_it_computes_what_pytorch_computes(network: Any, story: str) -> None:
    """A GRU layer with the same weights gives the same scores for the next character."""
    text = story[:60]
    layer = torch.nn.GRU(network.embedding.shape[1], network.state.shape[1], batch_first=True)
    weights = (network.input, network.state, network.input_bias, network.state_bias)
    with torch.no_grad():
        for parameter, weight in zip(layer.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight))
        read = torch.from_numpy(network.embedding[[network.alphabet.index(character) for character in text]])
        hidden, _ = layer(read[None])
    expected = hidden[0].numpy() @ network.output.T + network.output_bias
    np.testing.assert_allclose(scores(network, text)[1:], expected[:-1], rtol=1e-3, atol=1e-3)


def test_it_has_learned_the_text(network: Any, story: str) -> None:
    """It needs less than 1.5 bits a character, where guessing needs more than 5."""
    rows = scores(network, story[:2000])
    logarithms = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    right = [network.alphabet.index(character) for character in story[:2000]]
    assert -logarithms[np.arange(2000), right].mean() / np.log(2) < 1.5
    assert np.log2(len(network.alphabet)) > 5


def test_most_of_what_it_tells_are_words_of_the_text(words: Words, story: str) -> None:
    known = set(story.split())
    told = [word.strip() for word in words("The keeper ", 1000) if word.strip()]
    assert len(told) > 100
    assert sum(word in known for word in told) / len(told) > 0.8


def test_a_story_ends_with_the_word_that_reaches_its_length(words: Words) -> None:
    told = words("The sea ", length=50)
    assert all(word[-1].isspace() for word in told)
    assert len("".join(told)) >= 50 > len("".join(told[:-1]))


def test_same_seed_same_story(words: Words) -> None:
    assert words("The cat ", seed=5) == words("The cat ", seed=5)
    assert words("The cat ", 400, 1.0, seed=5) != words("The cat ", 400, 1.0, seed=6)
    assert words("The cat ", temperature=0, seed=5) == words("The cat ", temperature=0, seed=6)


def test_characters_that_it_has_never_read_are_passed_over(words: Words) -> None:
    assert words("The cat \u732b\u2192") == words("The cat ")


def test_weights_are_of_the_text_that_is_committed(network: Any, story: str) -> None:
    script = runpy.run_path(str(REPOSITORY / "train_storyteller.py"))
    alphabet, places = script["read_text"]()
    assert alphabet == network.alphabet
    assert "".join(alphabet[place] for place in places) == story
    assert network.state.shape == (3 * script["HIDDEN"], script["HIDDEN"])
    assert network.embedding.shape == (len(alphabet), script["EMBEDDING"])
