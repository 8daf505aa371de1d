"""Writes docs/errors.md: broken repositories and commands, and what a person reads.

    python tests/support/error_page.py

Each case is made in an empty directory, and its command is run there. A test compares the page with what this makes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serve_process import serve_process

from trireme.api.cli.main import main
from trireme.api.cli.onnx_file import linear_classifier
from trireme.api.cli.serve import serve

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"

HEAD = """\
# What errors say

Broken repositories and commands, and what a person reads: which file, what is wrong, and what to do. This page is
written by `python tests/support/error_page.py`, which makes each case and runs its command.
"""

ONNX = linear_classifier("X", "SCORES", [[1.0, 0.0, -1.0]] * 4, [0.0, 0.0, 0.0])
CONFIG = """\
backend: "onnxruntime"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] }
"""
PYTHON = """\
backend: "python"
input { name: "A" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ 1 ] }
"""
ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] }
ensemble_scheduling {
  step {
    model_name: "scorer"
    model_version: -1
    input_map { key: "X" value: "X" }
    output_map { key: "SCORES" value: "SCORES" }
  }
}
"""

SCORER = "models/scorer/config.pbtxt"
FILE = "models/scorer/1/model.onnx"
APP = "app.py"


@dataclass
class Case:
    """One of them.

    Attributes:
        files: what is there, by path; a text is shown, bytes are not. An empty text for a directory.
        command: what is run, by default the check of the repository.
        served: the model ``scorer`` is served meanwhile, by a good configuration, and the case's app.
        aside: runs in a process of its own.
    """

    title: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    command: str = "trireme check models"
    served: bool = False
    aside: bool = False


def scorer(title: str, old: str, new: str) -> Case:
    """The configuration of a good model with a part that was replaced."""
    assert old in CONFIG
    return Case(title, {SCORER: CONFIG.replace(old, new), FILE: ONNX})


def program(title: str, code: str) -> Case:
    """A Python model."""
    return Case(title, {"models/adder/config.pbtxt": PYTHON, "models/adder/1/model.py": code})


def ensemble(title: str, old: str, new: str, more: Mapping[str, str | bytes] | None = None) -> Case:
    """An ensemble of which a part was replaced."""
    assert old in ENSEMBLE
    return Case(title, {"models/flow/config.pbtxt": ENSEMBLE.replace(old, new), **(more or {})})


def app(title: str, code: str, command: str = "trireme check app.py", **more: bool) -> Case:
    """A Python file with models."""
    return Case(title, {APP: f"from trireme import FP32, model\n\n\n{code}"}, command, **more)


_NAMED = '@model(name="double")\ndef {}(x: FP32[1]) -> FP32[1]:\n    return 2 * x\n'
_RAISES = """\
@model
class Scorer:
    def __init__(self):
        self.weights = open("weights.bin").read()

    def __call__(self, x: FP32[1]) -> FP32[1]:
        return x
"""

MEMBER = {SCORER: CONFIG.encode(), FILE: ONNX}

