"""`trireme export`: a repository that needs neither the app nor Trireme."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import socket
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from ml_dtypes import bfloat16
from serve_process import PATIENCE_S, serve_process
from served_app import APP, write_app
from tritonclient.utils import InferenceServerException

from trireme.api.cli.main import main

WEIGHTS = """\
from pathlib import Path
import numpy as np
from trireme import BF16, BYTES, FP32, InvalidArgumentError, RequestContext, model
from pkg.more import factor

WEIGHT = float((Path(__file__).parent / "weights" / "w.txt").read_text())


@model(max_batch_size=4)
def weigh(x: FP32[1]) -> {"y": FP32[1]}:
    if x.max() > 100:
        raise InvalidArgumentError("too heavy")
    return x * WEIGHT * factor


@model
def countdown(n: FP32[1], context: RequestContext) -> FP32[1]:
    for number in range(int(n[0])):
        if context.correlation_id == 0 and not context.cancelled:
            yield [number]


@model
async def half(x: BF16[1], word: BYTES[1] = None) -> {"x": BF16[1], "word": BYTES[1]}:
    return {"x": x / 2, "word": ["none"] if word is None else word}
"""


@pytest.fixture
def unused_ports() -> tuple[int, ...]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)


def export(tmp_path: Path, *words: str, app: str = "app.py") -> int:
    return main(["export", str(tmp_path / app), str(tmp_path / "models"), *words])


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app with a package and weights beside it."""
    directory = tmp_path / "project"
    (directory / "pkg").mkdir(parents=True)
    (directory / "pkg" / "more.py").write_text("factor = 10\n")
    (directory / "weights").mkdir()
    (directory / "weights" / "w.txt").write_text("0.5")
    return write_app(directory, WEIGHTS)


def ask(server: Any, model: str, number: float) -> Any:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}]}
    return server.ask("POST", f"/v2/models/{model}/infer", body)


