"""The models around `digits`: image files in, words out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def session(name: str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(REPOSITORY / name / "1" / "model.onnx")


@pytest.mark.parametrize("head", [b"P5\n8 8\n255\n", b"P5 8 8 255 ", b"P5\n# by hand\n8 8\n255\n"])
def test_pixels_are_found_behind_any_head_and_turned_into_ink(head: bytes) -> None:
    pixels = np.arange(2 * 64, dtype=np.uint8).reshape(2, 64)
    pixels[0, 0] = 255
    files = np.array([list(head + row.tobytes()) for row in pixels], np.uint8)
    (images,) = session("digits_decode").run(["IMAGE"], {"FILE": files})
    assert isinstance(images, np.ndarray)
    assert images[:, 0, 0].tolist() == pytest.approx([0, (255 - 64) * 16 / 255])
    np.testing.assert_allclose(images, (255.0 - pixels.reshape(2, 8, 8)) * 16 / 255, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_files_that_are_too_short_are_refused_and_not_mixed(rows: int) -> None:
    """64 files of 32 bytes have the pixels of 32 images, but are none."""
    with pytest.raises(Exception, match=r"[Rr]eshape"):
        session("digits_decode").run(["IMAGE"], {"FILE": np.zeros((rows, 32), np.uint8)})


def test_the_most_probable_digit_is_named() -> None:
    digits = [3, 0, 9]
    (labels,) = session("digits_label").run(["LABEL"], {"PROBABILITIES": np.eye(10, dtype=np.float32)[digits]})
    assert isinstance(labels, np.ndarray)
    assert labels.tolist() == [["three"], ["zero"], ["nine"]]


def test_it_names_digits_as_their_labels_do() -> None:
    (labels,) = session("digits_label").run(["LABEL"], {"PROBABILITIES": np.eye(10, dtype=np.float32)})
    assert isinstance(labels, np.ndarray)
    assert labels.ravel().tolist() == (REPOSITORY / "digits" / "labels.txt").read_text().split()
