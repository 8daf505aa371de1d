"""`trireme serve app.py`: models made from functions, over HTTP and gRPC."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from ml_dtypes import bfloat16
from serve_process import PATIENCE_S
from served_app import APP, AppProcess, app_process, write_app
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    with app_process(write_app(tmp_path_factory.mktemp("app"))) as server:
        yield server


@pytest.fixture(scope="module", params=[triton_http, triton_grpc], ids=["http", "grpc"])
def client(server: AppProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    module = request.param
    port = server.http_port if module is triton_http else server.grpc_port
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.module = module
        yield client


def ask(client: Any, model: str, **arrays: Any) -> dict[str, Any]:
    """Outputs by name."""
    inputs = []
    for name, array in arrays.items():
        tensor = client.module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    result = client.infer(model, inputs)
    outputs = result.get_response()
    names = (
        [each["name"] for each in outputs["outputs"]]
        if isinstance(outputs, dict)
        else [each.name for each in outputs.outputs]
    )
    return {name: result.as_numpy(name) for name in names}


def test_a_function_is_asked_for_rows(client: Any) -> None:
    images = np.random.default_rng(1).random((5, 8, 8), np.float32)
    answer = ask(client, "classify", image=images)
    np.testing.assert_array_equal(answer["probabilities"], images.reshape(5, 64)[:, :10])


def test_metadata_are_those_of_the_annotations(server: AppProcess) -> None:
    assert server.ask("GET", "/v2/models/classify") == (
        200,
        {
            "name": "classify",
            "versions": ["1"],
            "platform": "python",
            "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 8, 8]}],
            "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}],
        },
    )


def test_requests_are_batched_into_one_call(server: AppProcess) -> None:
    """Rows of many requests come in fewer calls, and go back to the right ones."""
    _, before = server.ask("GET", "/v2/models/classify/stats")
    answers: dict[int, Any] = {}

    def one(number: int) -> None:
        with triton_http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
            client.module = triton_http  # type: ignore[attr-defined]
            answers[number] = ask(client, "classify", image=np.full((1, 8, 8), number / 64, np.float32))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answer in answers.items():
        assert answer["probabilities"].tolist() == [[number / 64] * 10]
    assert len(answers) == 24
    _, after = server.ask("GET", "/v2/models/classify/stats")
    assert after["model_stats"][0]["inference_count"] - before["model_stats"][0]["inference_count"] == 24


def test_a_list_of_requests(client: Any) -> None:
    answer = ask(client, "separately", x=np.array([[1, 2], [3, 4]], np.int32))
    assert answer["sum"].tolist() == [[3], [7]]
    assert answer["rows"].tolist() == [[2], [2]]
    with pytest.raises(InferenceServerException, match="ValueError: a number is negative"):
        ask(client, "separately", x=np.array([[-1]], np.int32))


def test_a_class_keeps_state_and_may_lack_an_optional_input(client: Any) -> None:
    name = np.array(["Ada"], object)
    first = ask(client, "Greeter", name=name)
    second = ask(client, "Greeter", name=name, greeting=np.array(["good day"], object))
    assert first["text"].tolist() == [b"hello Ada"]
    assert second["text"].tolist() == [b"good day Ada"]
    assert second["greeted"][0] == first["greeted"][0] + 1


def test_every_data_type(client: Any) -> None:
    kinds = {"u1": "u1", "u2": "u2", "u4": "u4", "u8": "u8", "i1": "i1", "i2": "i2", "i4": "i4", "i8": "i8"}
    kinds.update(f2="f2", f4="f4", f8="f8")
    given: dict[str, Any] = {name: np.array([1, 2], kind) for name, kind in kinds.items()}
    given["bool_"] = np.array([True, False])
    given["b2"] = np.array([1, 2.5], bfloat16)
    given["text"] = np.array([b"\xff", "ä".encode()], object)
    answer = ask(client, "every_type", **given)
    for name, array in answer.items():
        expected = given[name] if name in ("bool_", "text") else given[name] + 1
        assert array.tolist() == expected.tolist(), name
    assert len(answer) == 14


def test_in_the_server(client: Any) -> None:
    assert ask(client, "inside", x=np.array([1.5, 2]))["output"].tolist() == [-1.5, -2]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("wrong_type", "output 'output' is float32, expected int32 for INT32[1]"),
        ("wrong_shape", "output 'y' has shape [1], expected [2]"),
    ],
)
def test_a_wrong_result_is_told(client: Any, model: str, text: str) -> None:
    with pytest.raises(InferenceServerException) as raised:
        ask(client, model, x=np.ones(1, np.float32))
    assert text in str(raised.value)


def test_what_a_function_raises_is_told_with_its_lines(client: Any, server: AppProcess) -> None:
    with pytest.raises(InferenceServerException) as raised:
        ask(client, "broken", x=np.ones(1, np.float32))
    line = APP.splitlines().index("    return x / {}") + 1
    said = str(raised.value)
    assert "Failed to process the request(s) for model 'broken_0_0', message: TypeError: unsupported operand" in said
    places = [each.strip() for each in said.partition("At:\n")[2].splitlines()]
    assert [place.rpartition("/")[2] for place in places if place] == [
        f"app.py({line}): deeper",
        f"app.py({line - 4}): broken",
    ]
    server.wait_for("message: TypeError: unsupported operand")


def test_an_error_of_the_clients_is_one(server: AppProcess) -> None:
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": [2] * 64}]}
    assert server.ask("POST", "/v2/models/classify/infer", body) == (400, {"error": "a pixel is brighter than 1"})


def test_a_wrong_request_is_told_in_the_usual_words(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="inference input 'image' data-type is 'FP64', but model"):
        ask(client, "classify", image=np.ones((1, 8, 8)))
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'image'"):
        ask(client, "classify", image=np.ones((1, 8, 7), np.float32))


def stream(server: AppProcess, model: str, name: str, number: int, most: int = 1000) -> list[Any]:
    """What a decoupled model answers, at most so many; the stream is cancelled then."""
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        tensor = triton_grpc.InferInput(name, [1], "INT64")
        tensor.set_data_from_numpy(np.array([number]))
        client.async_stream_infer(model, [tensor], enable_empty_final_response=True)
        told: list[Any] = []
        while len(told) < most:
            answer = answers.get(timeout=PATIENCE_S)
            if isinstance(answer, Exception):
                told.append(str(answer))
                break
            response = answer.get_response()
            if response.outputs:
                told.append(int(answer.as_numpy(response.outputs[0].name)[0]))
            if response.parameters["triton_final_response"].bool_param:
                break
        client.stop_stream(cancel_requests=True)
    return told


def test_generators_stream(server: AppProcess) -> None:
    assert stream(server, "count_down", "start", 5) == [5, 4, 3, 2, 1]
    assert stream(server, "count_up", "end", 5) == [0, 1, 2, 3, 4]
    *numbers, error = stream(server, "count_down", "start", 15)
    assert numbers == [15, 14]
    assert "RuntimeError: 13 brings bad luck" in error


def test_a_generator_whose_client_leaves_is_closed(server: AppProcess) -> None:
    assert stream(server, "endless", "start", 7, most=3) == [7, 8, 9]
    server.wait_for("the generator was closed")
    assert stream(server, "endless", "start", 1, most=1) == [1], "its instance is free again"


# -- Apps that come and go


def test_one_model_of_an_app_and_a_repository(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    app = write_app(tmp_path)
    with app_process(f"{app}:inside", tmp_path / "models") as server:
        index = server.ask("POST", "/v2/repository/index")[1]
        assert [(row["name"], row["state"]) for row in index] == [("inside", "READY")]
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["none.py"], r"none\.py: there is no such file"),
        (["app.py:nothing"], r"app\.py: it has no model 'nothing'; it has: classify, "),
        (["app.py", "app.py:inside"], r"app\.py: the model 'inside' is in .*app\.py, too"),
        (["bare.py"], r"bare\.py:3: model 'f': parameter 'x' has no annotation\n  write, for example: x: FP32\[8, 8\]"),
        (["raising.py"], r"raising\.py:2: ZeroDivisionError: division by zero"),
        (["bad.py"], r"helping\.py:1: SyntaxError: .*\n  def \("),
        (["exiting.py"], r"exiting\.py: the process that imported it ended with status 3"),
        (["folder"], "Unexpected argument: folder\nthere is no directory 'folder'"),
        (["--reload"], "'--reload' has no effect without a Python file"),
        (["app.py", "--reload", "--model-control-mode=explicit"], "'--model-control-mode=explicit' cannot be combined"),
    ],
)
def test_what_cannot_be_served_ends_the_start(tmp_path: Path, words: list[str], text: str) -> None:
    write_app(
        tmp_path,
        bare="from trireme import FP32, model\n@model\ndef f(x) -> FP32[1]: ...\n",
        raising="import sys\n1 / 0\n",
        bad="import helping\n",
        helping="def (\n",
        exiting="import os\nos._exit(3)\n",
    )
    given = [str(tmp_path / word) if ".py" in word else word for word in words]
    with app_process(*given, wait=False) as server:
        assert server.wait() == 1
        server.wait_for(text)


def test_an_app_is_followed(tmp_path: Path) -> None:
    """A mended one is taken, a broken one changes nothing; models come and go with their functions."""
    app = write_app(tmp_path, "import nothing_like_it\n")

    def answer(server: AppProcess, number: float) -> Any:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [number]}]}
        return server.ask("POST", "/v2/models/f/infer", body)[1]

    text = (
        "from trireme import FP32, model\nfrom scales import scale\n"
        "@model\ndef f(x: FP32[1]) -> FP32[1]:\n    return scale() * x if x > 0 else __import__('os')._exit(1)\n"
    )
    with app_process(app, "--reload") as server:
        server.wait_for(r"app\.py:1: ModuleNotFoundError: No module named 'nothing_like_it'")
        app.write_text(text)
        server.wait_for(r"app\.py changed; serving: f")
        assert answer(server, 3)["outputs"][0]["data"] == [3]

        (tmp_path / "scales.py").write_text("def scale(\n")
        server.wait_for(r"scales\.py:1: SyntaxError: '\(' was never closed; what was loaded of it goes on")
        assert answer(server, 3)["outputs"][0]["data"] == [3]
        assert "is not healthy" in answer(server, -1)["error"]
        while "error" in (again := answer(server, 3)):  # until the process has been started again
            assert "Request for unknown model" in again["error"] or "not ready" in again["error"], again
        assert again["outputs"][0]["data"] == [3], "of the code as it was"

        app.write_text(text.replace("def f", "def f(x) -> FP32[1]: ...\n@model\ndef g"))
        (tmp_path / "scales.py").write_text("def scale():\n    return 2\n")
        server.wait_for(r"app\.py:4: model 'f': parameter 'x' has no annotation")
        assert answer(server, 3)["outputs"][0]["data"] == [3]

        app.write_text(
            text + "@model\nclass Late:\n    def __init__(self):\n        raise OSError('no weights')\n"
            "    def __call__(self, x: FP32[1]) -> FP32[1]: ...\n"
        )
        server.wait_for(r"OSError: no weights\\n\\nAt:\\n  \S*app\.py\(9\): __init__\\n\"")
        server.wait_for(r"(app\.py changed; serving: f[\s\S]*){2}")
        assert answer(server, 3)["outputs"][0]["data"] == [6]

        app.write_text(text.replace("def f", "def renamed"))
        server.wait_for(r"app\.py changed; serving: renamed")
        assert "unknown model" in answer(server, 3)["error"]
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


def test_what_is_in_flight_at_the_end_is_answered(tmp_path: Path) -> None:
    app = write_app(
        tmp_path,
        "import pathlib, time\nfrom trireme import FP32, model\n"
        "@model\ndef slow(x: FP32[1]) -> FP32[1]:\n"
        "    here = pathlib.Path(__file__).parent\n"
        "    (here / 'begun').touch()\n"
        "    print('begun', flush=True)\n"
        "    while not (here / 'go').exists():\n        time.sleep(0.01)\n"
        "    return x\n",
    )
    with app_process(app, "--drain-secs=0") as server:
        answers: list[Any] = []
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
        port = server.http_port
        asking = threading.Thread(target=lambda: answers.append(server.ask("POST", "/v2/models/slow/infer", body)))
        asking.start()
        server.wait_for("begun")
        assert (tmp_path / "begun").exists(), "the app's own directory, not that of a copy"
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Signal")
        (tmp_path / "go").touch()
        asking.join()
        assert answers[0][0] == 200
        assert server.wait() == 0
        assert port