def test_what_is_exported_is_served_without_the_app(
    app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    assert main(["export", f"{app}:weigh", str(models), "--include", str(app.parent / "weights")]) == 0
    assert capsys.readouterr().out == f"wrote {models / 'weigh'}\n"
    shutil.rmtree(app.parent)
    with serve_process(models) as server:
        assert ask(server, "weigh", 3)[1]["outputs"][0]["data"] == [15]
        assert ask(server, "weigh", 300) == (400, {"error": "too heavy"})


RUN = '''\
"""Does what a server does with a model.py, without Trireme: with Triton's module, played by that of Trireme's child."""

import importlib.util, json, sys
import numpy as np

child, directory = sys.argv[1:3]
spec = importlib.util.spec_from_file_location("child", child + "/__init__.py", submodule_search_locations=[child])
package = sys.modules["child"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
pb_utils = importlib.import_module("child.utils.triton_python_backend_utils")
sys.modules["triton_python_backend_utils"] = pb_utils
try:
    import trireme
    sys.exit("Trireme is installed")
except ImportError:
    pass
sys.path.append(directory + "/1")
model = importlib.import_module("model").TritonPythonModel()
model.initialize({"model_config": json.dumps({"max_batch_size": 4}), "model_instance_name": "weigh_0"})

class Request:
    def __init__(self, value):
        self.value = np.full((2, 1), value, np.float32)

    def inputs(self):
        return [pb_utils.Tensor("x", self.value)]

class Logger:
    log_error = staticmethod(print)

pb_utils.Logger = Logger
answers = model.execute([Request(1), Request(2)])
print([tensor.as_numpy().tolist() for answer in answers for tensor in answer.output_tensors()])
(answer,) = model.execute([Request(300)])
print(answer.error().message(), answer.error().code() == pb_utils.TritonError.INVALID_ARG)
model.finalize()
'''


def test_it_needs_only_numpy(app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In an environment that has numpy, and no Trireme."""
    models = tmp_path / "models"
    assert main(["export", f"{app}:weigh", str(models), "--include", str(app.parent / "weights")]) == 0
    venv.create(tmp_path / "bare", symlinks=True)
    (packages,) = (tmp_path / "bare").glob("lib/python*/site-packages")
    import numpy

    site = Path(numpy.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (packages / name).symlink_to(site / name)
    child = Path(sys.modules["trireme"].__file__ or "").parents[1] / "python_backend" / "child"
    command = [str(tmp_path / "bare" / "bin" / "python"), "-c", RUN, str(child), str(models / "weigh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[[[5.0], [5.0]], [[10.0], [10.0]]]", "too heavy True"]


def test_all_models_of_an_app_would_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_app(tmp_path)
    assert export(tmp_path) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path / "models")]) == 0
    count = APP.count("\n@model")
    assert f"{count} of {count} models would load" in capsys.readouterr().out


def test_what_cannot_be_exported_is_told(app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, bare = tmp_path / "models", tmp_path / "bare.py"
    (models / "weigh").mkdir(parents=True)
    bare.write_text("from trireme import FP32, model\n@model\ndef f(x) -> FP32[1]: ...\n")
    cases = [
        ([f"{app}:weigh"], 1, f"'{models / 'weigh'}' is there already\n  name another directory, or add --force"),
        ([f"{app}:none"], 1, "it has no model 'none'; it has: weigh, countdown, half"),
        ([str(bare)], 1, f"{bare}:3: model 'f': parameter 'x' has no annotation\n  write, for example: x: FP32[8, 8]"),
        ([str(app.parent)], 2, f"'{app.parent}' is no Python file\n  write app.py, or app.py:name"),
        ([str(app), "--include", str(bare)], 2, f"--include names '{bare}', which is not below '{app.parent}'"),
        ([str(app), "--include", "none"], 2, "--include names 'none', which is not there"),
    ]
    for words, code, text in cases:
        assert main(["export", words[0], str(models), *words[1:]]) == code
        assert text in capsys.readouterr().err
    assert [path.name for path in models.iterdir()] == ["weigh"]
    assert main(["export", f"{app}:weigh", str(models), "--force"]) == 0
    assert (models / "weigh" / "config.pbtxt").exists()


TRITON = shlex.split(os.environ.get("TRITON_COMMAND", "tritonserver"))
"""Starts the real server; `TRITON_COMMAND` says what does where it is not on the path."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(TRITON[0]) is None, reason="Triton is not installed (TRITON_COMMAND)")
def test_it_runs_in_triton(app: Path, tmp_path: Path, unused_ports: tuple[int, ...]) -> None:
    """The real one: batches, errors with their status, streams, types that numpy has not got."""
    models = tmp_path / "models"
    assert main(["export", str(app), str(models), "--include", str(app.parent / "weights")]) == 0
    shutil.rmtree(app.parent)
    flags = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), unused_ports, strict=True)]
    with subprocess.Popen([*TRITON, "--model-repository", str(models), *flags]) as triton:
        try:
            with triton_grpc.InferenceServerClient(f"127.0.0.1:{unused_ports[1]}") as client:
                while not ready(client):
                    assert triton.poll() is None, "Triton has ended"
                check_models(client)
        finally:
            triton.terminate()


def ready(client: triton_grpc.InferenceServerClient) -> bool:
    try:
        return bool(client.is_server_ready())
    except InferenceServerException:
        return False


def check_models(client: triton_grpc.InferenceServerClient) -> None:
    def tensor(name: str, array: np.ndarray, kind: str) -> triton_grpc.InferInput:
        given = triton_grpc.InferInput(name, array.shape, kind)
        given.set_data_from_numpy(array)
        return given

    weighed = client.infer("weigh", [tensor("x", np.array([[3], [4]], np.float32), "FP32")])
    assert weighed is not None
    np.testing.assert_array_equal(weighed.as_numpy("y"), [[15], [20]])
    with pytest.raises(InferenceServerException, match="too heavy") as raised:
        client.infer("weigh", [tensor("x", np.array([[300]], np.float32), "FP32")])
    assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"
    halved = client.infer("half", [tensor("x", np.array([3], bfloat16), "BF16")])
    assert halved is not None
    np.testing.assert_array_equal(halved.as_numpy("x"), [1.5])
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("countdown", [tensor("n", np.array([3], np.float32), "FP32")])
    got = [answers.get(timeout=PATIENCE_S) for _ in range(3)]
    assert [(each.as_numpy("output").tolist(), error) for each, error in got] == [([0], None), ([1], None), ([2], None)]
    client.stop_stream()
