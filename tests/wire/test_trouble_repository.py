"""Rubbish in a model repository: the other models load, the log and the index say what is wrong with this one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_process import ServeProcess, infer, outputs_of, serve_process, tensor

from trireme.engine.repository.local import LocalRepository

CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }
input { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
"""
"""What fits the graph of `simple`."""

OTHER_BACKEND = (
    'input { name: "I" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "O" data_type: TYPE_INT32 dims: [ 1 ] }'
)

CONFIGS: dict[str, str | bytes] = {
    "not_text": b"\x00\xff\xfe{{{ this is no text format",
    "half_a_config": CONFIG + "input {",
    "unknown_field": CONFIG + "frobnicate: 1",
    "unknown_type": CONFIG.replace("TYPE_INT32", "TYPE_COMPLEX"),
    "wrong_name": CONFIG + 'name: "someone_else"',
    "negative_batch": CONFIG.replace("max_batch_size: 8", "max_batch_size: -1"),
    "wrong_input": CONFIG.replace('"INPUT1"', '"WRONG"'),
    "too_few_inputs": CONFIG.replace('input { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] }', ""),
    "wrong_output": CONFIG.replace('"OUTPUT1"', '"WRONG"'),
    "wrong_type": CONFIG.replace("TYPE_INT32", "TYPE_FP32", 1),
    "wrong_size": CONFIG.replace("[ 16 ]", "[ 15 ]", 1),
    "wrong_rank": CONFIG.replace("[ 16 ]", "[ 4, 4 ]", 1),
    "missing_labels": CONFIG.replace('name: "OUTPUT1"', 'name: "OUTPUT1" label_filename: "labels.txt"'),
    "unknown_backend": f'backend: "nonsense" {OTHER_BACKEND}',
    "python_backend": f'backend: "python" {OTHER_BACKEND}',
    "pytorch_backend": f'backend: "pytorch" {OTHER_BACKEND}',
}
"""config.pbtxt of models that have a version 1 with the graph of `simple`."""

NOT_POLLED = {
    "not_text": "1:1: ",
    "half_a_config": "8:7: ",
    "unknown_field": "frobnicate",
    "unknown_type": "TYPE_COMPLEX",
    "wrong_name": "someone_else",
    "negative_batch": "max_batch_size",
    "nothing_in_it": "Could not determine backend for model 'nothing_in_it'",
}
"""Models whose configuration cannot be read or is wrong in itself: only the log says why, as in Triton."""

NOT_PARSED = ("not_text", "half_a_config", "unknown_field", "unknown_type")

NO_VERSION = ("no_version", "only_letters", "only_zeros", "only_a_file")

NOT_LOADED = {
    "empty_version": "model.onnx",
    "garbage_model": "model.onnx",
    "truncated_model": "model.onnx",
    "dangling_model": "model.onnx",
    "wrong_input": "unexpected inference input 'WRONG', allowed inputs are: INPUT0, INPUT1",
    "too_few_inputs": "configuration expects 1 inputs, model provides 2",
    "wrong_output": "unexpected inference output 'WRONG', allowed outputs are: OUTPUT0, OUTPUT1",
    "wrong_type": "configuration expects datatype TYPE_FP32 for input 'INPUT0', model provides TYPE_INT32",
    "wrong_size": "making complete shape [-1,15]",
    "wrong_rank": "making complete shape [-1,4,4]",
    "missing_labels": "labels.txt",
    "unknown_backend": "unable to find backend library for backend 'nonsense'",
    "python_backend": "Python model file not found in '",
    "pytorch_backend": "for model instance 'pytorch_backend'",
}
"""Models that fail while a version is loaded: the log and the index say why."""


