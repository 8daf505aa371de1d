"""The models around `digits`: image files in, words out."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from recording_host import RecordingHost
from repository_models import opened

from trireme.python_backend.child.utils.response import InferenceResponse
from trireme.python_backend.child.utils.runner import Answered
from trireme.python_backend.child.utils.tensor import Tensor

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def session(name: str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(REPOSITORY / name / "1" / "model.onnx")


@pytest.fixture(scope="module")
def decode() -> Iterator[Callable[[Sequence[bytes]], InferenceResponse]]:
    """Asks `digits_decode` for the images in files, one a row."""
    host = RecordingHost()
    with opened("digits_decode", host) as runner:

        def ask(files: Sequence[bytes]) -> InferenceResponse:
            longest = max(map(len, files))
            rows = np.array([list(file.ljust(longest, b"\0")) for file in files], np.uint8)
            answered: list[Answered] = []
            runner.begin([host.request(1, Tensor("FILE", rows))], answered.append)
            ((response,),) = answered
            assert response is not None
            return response

        yield ask


Decode = Callable[[Sequence[bytes]], InferenceResponse]


def images(response: InferenceResponse) -> np.ndarray:
    (output,) = response.output_tensors()
    assert (output.name(), output.as_numpy().dtype) == ("IMAGE", np.float32)
    return output.as_numpy()


def file_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def drawing(side: int = 8) -> Image.Image:
    """White paper with a black quarter, top left."""
    pixels = np.full((side, side), 255, np.uint8)
    pixels[: side // 2, : side // 2] = 0
    return Image.fromarray(pixels)


QUARTER = np.kron([[16.0, 0.0], [0.0, 0.0]], np.ones((4, 4)))


@pytest.mark.parametrize("head", [b"P5\n8 8\n255\n", b"P5 8 8 255 ", b"P5\n# by hand\n8 8\n255\n"])
def test_grey_becomes_ink(decode: Decode, head: bytes) -> None:
    pixels = np.arange(2 * 64, dtype=np.uint8).reshape(2, 64)
    pixels[0, 0] = 255
    made = images(decode([head + row.tobytes() for row in pixels]))
    np.testing.assert_allclose(made, (255.0 - pixels.reshape(2, 8, 8)) * 16 / 255, rtol=1e-6)


@pytest.mark.parametrize("side", [8, 64])
@pytest.mark.parametrize(("kind", "tolerance"), [("PNG", 1e-6), ("JPEG", 0.5), ("PPM", 1e-6), ("WEBP", 0.5)])
def test_files_of_all_kinds_and_sizes_are_read(decode: Decode, kind: str, tolerance: float, side: int) -> None:
    files = [file_of(drawing(side), kind, **({"quality": 95} if kind in ("JPEG", "WEBP") else {}))]
    np.testing.assert_allclose(images(decode(files)), [QUARTER], atol=tolerance)


def test_files_of_a_batch_may_differ_in_length_and_kind(decode: Decode) -> None:
    files = [file_of(drawing(), "PNG"), file_of(drawing(80), "PNG"), file_of(drawing(), "PPM")]
    assert len(set(map(len, files))) == 3
    np.testing.assert_allclose(images(decode(files)), [QUARTER] * 3, atol=1e-6)


def test_colours_and_transparency_are_seen_on_white_paper(decode: Decode) -> None:
    coloured = drawing().convert("RGBA")
    coloured.putalpha(drawing().point(lambda value: 255 - value))  # paper that is not there at all
    np.testing.assert_allclose(images(decode([file_of(coloured, "PNG")])), [QUARTER], atol=1e-6)
    with_palette = drawing().convert("P")
    np.testing.assert_allclose(images(decode([file_of(with_palette, "GIF")])), [QUARTER], atol=1e-6)


@pytest.mark.parametrize("spoil", [lambda file: file[:40], lambda file: b"", lambda file: b"x" + file])
def test_what_is_no_image_is_refused_and_named(decode: Decode, spoil: Callable[[bytes], bytes]) -> None:
    good = file_of(drawing(), "PNG")
    error = decode([good, spoil(good)]).error()
    assert error is not None
    assert error.message() == "digits_decode: file 1 of the request: no image file, or not all of one"
    assert error.code().name == "INVALID_ARG"


@pytest.mark.parametrize("side", [b"9000", b"30000"])
def test_huge_images_are_refused_before_they_are_unpacked(decode: Decode, side: bytes) -> None:
    error = decode([b"P5 %b %b 255\n" % (side, side)]).error()
    assert error is not None
    assert error.message() == "digits_decode: file 0 of the request: more than 64000000 pixels"


def test_the_most_probable_digit_is_named() -> None:
    digits = [3, 0, 9]
    (labels,) = session("digits_label").run(["LABEL"], {"PROBABILITIES": np.eye(10, dtype=np.float32)[digits]})
    assert isinstance(labels, np.ndarray)
    assert labels.tolist() == [["three"], ["zero"], ["nine"]]


def test_it_names_digits_as_their_labels_do() -> None:
    (labels,) = session("digits_label").run(["LABEL"], {"PROBABILITIES": np.eye(10, dtype=np.float32)})
    assert isinstance(labels, np.ndarray)
    assert labels.ravel().tolist() == (REPOSITORY / "digits" / "labels.txt").read_text().split()
