"""`narrator` is what its script makes, and holds a sentence better than `storyteller` does."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_host import RecordingHost
from repository_models import REPOSITORY, opened

from trireme.actors import InferenceServer
from trireme.engine.datatypes import BYTES
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

FOLDER = REPOSITORY.parent / "generation_repository"
PROMPTS = ["Once upon a time", "There was once a", "In a small house", "One day in spring"]


@pytest.fixture(scope="module")
def tales() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "tales.py"))


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "train_narrator.py"))


def test_every_tale_is_read_as_it_was_written(tales: dict[str, Any]) -> None:
    from random import Random

    random = Random(5)
    for _ in range(200):
        verdict = tales["check"](tales["write_tale"](random))
        assert verdict.whole
        assert verdict.right == verdict.fitting == verdict.sentences


@pytest.mark.parametrize(
    ("second", "right", "fitting"),
    [
        ("She had some soup, enough for the whole winter.", 2, 2),
        ("He had some soup, enough for the whole winter.", 2, 1),
        ("She had some soups, enough for the whole winter.", 1, 1),
        ("That night Lena could not sleep, because she thought of Otto.", 2, 1),
    ],
)
def test_what_does_not_fit_is_noticed(tales: dict[str, Any], second: str, right: int, fitting: int) -> None:
    verdict = tales["check"](f"Mira was a shy fox who lived in a red house by the river. {second}")
    assert (verdict.sentences, verdict.right, verdict.fitting, verdict.whole) == (2, right, fitting, False)


def test_all_of_it_is_small_and_its_tokenizer_comes_out_of_the_script(script: dict[str, Any]) -> None:
    files = [path for path in (FOLDER / "narrator").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    stored = json.loads((FOLDER / "narrator" / "1" / "tokenizer.json").read_text())
    assert json.loads(script["make_tokenizer"]().to_str()) == stored


def test_the_curve_is_that_of_its_rounds(script: dict[str, Any]) -> None:
    with (FOLDER / "narrator_loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == list(range(script["EVERY"], script["ROUNDS"] + 1, script["EVERY"]))
    assert float(rows[0]["held_out"]) > 2 > 0.5 > float(rows[-1]["held_out"])
    assert "Training of narrator" in (FOLDER / "narrator_loss.svg").read_text()


def storyteller_share() -> float:
    """Of the sentences that `storyteller` makes of the prompts, how many have no word that its text has not. This is
    asked of whole sentences, without the prompt and what the length cuts off; it is less than that they are right."""
    known = set((REPOSITORY / "storyteller.txt").read_text().replace(".", "").replace(",", "").split())
    found: list[bool] = []
    with opened("storyteller", RecordingHost(decoupled=True)) as runner:
        model = runner._model
        words = model.tell.__globals__["words"]
        for number, prompt in enumerate(PROMPTS * 3):
            text = "".join(words(model.network, prompt, 300, 0.7, np.random.default_rng(number)))
            found += [set(sentence.replace(",", "").split()) <= known for sentence in text.split(".")[1:-1]]
    return sum(found) / len(found)


async def test_it_holds_a_sentence_better_than_storyteller(tales: dict[str, Any], tmp_path: Path) -> None:
    """Both are drawn from at the same temperature, with the same prompts."""
    (tmp_path / "narrator").symlink_to(FOLDER / "narrator")
    right = count = whole = 0
    async with InferenceServer(ServerOptions(model_repository=(tmp_path,))) as server:
        replies = []
        for number, prompt in enumerate(PROMPTS * 3):
            sampling = json.dumps({"temperature": 0.7, "seed": number, "max_tokens": 300})
            tensors = [
                Tensor(name, BYTES, (1,), array=np.array([text.encode()], object))
                for name, text in (("text_input", prompt), ("sampling_parameters", sampling))
            ]
            replies.append(await server.admit(InferenceRequest("narrator", inputs=tensors)))
        for reply in replies:
            (response,) = [response async for response in reply.responses()]
            text = response.output("text_output").array[0].decode()
            verdict = tales["check"](text)
            right, count = right + verdict.right, count + verdict.sentences
            whole += text.endswith(".")
    share = storyteller_share()
    assert right / count > 0.9, f"{right} of {count}"
    assert right / count > share + 0.1, f"storyteller: {share}"
    assert whole == len(replies), "each tale comes to an end"
