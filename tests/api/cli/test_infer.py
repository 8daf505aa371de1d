"""`trireme infer`, against a real server, over both protocols."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trireme.api.cli.input_values import sent_tensor
from trireme.api.cli.main import main
from trireme.api.cli.parser import CommandError
from trireme.api.cli.remote import TensorInfo, read_array

URLS = ("http", "grpc")
Infer = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=URLS)
def infer(request: pytest.FixtureRequest, live, capsys: pytest.CaptureFixture[str]) -> Infer:
    """Runs the command against a server with the repository's models: exit code, output and errors."""
    port = live.port if request.param == "http" else live.grpc_port

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["infer", *words, "--url", f"{request.param}://127.0.0.1:{port}"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_outputs_labels_and_latency_of_an_array_in_a_file(infer: Infer, tmp_path: Path, repository_root: Path) -> None:
    images = np.load(repository_root / "model_repository" / "digits_heldout.npz")["images"]
    np.save(tmp_path / "seven.npy", images[7])
    code, said, _ = infer("digits", "--input", str(tmp_path / "seven.npy"), "--count", "3")
    assert code == 0
    lines = said.splitlines()
    assert lines[0].split() == ["output", "type", "shape", "values"]
    assert lines[1].split()[:3] == ["PROBABILITIES", "FP32", "1×10"]
    assert lines[2].startswith("PROBABILITIES[0]: seven 0.99")
    assert lines[3].startswith("latency of 3: least ")


def test_inputs_that_are_not_given_are_made_up(infer: Infer) -> None:
    code, said, _ = infer("simple", "--input", f"INPUT1={[3] * 16}", "--format", "json")
    assert code == 0
    answer = json.loads(said)
    assert answer["made_up"] == ["INPUT0"]
    sums = next(each for each in answer["outputs"] if each["name"] == "OUTPUT0")
    assert (sums["shape"], sums["data"]) == ([1, 16], [3] * 16)


REPEAT = ("repeat_int32", "--input", "IN=[5, 7]", "--input", "DELAY=[0, 0]", "--input", "WAIT=0")


def test_answers_of_a_decoupled_model_are_streamed(infer: Infer, tmp_path: Path) -> None:
    code, said, _ = infer(*REPEAT, "--save", str(tmp_path))
    assert code == 0
    lines = [line.partition(" (after ")[0] for line in said.splitlines()]
    assert lines == ["1: OUT 5, IDX 0", "2: OUT 7, IDX 1"]
    assert np.load(tmp_path / "OUT.2.npy").tolist() == [7]
    code, said, _ = infer(*REPEAT, "--format", "json")
    answers = json.loads(said)["answers"]
    assert [[each["data"] for each in answer["outputs"]] for answer in answers] == [[[5], [0]], [[7], [1]]]
    assert [each["datatype"] for each in answers[0]["outputs"]] == ["INT32", "UINT32"]


def test_a_stream_that_fails(infer: Infer) -> None:
    code, _, errors = infer("repeat_int32", "--input", "IN=[5, 7]", "--input", "DELAY=[0]", "--input", "WAIT=0")
    assert code == 1
    assert errors.startswith("trireme infer: ")
    assert "DELAY" in errors


def test_text_and_saved_outputs(infer: Infer, tmp_path: Path) -> None:
    words = ("--input", f"INPUT0={json.dumps(['1'] * 16)}", "--input", f"INPUT1={json.dumps(['2'] * 16)}")
    code, said, _ = infer("simple_string", *words, "--save", str(tmp_path / "out"))
    assert code == 0
    assert "'3'" in said
    assert (np.load(tmp_path / "out" / "OUTPUT0.npy") == b"3").all()


def test_a_whole_request_from_standard_input(infer: Infer, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"inputs": [{"name": name, "shape": [2, 16], "data": [1] * 32} for name in ("INPUT0", "INPUT1")]}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    code, said, _ = infer("simple", "--json", "-")
    assert code == 0
    assert "2×16" in said


@pytest.mark.parametrize(
    ("words", "text", "remedy"),
    [
        (["simpl"], "Request for unknown model: 'simpl' is not found", "did you mean: simple"),
        (["simple", "--input", "INPUT5=[1]"], "has no input 'INPUT5'", "did you mean: INPUT1"),
        (["simple", "--input", "INPUT0=[1, 2]"], "has shape [2], expected [-1, 16]", "as many values"),
        (["simple", "--input", "INPUT0=x"], "input 'INPUT0' cannot be read", "of shape [-1, 16], such as [1, 2, …]"),
        (["simple", "--input", "INPUT0=[1.5]"], "values that INT32 cannot hold, such as 1.5", "write INT32 values"),
        (["simple_string", "--input", 'INPUT0={"b": 1}'], "found {'b': 1}", 'such as ["a", "b", …]'),
        (["simple", "--input", "[1]"], "does not say which input it is", "NAME=VALUE; of INPUT0, INPUT1"),
        (["simple", "--input", "INPUT0=no.npy"], "there is no file 'no.npy'", "correct the path"),
        (["simple", "--json", "no.json"], "cannot read 'no.json': No such file", "correct the path"),
        (["simple", "--parameter", "x"], "--parameter is x", "write NAME=VALUE"),
        (["simple", "--input", f"INPUT0=@{'x' * 300}"], f"there is no file '{'x' * 300}'", "correct the path"),
        (["simple_string", "--input", 'INPUT0=[["a"], ["b", "c"]]'], "rows of different lengths", "write BYTES values"),
        (["simple_string", "--input", 'INPUT0={"a": 1}'], "found {'a': 1}", "write BYTES values"),
        (["simple", "--header", "x: ж"], "--header is x: ж", "printable ASCII"),
        (["simple", "--api-key", "ж"], "--api-key has characters", "printable ASCII"),
        (["simple", "--timeout", "-1"], "--timeout is -1", "seconds above 0"),
        (["simple", "--timeout", "nan"], "--timeout is nan", "seconds above 0"),
        (["simple", "--timeout", "inf"], "--timeout is inf", "seconds above 0"),
        (["simple", "--count", "0"], "--count is 0", "1 or more"),
        (["repeat_int32", "--count", "2"], "answers any number of times", "leave --count out"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(infer: Infer, words: list[str], text: str, remedy: str) -> None:
    code, said, errors = infer(*words)
    assert code in (1, 2)
    assert said == ""
    first, second = errors.splitlines()
    assert text in first
    assert remedy in second


def test_a_port_of_another_protocol(live, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of what it says gets to the terminal."""
    assert main(["infer", "simple", "--url", f"http://127.0.0.1:{live.grpc_port}"]) == 3
    assert "speaks no HTTP\n" in capsys.readouterr().err
    assert main(["infer", "simple", "--url", f"grpc://127.0.0.1:{live.port}"]) == 3
    assert "speaks no gRPC\n  correct --url\n" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", URLS)
def test_no_server(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound, and nothing listens
        taken.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["infer", "m", "--url", url]) == 3
    assert capsys.readouterr().err.startswith(f"trireme infer: no server answers at {url}: ")


@pytest.mark.parametrize("url", ["ftp://x:1", "http://", "http://x:port", "http://[::1"])
def test_an_address_that_is_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", "m", "--url", url]) == 2
    assert f"--url is {url}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("datatype", "shape", "batches", "expected"),
    [
        ("FP32", (-1, 3, 4, 4), True, (1, 3, 4, 4)),
        ("FP32", (4, 4, 3), False, (4, 4, 3)),
        ("UINT8", (-1, 2, 2), True, (1, 2, 2)),
        ("FP32", (1, -1, -1), False, (1, 8, 8)),
        ("BYTES", (-1, 1), True, (1, 1)),
        ("FP32", (-1, 4, 4, 1), True, (1, 4, 4, 1)),
    ],
)
def test_images_take_the_form_of_the_input(
    datatype: str, shape: tuple[int, ...], batches: bool, expected: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "image.png"
    Image.new("RGB", (8, 8), (255, 0, 0)).save(path)
    sent = sent_tensor(TensorInfo("X", datatype, shape), path, batches=batches)
    assert sent.shape == expected
    if datatype == "FP32" and 3 in shape:
        assert np.frombuffer(sent.data, np.float32).max() == 1.0


def test_an_image_for_bf16_is_from_0_to_1(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.new("L", (2, 2), 255).save(path)
    sent = sent_tensor(TensorInfo("X", "BF16", (2, 2)), path, batches=False)
    assert read_array("BF16", (2, 2), sent.data).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_what_is_no_image_is_told(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(b"no image")
    with pytest.raises(CommandError, match="it is no image"):
        sent_tensor(TensorInfo("X", "FP32", (3, 4, 4)), path, batches=False)
