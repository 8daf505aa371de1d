"""The committed `digits` model reads handwriting that it was not trained on."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import load_digits

REPOSITORY = Path(__file__).parents[2] / "model_repository"


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(REPOSITORY / "digits" / "1" / "model.onnx")


@pytest.fixture(scope="module")
def held_out() -> tuple[np.ndarray, np.ndarray]:
    """Images [360, 8, 8] and their digits: every fifth of scikit-learn's 1,797."""
    data: Any = load_digits()
    return data.images[::5].astype(np.float32), data.target[::5]


def read(session: onnxruntime.InferenceSession, images: np.ndarray) -> np.ndarray:
    (probabilities,) = session.run(["PROBABILITIES"], {"IMAGE": images})
    assert isinstance(probabilities, np.ndarray)
    return probabilities


def test_reads_held_out_images(session: onnxruntime.InferenceSession, held_out: tuple[np.ndarray, np.ndarray]) -> None:
    """At least 97 of 100 images that training never saw, and probabilities that are probabilities."""
    images, digits = held_out
    probabilities = read(session, images)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (probabilities.argmax(axis=1) == digits).mean() >= 0.97


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names in train_digits.py, which needs PyTorch only for training. Run, not imported: that leaves no cache."""
    return runpy.run_path(str(REPOSITORY / "train_digits.py"))


def test_script_holds_out_the_same_images(script: dict[str, Any], held_out: tuple[np.ndarray, np.ndarray]) -> None:
    """What these tests measure on is what the script did not train on."""
    train_images, train_digits, images, digits = script["load_split"]()
    np.testing.assert_array_equal(images, held_out[0])
    np.testing.assert_array_equal(digits, held_out[1])
    assert len(train_images) == len(train_digits) == 1797 - 360
    assert not {image.tobytes() for image in train_images} & {image.tobytes() for image in images}


def test_samples_are_held_out_images_that_are_read_by_label(
    session: onnxruntime.InferenceSession, script: dict[str, Any], held_out: tuple[np.ndarray, np.ndarray]
) -> None:
    """The ten samples for clients are one held-out image of each digit, and the label file names each rightly."""
    samples = np.load(REPOSITORY / "digits_heldout.npz")
    images, digits = script["one_of_each"](*held_out)
    np.testing.assert_array_equal(samples["images"], images)
    np.testing.assert_array_equal(samples["digits"], digits)
    labels = (REPOSITORY / "digits" / "labels.txt").read_text().split()
    assert labels == list(script["LABELS"])
    read_as = [labels[index] for index in read(session, samples["images"]).argmax(axis=1)]
    assert read_as == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