CASES = (
    scorer("A field that there is not", "max_batch_size", "max_batchsize"),
    scorer("A value that there is not", "TYPE_FP32 dims: [ 4 ]", "TYPE_FLOAT32 dims: [ 4 ]"),
    scorer("Several mistakes at once", "data_type: TYPE_FP32 dims: [ 3 ]", "datatype: TYPE_FP32 dims: [ three ]"),
    scorer("Text without quotes", '"onnxruntime"', "onnxruntime"),
    scorer("A word where a number belongs", "max_batch_size: 8", "max_batch_size: many"),
    scorer("A brace that is not closed", "dims: [ 3 ] }", "dims: [ 3 ]"),
    scorer("A brace too many", "dims: [ 3 ] }", "dims: [ 3 ] } }"),
    scorer("A field twice", "max_batch_size: 8", "max_batch_size: 8\nmax_batch_size: 16"),
    scorer(
        "A preferred batch that is too large", "input", "dynamic_batching { preferred_batch_size: [ 4, 16 ] }\ninput"
    ),
    scorer("A negative batch size", "max_batch_size: 8", "max_batch_size: -1"),
    scorer("The name of another directory", "backend", 'name: "score"\nbackend'),
    scorer("A dimension of 0", "dims: [ 4 ]", "dims: [ 0 ]"),
    scorer("No dimensions", " dims: [ 3 ]", ""),
    scorer("No type", "data_type: TYPE_FP32 dims: [ 3 ]", "dims: [ 3 ]"),
    scorer("A reshape of another size", "dims: [ 4 ]", "dims: [ 4 ] reshape { shape: [ 3 ] }"),
    scorer("GPUs of a group on CPUs", "input", "instance_group [ { kind: KIND_CPU gpus: [ 0 ] } ]\ninput"),
    scorer("A file outside of the model's directory", "input", 'default_model_filename: "../../other.onnx"\ninput'),
    scorer("A backend that is not there", "onnxruntime", "onnxruntme"),
    scorer("The name of an output that the file has not", "SCORES", "SCORE"),
    scorer("Another type than the file's", "TYPE_FP32 dims: [ 3 ]", "TYPE_INT64 dims: [ 3 ]"),
    scorer("Another shape than the file's", "dims: [ 3 ]", "dims: [ 5 ]"),
    scorer("An input too many", "output", 'input { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }\noutput'),
    scorer("A label file that is not there", "dims: [ 3 ]", 'dims: [ 3 ] label_filename: "labels.txt"'),
    scorer(
        "A parameter that means nothing",
        "input",
        'parameters { key: "EXECUTION_LIMIT_SECS" value { string_value: "soon" } }\ninput',
    ),
    Case("No version directory", {SCORER: CONFIG}),
    Case("No model file", {SCORER: CONFIG, "models/scorer/1/": ""}),
    Case("A model file of another name", {SCORER: CONFIG, "models/scorer/1/model.onx": ONNX}),
    Case("An empty directory", {"models/scorer/": ""}),
    Case("A file that is cut off", {SCORER: CONFIG, FILE: ONNX[:40]}),
    Case("One name in two repositories", {**MEMBER, "more/scorer/1/model.onnx": ONNX}, "trireme check models more"),
    program("A Python model that imports what is not there", "import no_such_package\n"),
    program("A Python model without its class", "class Adder:\n    pass\n"),
    program("A Python model that is no Python", "class TritonPythonModel:\n    def execute(self, requests)\n"),
    ensemble("An ensemble of a model that is not there", '"scorer"', '"scorr"', MEMBER),
    ensemble("An ensemble that leaves an input out", '    input_map { key: "X" value: "X" }\n', "", MEMBER),
    ensemble("An ensemble of itself", '"scorer"', '"flow"'),
    app(
        "A function without an annotation",
        "@model\ndef double(x) -> FP32[1]:\n    return 2 * x\n",
        "trireme export app.py models",
    ),
    app("A function without the type of its result", "@model\ndef double(x: FP32[1]):\n    return 2 * x\n"),
    app("A data type that there is not", "@model\ndef double(x: FP33[1]) -> FP32[1]:\n    return 2 * x\n"),
    app("A data type that is not imported", "@model\ndef double(x: INT64[1]) -> FP32[1]:\n    return 2.0 * x\n"),
    app("An array of no size", "@model\ndef double(x: FP32[0]) -> FP32[1]:\n    return 2 * x\n"),
    app("A data type without dimensions", "@model\ndef double(x: FP32) -> FP32[1]:\n    return 2 * x\n"),
    app("A result of no tensor", "@model\ndef double(x: FP32[1]) -> float:\n    return 2 * x\n"),
    app(
        "An option that a model has not", "@model(max_batch=8)\ndef double(x: FP32[1]) -> FP32[1]:\n    return 2 * x\n"
    ),
    app("A time that is none", '@model(queue_delay="2 min")\ndef double(x: FP32[1]) -> FP32[1]:\n    return 2 * x\n'),
    app(
        "A class that cannot be called",
        "@model\nclass Doubler:\n    def run(self, x: FP32[1]) -> FP32[1]:\n        return x\n",
    ),
    app("Two models of one name", f"{_NAMED.format('one')}\n\n{_NAMED.format('two')}"),
    app(
        "A module that is not there",
        "import torchvison\n\n\n@model\ndef double(x: FP32[1]) -> FP32[1]:\n    return 2 * x\n",
    ),
    app("A file that raises", "weights = open('weights.bin')\n", "trireme serve app.py", aside=True),
    app("A class whose making raises", _RAISES, "trireme serve app.py", aside=True),
    app("A file with a mistake in its syntax", "@model\ndef double(x: FP32[1]) -> FP32[1]\n    return 2 * x\n"),
    app("A file without a model", "def double(x: FP32[1]) -> FP32[1]:\n    return 2 * x\n"),
    Case("An app that is not there", command="trireme serve ap.py", aside=True),
    app(
        "A result of another name",
        '@model\ndef double(x: FP32[1]) -> {"y": FP32[1]}:\n    return {"z": 2 * x}\n',
        "trireme infer double --input x=[1]",
        served=True,
    ),
    app(
        "A result of another shape",
        "@model\ndef pair(x: FP32[1]) -> FP32[2]:\n    return x\n",
        "trireme infer pair --input x=[1]",
        served=True,
    ),
    app(
        "A function that raises",
        "@model\ndef last(x: FP32[1]) -> FP32[1]:\n    return x[len(x) :][0]\n",
        "trireme infer last --input x=[1]",
        served=True,
    ),
    Case("A repository that is not there", command="trireme check modles"),
    Case("A flag that there is not", command="trireme serve --modelrepository=models"),
    Case("A value that a flag does not take", command="trireme serve --model-control-mode=manual"),
    Case("Flags that contradict each other", command="trireme serve --model-repository=models --load-model=scorer"),
    Case("No repository", command="trireme serve", aside=True),
    Case("A port that is taken", MEMBER, "trireme serve --model-repository=models --http-port=8000", aside=True),
    Case("A command that there is not", command="trireme sevre"),
    Case("A kind of model that there is not", command="trireme init --with skleran"),
    Case("No server", command="trireme infer scorer --url http://127.0.0.1:1"),
    Case("A model that the server has not", command="trireme infer scorr", served=True),
    Case("An input that the model has not", command="trireme infer scorer --input Y=[1,2,3,4]", served=True),
    Case("An input of another shape", command="trireme infer scorer --input X=[1,2,3]", served=True),
    Case(
        "Inputs that are no JSON",
        {"inputs.json": '{"X": [1, 2'},
        "trireme infer scorer --json inputs.json",
        served=True,
    ),
)


