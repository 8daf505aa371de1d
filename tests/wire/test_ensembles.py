"""The shipped ensemble over HTTP and gRPC: image files in, labels out."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from PIL import Image
from sklearn.datasets import load_digits
from tritonclient.utils import InferenceServerException

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
MEMBERS = ("digits_decode", "digits", "digits_label")
HEAD = b"P5\n8 8\n255\n"


@dataclass(frozen=True)
class Asker:
    """A client, and the module that its tensors come from."""

    client: Any
    kind: Any

    def ask(self, files: np.ndarray, outputs: list[str] | None = None, request_id: str = "", **output: Any) -> Any:
        """The result for image files of equal length, one a row."""
        tensor = self.kind.InferInput("FILE", list(files.shape), "UINT8")
        tensor.set_data_from_numpy(files)
        asked = outputs and [self.kind.InferRequestedOutput(name, **output) for name in outputs]
        return self.client.infer("digits_pipeline", [tensor], outputs=asked, request_id=request_id)


@pytest.fixture(params=["http", "grpc"])
def asker(live: Any, request: pytest.FixtureRequest) -> Iterator[Asker]:
    kind, url = (http, live.url) if request.param == "http" else (grpc, live.grpc_url)
    with kind.InferenceServerClient(url) as client:
        yield Asker(client, kind)


def pgm(images: np.ndarray) -> np.ndarray:
    """Drawings [n, 8, 8], ink from 0 to 16, as binary PGM files with black ink on white paper; one a row, UINT8."""
    pixels = np.round(255 - images * 255 / 16).astype(np.uint8)
    return np.stack([np.frombuffer(HEAD + image.tobytes(), np.uint8) for image in pixels])


def picture(image: np.ndarray, kind: str) -> bytes:
    """A drawing [8, 8] as a file of 64 x 64 coloured pixels."""
    pixels = np.round(255 - image * 255 / 16).astype(np.uint8)
    large = Image.fromarray(pixels).convert("RGB").resize((64, 64), Image.Resampling.NEAREST)
    file = io.BytesIO()
    large.save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def ten(repository_root: Any) -> np.ndarray:
    """A file for each digit, in order."""
    return pgm(np.load(repository_root / "model_repository" / "digits_heldout.npz")["images"])


def labels(result: Any) -> list[str]:
    array = result.as_numpy("LABEL")
    assert array.shape[1:] == (1,)
    return [label.decode() for label in array.ravel()]


def test_reads_handwriting_that_it_was_not_trained_on(asker: Asker) -> None:
    """At least 97 of 100, as `digits` alone, in as many images a request as it takes."""
    data: Any = load_digits()
    files, digits = pgm(data.images[::5]), data.target[::5]
    read = [label for at in range(0, len(files), 32) for label in labels(asker.ask(files[at : at + 32]))]
    assert len(read) == len(digits) == 360
    assert sum(label == NAMES[digit] for label, digit in zip(read, digits, strict=True)) / 360 >= 0.97


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_reads_files_of_other_kinds_and_sizes(asker: Asker, repository_root: Any, kind: str) -> None:
    images = np.load(repository_root / "model_repository" / "digits_heldout.npz")["images"]
    files = [picture(image, kind) for image in images]
    longest = max(map(len, files))
    assert labels(asker.ask(np.array([list(file.ljust(longest, b"\0")) for file in files], np.uint8))) == NAMES


def test_one_file_is_a_batch_of_one(asker: Asker, ten: np.ndarray) -> None:
    result = asker.ask(ten[7:8])
    assert labels(result) == ["seven"]
    assert result.as_numpy("PROBABILITIES").shape == (1, 10)


def test_only_what_is_asked_for_comes(asker: Asker, ten: np.ndarray) -> None:
    result = asker.ask(ten, ["LABEL"])
    assert labels(result) == NAMES
    assert result.as_numpy("PROBABILITIES") is None
    result = asker.ask(ten, ["PROBABILITIES"])
    assert result.as_numpy("LABEL") is None
    assert result.as_numpy("PROBABILITIES").argmax(axis=1).tolist() == list(range(10))


def test_classes_of_an_output_have_the_labels_of_the_member_that_makes_it(asker: Asker, ten: np.ndarray) -> None:
    result = asker.ask(ten, ["PROBABILITIES"], class_count=2)
    best = [row[0].decode().split(":") for row in result.as_numpy("PROBABILITIES")]
    assert [(index, label) for _, index, label in best] == [(str(at), name) for at, name in enumerate(NAMES)]


def test_an_error_of_a_member_names_the_ensemble_and_harms_no_other_request(asker: Asker, ten: np.ndarray) -> None:
    with pytest.raises(InferenceServerException) as caught:
        asker.ask(ten[:1, :20], request_id="short")
    assert caught.value.message() == (
        "in ensemble 'digits_pipeline', digits_decode: file 0 of the request: no image file, or not all of one"
    )
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert labels(asker.ask(ten)) == NAMES


def test_more_files_than_a_batch_takes_are_refused(asker: Asker) -> None:
    with pytest.raises(InferenceServerException) as caught:
        asker.ask(np.zeros((33, 75), np.uint8), request_id="many")
    assert caught.value.message() == (
        "[request id: many] inference request batch-size must be <= 32 for 'digits_pipeline'"
    )
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_what_is_wrong_with_the_request_is_said_of_the_ensemble(asker: Asker) -> None:
    tensor = asker.kind.InferInput("IMAGE", [1, 8, 8], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 8, 8), np.float32))
    with pytest.raises(
        InferenceServerException, match="unexpected inference input 'IMAGE' for model 'digits_pipeline'"
    ):
        asker.client.infer("digits_pipeline", [tensor])


def test_metadata_and_configuration(live: Any) -> None:
    with http.InferenceServerClient(live.url) as client:
        metadata = client.get_model_metadata("digits_pipeline")
        config = client.get_model_config("digits_pipeline")
    assert metadata["platform"] == "ensemble"
    assert metadata["inputs"] == [{"name": "FILE", "datatype": "UINT8", "shape": [-1, -1]}]
    assert [output["name"] for output in metadata["outputs"]] == ["LABEL", "PROBABILITIES"]
    assert [step["model_name"] for step in config["ensemble_scheduling"]["step"]] == list(MEMBERS)
    assert config["instance_group"] == []


def counts(live: Any) -> dict[str, tuple[int, int, int, int]]:
    """Of each model concerned: rows inferred, executions, requests that succeeded, requests that failed."""
    with http.InferenceServerClient(live.url) as client:
        records = client.get_inference_statistics()["model_stats"]
    return {
        record["name"]: (
            record["inference_count"],
            record["execution_count"],
            record["inference_stats"]["success"]["count"],
            record["inference_stats"]["fail"]["count"],
        )
        for record in records
        if record["name"] in (*MEMBERS, "digits_pipeline")
    }


def gained(before: dict[str, tuple[int, ...]], after: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(b - a for a, b in zip(before[name], after[name], strict=True)) for name in before}


def test_the_ensemble_and_its_members_count(live: Any, asker: Asker, ten: np.ndarray) -> None:
    before = counts(live)
    for _ in range(3):
        asker.ask(ten)
    assert gained(before, counts(live)) == dict.fromkeys(before, (30, 3, 3, 0))


def test_a_step_that_is_not_needed_is_left_out(live: Any, asker: Asker, ten: np.ndarray) -> None:
    before = counts(live)
    asker.ask(ten, ["PROBABILITIES"])
    went = gained(before, counts(live))
    assert went.pop("digits_label") == (0, 0, 0, 0)
    assert went == dict.fromkeys(went, (10, 1, 1, 0))


def test_a_failure_counts_for_the_member_and_the_ensemble(live: Any, asker: Asker, ten: np.ndarray) -> None:
    """Twice for the ensemble, as Triton counts it."""
    before = counts(live)
    with pytest.raises(InferenceServerException):
        asker.ask(ten[:1, :20])
    went = gained(before, counts(live))
    assert {name: failed for name, (_, _, _, failed) in went.items()} == {
        "digits_decode": 1,
        "digits": 0,
        "digits_label": 0,
        "digits_pipeline": 2,
    }
