"""`digits_bls` asks other models (BLS); it gives what the ensemble of the same models gives, and judges for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

MEMBERS = ("digits_decode", "digits", "digits_label")


@pytest.fixture(scope="module")
def files(repository_root: Path) -> np.ndarray:
    """Ten image files (PGM) of equal length, a row each, UINT8."""
    images = np.load(repository_root / "model_repository" / "digits_heldout.npz")["images"]
    pixels = np.round(255 - images * 255 / 16).astype(np.uint8)
    return np.array([list(b"P5\n8 8\n255\n" + image.tobytes()) for image in pixels], np.uint8)


@pytest.fixture(params=["http", "grpc"])
def ask(live: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """``ask(model, files, **options)``: the result of a request."""
    kind, url = (http, live.url) if request.param == "http" else (grpc, live.grpc_url)
    with kind.InferenceServerClient(url) as client:

        def ask(model: str, rows: np.ndarray, **options: Any) -> Any:
            tensor = kind.InferInput("FILE", list(rows.shape), "UINT8").set_data_from_numpy(rows)
            return client.infer(model, [tensor], **options)

        yield ask


def labels(result: Any) -> list[str]:
    return [label.decode() for label in result.as_numpy("LABEL").ravel()]


def test_it_gives_what_the_ensemble_gives(ask: Any, files: np.ndarray) -> None:
    called, planned = ask("digits_bls", files), ask("digits_pipeline", files)
    assert labels(called) == labels(planned)
    assert len(set(labels(called))) == 10
    np.testing.assert_allclose(called.as_numpy("PROBABILITIES"), planned.as_numpy("PROBABILITIES"), rtol=1e-5)


def test_it_says_where_it_is_not_sure(ask: Any, files: np.ndarray) -> None:
    """The eight among the samples is a difficult one: see docs/clients.md."""
    told = labels(ask("digits_bls", files, parameters={"min_probability": "0.9"}))
    assert [place for place, label in enumerate(told) if label == "unsure"] == [8]


def test_an_error_of_a_model_that_it_asks_is_its_own(ask: Any, files: np.ndarray) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask("digits_bls", files[:1, :20])
    assert caught.value.message() == "digits_decode: file 0 of the request: no image file, or not all of one"
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert len(labels(ask("digits_bls", files))) == 10


def inferences(live: Any) -> dict[str, int]:
    with http.InferenceServerClient(live.url) as client:
        records = client.get_inference_statistics()["model_stats"]
    return {record["name"]: record["inference_count"] for record in records if record["name"] in MEMBERS}


def test_requests_of_a_model_count_as_any_others(live: Any, ask: Any, files: np.ndarray) -> None:
    before = inferences(live)
    ask("digits_bls", files)
    assert {name: count - before[name] for name, count in inferences(live).items()} == dict.fromkeys(MEMBERS, 10)