def write_page() -> str:
    """The whole page. Changes the process's directory meanwhile."""
    before = Path.cwd()
    parts = [HEAD]
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        stack.callback(os.chdir, before)
        port = stack.enter_context(_served(Path(place) / "served"))
        for number, case in enumerate(CASES, start=1):
            directory = Path(place) / str(number)
            directory.mkdir()
            os.chdir(directory)
            parts.append(_section(number, case, port))
    return "\n".join(parts)


def _section(number: int, case: Case, port: int) -> str:
    lines = [f"## {number}. {case.title}", ""]
    for path, content in case.files.items():
        if path.endswith("/"):
            Path(path).mkdir(parents=True)
            continue
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
        if isinstance(content, str):
            lines += [f"`{path}`:", "", *(f"    {line}".rstrip() for line in content.splitlines()), ""]
    words = shlex.split(case.command)[1:]
    said = _run_aside(words) if case.aside else _run([*words, *(["--url", f"127.0.0.1:{port}"] if case.served else [])])
    lines += ["What is run, and what it says:", "", f"    $ {case.command}"]
    lines += [f"    {line}".rstrip() for line in _plain(said, port).splitlines()]
    return "\n".join([*lines, ""])


def _run(words: list[str]) -> str:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told), contextlib.suppress(SystemExit):
        code = serve(words[1:]) if words[0] == "serve" else main(words)  # which ends this process, as a server may
        assert code != 0, words
    return told.getvalue()


def _run_aside(words: list[str]) -> str:
    """Errors of a server that cannot start; the port that it wants is taken, whichever it is."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = [word.replace("8000", str(port)) for word in words]
        command = [sys.executable, "-m", "trireme", *words, "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        command += ["--grpc-port=0", "--metrics-port=0", "--front-ends=0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 1, done
        remedies = [line for line in done.stdout.splitlines() if "to do: " in line]
        return "\n".join([done.stderr.replace(str(port), "8000").rstrip(), *remedies])


@contextlib.contextmanager
def _served(directory: Path) -> Iterator[int]:
    """A server with the good model; its port."""
    (directory / "scorer" / "1").mkdir(parents=True)
    (directory / "scorer" / "config.pbtxt").write_text(CONFIG)
    (directory / "scorer" / "1" / "model.onnx").write_bytes(ONNX)
    apps = []
    for number, code in enumerate(case.files[APP] for case in CASES if case.served and APP in case.files):
        path = directory.parent / f"apps-{number}" / APP
        path.parent.mkdir()
        path.write_text(str(code))
        apps.append(str(path))
    with serve_process(directory, *apps) as server:
        yield server.http_port


def _plain(said: str, port: int) -> str:
    """Without what differs from run to run, and from machine to machine."""
    said = re.sub(rf"{Path.cwd().parent}/apps-\d+/", "", said)
    said = re.sub(r"\S*/trireme-apps-\w+/", "…/", said.replace(f"{Path.cwd()}/", "")).replace(str(port), "8000")
    return re.sub(
        r"^([IWE])\d{4} [\d:.]+ \d+ (\w+\.py):\d+\]", r"\g<1>0131 12:00:00.000000 1 \2:1]", said, flags=re.MULTILINE
    )


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