def write_rubbish(repository: Path, simple: Path) -> None:
    for name, config in CONFIGS.items():
        directory = repository / name
        (directory / "1").mkdir(parents=True)
        shutil.copy(simple / "1" / "model.onnx", directory / "1")
        (directory / "config.pbtxt").write_bytes(config if isinstance(config, bytes) else config.encode())
    for name in ("no_version", "only_letters", "only_zeros", "only_a_file", "empty_version"):
        (repository / name).mkdir()
        (repository / name / "config.pbtxt").write_text(CONFIG)
    shutil.copytree(simple / "1", repository / "only_letters" / "one")
    shutil.copytree(simple / "1", repository / "only_zeros" / "007")
    (repository / "only_a_file" / "1").write_text("a version should be a directory")
    (repository / "empty_version" / "1").mkdir()
    graph = (simple / "1" / "model.onnx").read_bytes()
    for name, content in (("garbage_model", b"\xde\xad\xbe\xef" * 100), ("truncated_model", graph[: len(graph) // 2])):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.onnx").write_bytes(content)
        (repository / name / "config.pbtxt").write_text(CONFIG)
    (repository / "dangling_model" / "1").mkdir(parents=True)
    (repository / "dangling_model" / "1" / "model.onnx").symlink_to("nowhere.onnx")
    (repository / "dangling_model" / "config.pbtxt").write_text(CONFIG)
    (repository / "nothing_in_it").mkdir()


def write_harmless(repository: Path, simple: Path) -> None:
    """What is no model at all, and things inside of a good one that are no version."""
    (repository / "README.md").write_text("notes")
    (repository / "model.onnx").write_bytes(b"lost")
    (repository / "dangling").symlink_to("nowhere")
    shutil.copytree(simple, repository / "simple")
    cluttered = repository / "cluttered"
    shutil.copytree(simple / "1", cluttered / "1")
    (cluttered / "config.pbtxt").write_text(CONFIG)
    for name in ("notes", "02", "warmup", "-1", "1.5"):
        (cluttered / name).mkdir()
    (cluttered / "3").write_text("not a directory")
    (cluttered / "4").symlink_to("nowhere")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, repository_root: Path) -> Path:
    repository = tmp_path_factory.mktemp("rubbish")
    simple = repository_root / "model_repository" / "simple"
    write_harmless(repository, simple)
    write_rubbish(repository, simple)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServeProcess]:
    """Serves the rest."""
    with serve_process(repository, "--exit-on-error=false") as server:
        yield server


@pytest.fixture(scope="module")
def index(server: ServeProcess) -> dict[str, dict[str, str]]:
    """The repository index by name of model; every model has one entry."""
    status, entries = server.ask("POST", "/v2/repository/index")
    assert status == 200
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {entry["name"]: entry for entry in entries}


@pytest.mark.parametrize("name", ["simple", "cluttered"])
def test_the_others_load_and_answer(server: ServeProcess, index: dict[str, dict[str, str]], name: str) -> None:
    assert index[name] == {"name": name, "version": "1", "state": "READY"}
    inputs = [tensor("INPUT0", "INT32", list(range(16))), tensor("INPUT1", "INT32", [1] * 16)]
    status, answer = infer(server.http_port, name, *inputs)
    assert status == 200
    assert outputs_of(answer)["OUTPUT0"] == list(range(1, 17))


def test_a_server_with_rubbish_is_live_and_not_ready(server: ServeProcess) -> None:
    """Strict readiness: these models were asked for."""
    assert server.ask("GET", "/v2/health/live")[0] == 200
    assert server.ask("GET", "/v2/health/ready")[0] == 400
    assert server.ask("GET", "/v2/models/simple/ready")[0] == 200
    assert "failed to load all models" in server.log


def test_what_is_no_directory_is_no_model(index: dict[str, dict[str, str]]) -> None:
    """Nor has a model a row if none of its versions can be chosen."""
    assert set(index) == {"simple", "cluttered", *NOT_POLLED, *NOT_LOADED}


@pytest.mark.parametrize(("name", "words"), NOT_POLLED.items())
def test_a_bad_configuration_is_told_in_the_log(
    server: ServeProcess, index: dict[str, dict[str, str]], name: str, words: str
) -> None:
    """In one line; if the text cannot be parsed, in two: the parser's, which says where, and the server's."""
    (failure,) = [line for line in server.stderr if f"Poll failed for model directory '{name}': " in line]
    if name in NOT_PARSED:
        assert "failed to read text proto from " in failure
        (failure,) = [line for line in server.stderr if line.rstrip().endswith(f'/{name}/config.pbtxt)"')]
    assert words in failure
    assert index[name] == {"name": name}
    status, answer = server.ask("GET", f"/v2/models/{name}")
    assert (status, answer) == (404, {"error": f"Request for unknown model: '{name}' is not found"})


@pytest.mark.parametrize("name", NO_VERSION)
def test_a_model_without_a_version_is_told_in_the_log(server: ServeProcess, name: str) -> None:
    text = f"at least one version must be available under the version policy of model '{name}'"
    assert [line for line in server.stderr if text in line]


@pytest.mark.parametrize(
    "text",
    [
        "ignore version directory 'one' which fails to convert to integral number",
        "ignore version directory '007' which contains leading zeros in its directory name",
        "ignore version directory 'notes' which fails to convert to integral number",
        "ignore version directory '02' which contains leading zeros in its directory name",
        "ignore version directory '-1' which fails to convert to integral number",
    ],
)
def test_ignored_version_directories_are_told(server: ServeProcess, text: str) -> None:
    assert text in server.log


@pytest.mark.parametrize(("name", "words"), NOT_LOADED.items())
def test_a_model_that_does_not_load_says_why(
    server: ServeProcess, index: dict[str, dict[str, str]], name: str, words: str
) -> None:
    entry = index[name]
    assert (entry["version"], entry["state"]) == ("1", "UNAVAILABLE")
    kind, colon, detail = entry["reason"].partition(": ")
    assert kind in ("Invalid argument", "Internal", "Not found", "Unavailable", "Unsupported")
    assert colon
    assert words in detail
    (line,) = [line for line in server.stderr if f"failed to load '{name}' version 1: " in line]
    assert words in line
    status, answer = server.ask("GET", f"/v2/models/{name}")
    assert (status, answer) == (404, {"error": f"Request for unknown model: '{name}' has no available versions"})


def test_nothing_but_reasons_in_the_log(server: ServeProcess) -> None:
    """Bad models are not treated as defects of the server: no traceback, and the error lines that they are worth."""
    assert "Traceback" not in server.log
    errors = [line for line in server.stderr if line.startswith("E")]
    assert len(errors) == len(NOT_POLLED) + len(NOT_PARSED) + len(NO_VERSION) + len(NOT_LOADED) + 1


def test_by_default_the_server_exits(repository: Path) -> None:
    """Exit code 1, the last word on stderr says why, what had been loaded is unloaded, and no port was opened."""
    with serve_process(repository, wait=False) as server:
        assert server.wait() == 1
        assert server.stderr[-1] == "error: creating server: Internal - failed to load all models"
        assert "successfully loaded 'simple'" in server.log
        assert "successfully unloaded 'simple' version 1" in server.log
        assert "failed to load 'wrong_type' version 1: " in server.log
        assert "Started" not in server.log
        assert "Traceback" not in server.log


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    with serve_process(tmp_path / "nowhere", wait=False) as server:
        assert server.wait() == 1
        assert server.stderr[-1] == f"error: creating server: Internal - failed to stat file {tmp_path / 'nowhere'}"


def test_a_link_that_leads_to_itself_is_no_model(tmp_path: Path, repository_root: Path) -> None:
    shutil.copytree(repository_root / "model_repository" / "simple", tmp_path / "simple")
    (tmp_path / "circle").symlink_to("circle")
    assert [model.name for model in LocalRepository((tmp_path,)).scan().models] == ["simple"]
