"""The life of a `TritonPythonModel`: imported, completed, made, executed, finalized; its mistakes told to its author.

The texts were recorded from Triton.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from recording_host import RecordingHost, executed

from trireme.python_backend.child.utils.errors import TritonError
from trireme.python_backend.child.utils.request import InferenceRequest
from trireme.python_backend.child.utils.response import InferenceResponse
from trireme.python_backend.child.utils.runner import ModelError, Runner
from trireme.python_backend.child.utils.tensor import Tensor

WRAPPED = "Failed to process the request(s) for model 'm_0', message: "

Make = Callable[..., Runner]

ANSWERS = """
    import triton_python_backend_utils as pb_utils
    import numpy as np

    def answer():
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([7], np.int32))])

    class TritonPythonModel:
        def execute(self, requests):
"""


@pytest.fixture
def make(tmp_path: Path, host: RecordingHost) -> Iterator[Make]:
    """Writes a model, and makes a runner for it; `body` is the indented rest of `ANSWERS` instead of a whole file."""
    made: list[Runner] = []

    def write(text: str = "", body: str = "", initialize: bool = True) -> Runner:
        directory = tmp_path / "m" / "1"
        directory.mkdir(parents=True, exist_ok=True)
        source = dedent(text) if text else dedent(ANSWERS) + "\n".join(" " * 8 + line for line in body.splitlines())
        (directory / "model.py").write_text(source)
        args = {"model_name": "m", "model_version": "1", "model_repository": str(tmp_path / "m")}
        runner = Runner(host, str(directory / "model.py"), args)
        made.append(runner)
        if initialize:
            runner.initialize()
        return runner

    yield write
    for runner in made:
        runner.finalize()
    assert not {"1", "1.model"} & set(sys.modules)
    assert not [path for path in sys.path if path.startswith(str(tmp_path))]


def texts(responses: list[InferenceResponse | None]) -> list[str | None]:
    """The error texts, "" for a response without an error."""
    errors = [response and (response._error or TritonError("")) for response in responses]
    return [error and error.message() for error in errors]


def outputs(response: InferenceResponse | None) -> list[Any]:
    assert response is not None
    assert not response.has_error()
    return [output.as_numpy().tolist() for output in response.output_tensors()]


def requests_of(host: RecordingHost, count: int) -> list[InferenceRequest]:
    return [host.request(key, Tensor("IN", np.zeros(1))) for key in range(count)]


def test_life_of_a_model(make: Make, host: RecordingHost, tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "helper.py").write_text("NAME = __name__")
    (tmp_path / "m" / "other.py").write_text("NUMBER = 5")
    runner = make("""
        import triton_python_backend_utils as pb_utils
        from .helper import NAME
        import helper
        import other
        import numpy as np

        class TritonPythonModel:
            def __init__(self):
                self.told = [__name__, NAME, helper.NAME, str(other.NUMBER)]

            def initialize(self, args):
                self.told += [args["model_version"], pb_utils.get_model_dir()]

            def execute(self, requests):
                tensor = pb_utils.Tensor("OUT", np.array(self.told, dtype=object))
                return [pb_utils.InferenceResponse([tensor]) for _ in requests]

            def finalize(self):
                pb_utils.Logger.log_warn("finalized")
    """)
    told = ["1.model", "1.helper", "helper", "5", "1", str(tmp_path / "m" / "1")]
    assert [outputs(response) for response in executed(runner, requests_of(host, 2))] == [[told]] * 2
    runner.finalize()
    assert [(level, message) for level, _, _, message in host.logged] == [("WARNING", "finalized")]


def test_model_without_initialize_and_finalize(make: Make, host: RecordingHost) -> None:
    runner = make(body="return [answer() for _ in requests]")
    assert outputs(executed(runner, requests_of(host, 1))[0]) == [[7]]


def test_exception_fails_the_batch_and_is_logged_with_the_users_line(
    make: Make, host: RecordingHost, tmp_path: Path
) -> None:
    runner = make("""
        def helper(x):
            raise ValueError("no way " + str(x))

        class TritonPythonModel:
            def execute(self, requests):
                helper(1)
    """)
    path = tmp_path / "m" / "1" / "model.py"
    text = f"{WRAPPED}ValueError: no way 1\n\nAt:\n  {path}(3): helper\n  {path}(7): execute\n"
    assert texts(executed(runner, requests_of(host, 2))) == [text, text]
    assert host.logged == [("ERROR", str(path), 3, text)]


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        ("pb_utils.TritonModelException('model exc')", "TritonModelException: model exc"),
        ("KeyError('k')", "KeyError: 'k'"),
        ("AssertionError", "AssertionError: <EMPTY MESSAGE>"),
        ("type('My', (Exception,), {})('a', 'b')", "My: ('a', 'b')"),
        ("SystemExit(3)", "SystemExit: 3"),
        ("type('Sly', (Exception,), {'__str__': lambda self: 1 / 0})()", "Sly: <no text: ZeroDivisionError>"),
    ],
)
def test_exceptions_are_told_as_triton_does(make: Make, host: RecordingHost, raised: str, text: str) -> None:
    runner = make(body=f"raise {raised}")
    (told,) = texts(executed(runner, requests_of(host, 1)))
    assert told is not None
    assert told.startswith(f"{WRAPPED}{text}\n\nAt:\n")
    assert told.endswith("(10): execute\n")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return {'a': 1}", "Expected a list in the execute return, found type '<class 'dict'>'."),
        ("return (answer(),)", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        (
            "return [answer(), 5]",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
        (
            "return []",
            (
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:0\n"
            ),
        ),
        (
            "requests[0].set_release_flags(2)\nreturn [answer(), answer()]",
            (
                "Expected a None object in the execute function return list for reschduled request, found type "
                "'<class '1.unheard.InferenceResponse'>'."
            ),
        ),
    ],
)
def test_wrong_results_fail_the_batch(make: Make, host: RecordingHost, body: str, text: str) -> None:
    text = text.replace("<class '1.unheard.InferenceResponse'>", str(InferenceResponse))
    requests = requests_of(host, 2)
    assert texts(executed(make(body=body), requests)) == [WRAPPED + text] * 2
    assert [request._release_flags for request in requests] == [1, 1]


@pytest.mark.parametrize("body", ["requests.clear()", "requests.append(None)", "requests[:] = [None, None]"])
def test_the_list_of_requests_is_the_models_own(make: Make, host: RecordingHost, body: str) -> None:
    """It may be taken apart, as by who pops one request after the other."""
    runner = make(body=f"{body}\nreturn [answer(), answer()]")
    assert texts(executed(runner, requests_of(host, 2))) == ["", ""]


def test_responses_with_errors_stand_as_they_are(make: Make, host: RecordingHost) -> None:
    error = "pb_utils.InferenceResponse(error=pb_utils.TritonError('mine', pb_utils.TritonError.NOT_FOUND))"
    assert texts(executed(make(body=f"return [answer(), {error}]"), requests_of(host, 2))) == ["", "mine"]


def test_model_without_execute(make: Make, host: RecordingHost, tmp_path: Path) -> None:
    path = tmp_path / "m" / "1" / "model.py"
    runner = make("class TritonPythonModel: ...")
    text = f"{WRAPPED}Python model {path} does not implement `execute` method."
    assert texts(executed(runner, requests_of(host, 1))) == [text]


def test_none_is_right_for_what_a_sender_has_answered(make: Make, host: RecordingHost) -> None:
    runner = make(body="requests[0].get_response_sender().send(answer(), 1)\nreturn [None, answer()]")
    assert texts(executed(runner, requests_of(host, 2))) == [None, ""]
    assert [(key, flags) for key, _, flags in host.sent] == [(0, 1)]


def test_second_response_fails_only_what_is_open(make: Make, host: RecordingHost) -> None:
    runner = make(body="requests[0].get_response_sender().send(answer(), 1)\nreturn [answer(), answer()]")
    text = f"{WRAPPED}Unable to send response. Non-decoupled model cannot send more than one response."
    assert texts(executed(runner, requests_of(host, 2))) == [None, text]


@pytest.mark.parametrize("body", ["return None", "return [None]", "requests[0].get_response_sender()"])
def test_request_that_cannot_be_answered_is_abandoned(make: Make, host: RecordingHost, body: str) -> None:
    for decoupled in (False, True):
        host.decoupled = decoupled
        runner = make(body=body if not decoupled else "return None")
        assert executed(runner, requests_of(host, 1)) == [None]
        gc.collect()
        assert host.abandoned == [0]
        host.abandoned.clear()


def test_request_that_is_kept_can_be_answered_later(make: Make, host: RecordingHost) -> None:
    runner = make(body="self.kept = requests")
    assert executed(runner, requests_of(host, 1)) == [None]
    gc.collect()
    assert host.abandoned == []
    runner._model.kept[0].get_response_sender().send(InferenceResponse([]))
    assert [(key, flags) for key, _, flags in host.sent] == [(0, 1)]


def test_rescheduled_request_is_neither_answered_nor_abandoned(make: Make, host: RecordingHost) -> None:
    host.decoupled = True
    runner = make(body="for r in requests: r.get_response_sender(); r.set_release_flags(2)")
    requests = requests_of(host, 1)
    assert executed(runner, requests) == [None]
    assert requests[0]._release_flags == 2
    del requests
    gc.collect()
    assert host.abandoned == host.sent == []


def test_decoupled_model_must_return_none(make: Make, host: RecordingHost) -> None:
    host.decoupled = True
    text = f"{WRAPPED}Python model 'm_0' is using the decoupled mode and the execute function must return None."
    assert texts(executed(make(body="return []"), requests_of(host, 1))) == [text]


def test_exception_of_a_decoupled_model_ends_what_is_open(make: Make, host: RecordingHost) -> None:
    host.decoupled = True
    runner = make(
        body="requests[0].get_response_sender().send(flags=1)\nself.s = requests[1].get_response_sender()\n"
        "self.s.send(answer())\nraise ValueError('dec')"
    )
    first, second = texts(executed(runner, requests_of(host, 2)))
    assert first is None
    assert second is not None
    assert "ValueError: dec" in second
    with pytest.raises(Exception, match="Response sender has been closed"):
        runner._model.s.send(InferenceResponse([]))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 5", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        (
            "import nonexistent_q",
            "ModuleNotFoundError: No module named 'nonexistent_q'\n\nAt:\n  {path}(1): <module>\n",
        ),
        ("\ndef f(:", "SyntaxError: invalid syntax (model.py, line 2)\n\nAt:\n  {path}(2): <module>\n"),
    ],
)
def test_what_cannot_be_imported_is_told(make: Make, tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ModelError) as caught:
        make(text)
    assert str(caught.value) == told.format(path=tmp_path / "m" / "1" / "model.py")
    assert not {"1", "1.model"} & set(sys.modules)
    assert not [path for path in sys.path if path.startswith(str(tmp_path))]


def test_import_leaves_nothing_in_the_repository(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that follows its repository would load the model again."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "helper.py").touch()
    make("from . import helper\nclass TritonPythonModel: ...")
    assert sorted(path.name for path in (tmp_path / "m").rglob("*")) == ["1", "helper.py", "model.py"]
    assert sys.dont_write_bytecode is False


def test_missing_file_is_told(tmp_path: Path, host: RecordingHost) -> None:
    path = tmp_path / "model.py"
    with pytest.raises(ModelError) as caught:
        Runner(host, str(path), {"model_version": "1", "model_repository": str(tmp_path)})
    assert str(caught.value) == f"Python model file not found in '{path}'"


def test_exception_in_initialize_is_told(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        make("""
            class TritonPythonModel:
                def initialize(self, args):
                    raise KeyError("boo")
        """)
    assert str(caught.value) == f"KeyError: 'boo'\n\nAt:\n  {tmp_path / 'm' / '1' / 'model.py'}(4): initialize\n"


def test_exception_in_finalize_is_logged(make: Make, host: RecordingHost) -> None:
    runner = make("""
        class TritonPythonModel:
            def finalize(self):
                raise ValueError("in finalize")
    """)
    runner.finalize()
    ((level, _, line, message),) = host.logged
    assert (level, line) == ("ERROR", 4)
    assert message.startswith("ValueError: in finalize\n\nAt:\n")


def test_configuration_is_completed(make: Make) -> None:
    runner = make(
        """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.set_max_batch_size(8)
                return config
        """,
        initialize=False,
    )
    assert json.loads(runner.auto_complete('{"name": "m", "max_batch_size": 0}'))["max_batch_size"] == 8


def test_server_is_not_asked_for_anything_but_logging_while_the_configuration_is_completed(
    make: Make, host: RecordingHost
) -> None:
    """Triton hangs on the first of these."""
    runner = make(
        """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                counter = pb_utils.MetricFamily.COUNTER
                family = lambda name: pb_utils.MetricFamily(name=name, description="", kind=counter)
                for call in (pb_utils.load_model, pb_utils.unload_model, pb_utils.is_model_ready, family):
                    try:
                        call("x")
                    except pb_utils.TritonModelException as error:
                        pb_utils.Logger.log_info(str(error))
                return config
        """,
        initialize=False,
    )
    runner.auto_complete('{"name": "m"}')
    names = ["load_model", "unload_model", "is_model_ready", "MetricFamily"]
    assert [message.split()[0] for *_, message in host.logged] == names
    assert all("is not available before initialize" in message for *_, message in host.logged)
    assert host.calls == []


def test_configuration_is_left_alone_by_a_model_that_does_not_complete_it(make: Make) -> None:
    assert make("class TritonPythonModel: ...", initialize=False).auto_complete('{"name":"m"}') == '{"name":"m"}'


def test_completion_must_return_a_configuration(make: Make) -> None:
    runner = make(
        """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                return 5
        """,
        initialize=False,
    )
    with pytest.raises(ModelError) as caught:
        runner.auto_complete('{"name": "m"}')
    assert str(caught.value) == (
        "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."
    )


def test_other_models_may_be_asked_during_execute_only(make: Make, host: RecordingHost) -> None:
    runner = make("""
        import triton_python_backend_utils as pb_utils
        import numpy as np

        def ask():
            try:
                pb_utils.InferenceRequest(model_name="x", inputs=[], requested_output_names=[]).exec()
            except KeyError:
                return "asked"
            except pb_utils.TritonModelException as error:
                return str(error)

        class TritonPythonModel:
            def initialize(self, args):
                self.told = [ask()]

            def execute(self, requests):
                self.told.append(ask())

            def finalize(self):
                pb_utils.Logger.log_info(str([*self.told, ask()]))
    """)
    executed(runner, requests_of(host, 1))
    runner.finalize()
    refused = "BLS is only supported during the 'execute' function."
    assert host.logged[-1][3] == str([refused, "asked", refused])


@pytest.mark.parametrize(("says", "ready"), [("True", True), ("False", False)])
def test_model_says_whether_it_is_ready(make: Make, says: str, ready: bool) -> None:
    assert make(f"class TritonPythonModel:\n    def is_ready(self): return {says}").is_ready() is ready


def test_model_that_does_not_say_is_ready(make: Make) -> None:
    assert make("class TritonPythonModel: ...").is_ready() is True


@pytest.mark.parametrize(
    ("body", "text"),
    [("return 1", "is_ready() must return a boolean value"), ("1 / 0", "ZeroDivisionError: division by")],
)
def test_readiness_must_be_a_boolean(make: Make, body: str, text: str) -> None:
    with pytest.raises(ModelError) as caught:
        make(f"class TritonPythonModel:\n    def is_ready(self): {body}").is_ready()
    assert str(caught.value).startswith(text)


def test_two_models_in_one_process_keep_to_themselves(tmp_path: Path, host: RecordingHost) -> None:
    """In the server's own process each model gets a package of its own, and its own directory."""
    source = "class TritonPythonModel:\n    def execute(self, requests): raise ValueError(NAME)\n"
    runners = []
    for name in ("a", "b"):
        directory = tmp_path / name / "1"
        directory.mkdir(parents=True)
        (directory / "helper.py").write_text(f"NAME = {name!r}")
        (directory / "model.py").write_text("from .helper import NAME\n" + source)
        args = {"model_name": name, "model_version": "1", "model_repository": str(tmp_path / name)}
        runners.append(Runner(host, str(directory / "model.py"), args, package=f"model_{name}"))
    for runner, name in zip(runners, ("a", "b"), strict=True):
        runner.initialize()
        (text,) = texts(executed(runner, requests_of(host, 1)))
        assert text is not None
        assert f"ValueError: {name}\n" in text
    for runner in runners:
        runner.finalize()
