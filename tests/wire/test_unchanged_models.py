"""Models that were written for Triton, and that rely on how it hosts them, as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from calling_models import DECOUPLED, HEAD, REPEAT, TEXT
from python_models import IDENTITY, write_model

TESTING = """
    import unittest

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class Additions(unittest.TestCase):
        def test_addition(self):
            self.assertEqual(1 + 1, 2)


    class TritonPythonModel:
        def execute(self, requests):
            found = unittest.main("model", exit=False).result
            text = f"{found.testsRun} run, {len(found.errors)} errors"
            tensor = pb_utils.Tensor("OUTPUT0", np.array([[text]], object))
            return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""

LISTENING = (
    HEAD
    + """
        def execute(self, requests):
            heard = []
            for value in (2, 0):
                parts = call("counting", value).exec(decoupled=True)
                first = [len(part.output_tensors()) for part in parts]
                heard.append((first, [len(part.output_tensors()) for part in parts]))
            heard.append([len(part.output_tensors()) for part in call("identity", 1).exec(decoupled=True)])
            return [text(heard)]
"""
)

CLUMSY = (
    HEAD
    + """
        def execute(self, requests):
            try:
                pb_utils.load_model(5)
            except TypeError:
                return [text("a TypeError")]
"""
)

FORKING = (
    HEAD
    + """
        def execute(self, requests):
            with multiprocessing.get_context("fork").Pool(3) as pool:
                heard = pool.map(ask_around, range(3))
            heard.append(ask_around(3))
            return [text(json.dumps(heard))]


    import json
    import multiprocessing


    def ask_around(number):
        size = 1 << 18
        same = all(
            (call("identity", *([number + more] * size)).exec().output_tensors()[0].as_numpy() == number + more).all()
            for more in range(3)
        )
        parts = [len(part.output_tensors()) for part in call("counting", 2).exec(decoupled=True)]
        pb_utils.Logger.log_info("asked")
        return bool(same), parts, call("nothing", 1).exec().error().message().split("Model 'nothing'")[0]
"""
)

TYPED = """
    import c_python_backend_utils as c_utils
    import numpy as np
    import triton_python_backend_utils as pb_utils


    def answer(request: c_utils.InferenceRequest) -> c_utils.InferenceResponse:
        known = isinstance(request, pb_utils.InferenceRequest) and c_utils.Tensor is pb_utils.Tensor
        return c_utils.InferenceResponse([c_utils.Tensor("OUTPUT0", np.array([[str(known)]], object))])


    class TritonPythonModel:
        def execute(self, requests):
            return [answer(request) for request in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve: Any) -> Iterator[Any]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_model(repository, "identity", IDENTITY)
    write_model(repository, "counting", REPEAT, DECOUPLED)
    asked = {"testing": TESTING, "listening": LISTENING, "clumsy": CLUMSY, "forking": FORKING, "typed": TYPED}
    for name, code in asked.items():
        write_model(repository, name, code, TEXT)
    with serve(repository) as live:
        yield live


def told(server: Any, model: str) -> str:
    library: Any = grpc_client
    tensor = library.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
    with library.InferenceServerClient(server.grpc_url) as client:
        return client.infer(model, [tensor]).as_numpy("OUTPUT0")[0, 0].decode()


def test_a_model_finds_no_command_line_that_is_not_its_own(server: Any) -> None:
    """As ``unittest.main`` would take it for names of tests, and ``argparse`` for options."""
    assert told(server, "testing") == "1 run, 0 errors"


def test_the_bare_end_of_a_decoupled_answer_is_an_empty_response(server: Any) -> None:
    """So that there is one more than those with outputs, also when they are looked at once more."""
    assert told(server, "listening") == "[([1, 1, 0], [1, 1, 0]), ([0], [0]), [1]]"


def test_a_model_that_asks_for_nonsense_is_told_so(server: Any) -> None:
    assert told(server, "clumsy") == "a TypeError"


def test_the_classes_may_be_imported_from_where_triton_keeps_them(server: Any) -> None:
    """``c_python_backend_utils``, in annotations mostly."""
    assert told(server, "typed") == "True"


def test_processes_that_a_model_forks_may_ask_other_models(server: Any) -> None:
    """Side by side, with large tensors, any number of responses and errors; and the model itself goes on."""
    heard = [
        True,
        [1, 1, 0],
        "Model nothing - Error when running inference: Failed for execute the inference request. ",
    ]
    for _ in range(2):
        assert json.loads(told(server, "forking")) == [heard] * 4
