"""Models execute in processes of their own: every type and size of tensor there and back, whatever the batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from python_models import CONFIG, IDENTITY, ask, fp32, open_repository, write_model

from trireme.engine.datatypes import BF16, BY_NUMBER, BYTES, DATATYPES, DataType
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor, pack_bytes
from trireme.python_backend.child.channel import Channel

BOTH = """
    backend: "python"
    input [{{ name: "INPUT0" data_type: {type} dims: [ {dims} ] }}]
    output [{{ name: "OUTPUT0" data_type: {type} dims: [ {dims} ] }}]
"""

PASS_ON = """
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
                out = pb_utils.Tensor.from_dlpack("OUTPUT0", tensor) if {dlpack} else pb_utils.Tensor(
                    "OUTPUT0", tensor.as_numpy()
                )
                responses.append(pb_utils.InferenceResponse([out]))
            return responses
"""

ABOUT = """
    import json
    import os

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            self.args = args

        def execute(self, requests):
            return [self.answer(request, len(requests)) for request in requests]

        def answer(self, request, count):
            about = {
                "id": request.request_id(),
                "correlation": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters()),
                "parameters_text": request.parameters(),
                "wanted": sorted(request.requested_output_names()),
                "inputs": [(t.name(), t.shape()) for t in request.inputs()],
                "pid": os.getpid(),
                "count": count,
                "args": self.args,
            }
            text = np.array([json.dumps(about)], dtype=object)
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor("ABOUT", text), pb_utils.Tensor("OTHER", text), pb_utils.Tensor("UNKNOWN", text)],
                parameters={"answer": 42, "yes": True, "text": "ü"},
            )
"""

ABOUT_CONFIG = """
    backend: "python"
    input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] },
           { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1 ] optional: true }]
    output [{ name: "ABOUT" data_type: TYPE_STRING dims: [ 1 ] },
            { name: "OTHER" data_type: TYPE_STRING dims: [ 1 ] }]
"""


def vector(*values: float, name: str = "INPUT0") -> Tensor:
    array = np.array(values, np.float32)
    return Tensor(name, BY_NUMBER[11], array.shape, array.tobytes())


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An identity for each type."""
    repository = tmp_path_factory.mktemp("types")
    for datatype in DATATYPES:
        code = PASS_ON.format(dlpack=datatype is BF16)
        write_model(repository, datatype.name, code, BOTH.format(type=datatype.config_name, dims=-1))
    return repository


def samples(datatype: DataType) -> list[Tensor]:
    """Tensors without elements, with one, with a few, and with more than a message holds."""
    tensors = []
    for count in (0, 1, 5, 40_000):
        if datatype is BYTES:
            content = pack_bytes([bytes([n % 256]) * (n % 7) for n in range(count)])
        else:
            content = bytes(range(256)) * (count * datatype.size // 256 + 1)
            content = content[: count * datatype.size]
            if datatype.name == "BOOL":
                content = bytes(byte % 2 for byte in content)
        tensors.append(Tensor("INPUT0", datatype, (count,), content))
    return tensors


async def test_every_type_comes_back_as_it_was(types: Path) -> None:
    async with open_repository(types) as server, trio.open_nursery() as nursery:

        async def check(datatype: DataType) -> None:
            for tensor in samples(datatype):
                response = await server.infer(InferenceRequest(datatype.name, inputs=[tensor]))
                output = response.output("OUTPUT0")
                assert output.datatype is datatype
                assert output.shape == tensor.shape
                assert bytes(output.buffer) == bytes(tensor.buffer)

        for datatype in DATATYPES:
            nursery.start_soon(check, datatype)


async def test_large_tensors_go_both_ways(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    array = np.arange(16 << 20, dtype=np.float32)
    async with open_repository(tmp_path) as server:
        for _ in range(2):
            response = await server.infer(InferenceRequest("m", inputs=[fp32(array)]))
            np.testing.assert_array_equal(response.output("OUTPUT0").array[0], array)


async def test_answers_stay_as_they_are_while_the_model_goes_on(tmp_path: Path) -> None:
    """They are views of shared memory, which must not be used again while it is referred to."""
    write_model(tmp_path, "m")
    async with open_repository(tmp_path) as server:
        responses = [
            await server.infer(InferenceRequest("m", inputs=[fp32(np.full(50_000, n, np.float32))])) for n in range(40)
        ]
        for number, response in enumerate(responses):
            array = response.output("OUTPUT0").array
            assert array.min() == array.max() == number


async def test_vast_shapes_without_elements_cost_no_process(tmp_path: Path) -> None:
    """What numpy has no array for is refused; the largest that it has arrives as it is."""

    def vast(datatype: DataType, *shape: int) -> InferenceRequest:
        return InferenceRequest(datatype.name, inputs=[Tensor("INPUT0", datatype, shape, b"")])

    datatypes = [BY_NUMBER[11], BYTES]
    for datatype in datatypes:
        both = BOTH.format(type=datatype.config_name, dims="-1, -1")
        write_model(tmp_path, datatype.name, PASS_ON.format(dlpack=False), both)
    async with open_repository(tmp_path) as server:
        for datatype in datatypes:
            most = (2**63 - 1) // (datatype.size or 8)
            for shape in [(0, most + 1), (2**63 - 1, 0)]:
                with pytest.raises(InvalidArgumentError, match="of a shape that is too large"):
                    await server.infer(vast(datatype, *shape))
            for shape in [(0, most), (most, 0), (0, 0)]:
                assert (await server.infer(vast(datatype, *shape))).outputs[0].shape == shape
        assert [model.restarts for model in server.model_statistics()] == [0, 0]


async def test_requests_tell_what_the_client_said(tmp_path: Path) -> None:
    import json

    directory = write_model(tmp_path, "m", ABOUT, ABOUT_CONFIG)
    async with open_repository(tmp_path) as server:
        request = InferenceRequest(
            "m",
            id="r1",
            inputs=[vector(1), vector(1, 2, name="INPUT1")],
            requested_outputs=("ABOUT",),
            parameters={"text": "é", "number": 7, "flag": True, "real": 0.5},
            timeout_us=1000,
        )
        response = await server.infer(request)
        assert response.parameters == {"answer": 42, "yes": True, "text": "ü"}
        assert [output.name for output in response.outputs] == ["ABOUT"]
        about = json.loads(response.outputs[0].array[0])
        assert about["id"] == "r1"
        assert about["timeout"] == 1000
        assert about["parameters"] == {"text": "é", "number": 7, "flag": True, "real": 0.5}
        text = about["parameters_text"]
        assert text == '{"text":"é","number":7,"flag":true,"real":0.5}', "as Triton writes them"
        assert about["wanted"] == ["ABOUT"]
        assert sorted(about["inputs"]) == [["INPUT0", [1]], ["INPUT1", [2]]]
        assert about["pid"] != os.getpid()
        args = about["args"]
        assert json.loads(args.pop("model_config"))["name"] == "m"
        assert args == {
            "model_instance_kind": "CPU",
            "model_instance_name": "m_0",
            "model_instance_device_id": "0",
            "model_repository": str(directory),
            "model_version": "1",
            "model_name": "m",
        }
        response = await server.infer(InferenceRequest("m", inputs=[vector(1)]))
        assert [output.name for output in response.outputs] == ["ABOUT", "OTHER"], "unknown outputs are dropped"
        about = json.loads(response.outputs[0].array[0])
        assert about["wanted"] == ["ABOUT", "OTHER"]
        assert [name for name, _ in about["inputs"]] == ["INPUT0"]
        assert (about["id"], about["correlation"], about["flags"], about["parameters"]) == ("", 0, 0, {})


async def test_a_batch_is_executed_together_and_errors_hit_their_own_request(tmp_path: Path) -> None:
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                responses = []
                for request in requests:
                    value = request.inputs()[0].as_numpy()
                    if value[0, 0] < 0:
                        error = pb_utils.TritonError("negative", pb_utils.TritonError.INVALID_ARG)
                        responses.append(pb_utils.InferenceResponse(error=error))
                        continue
                    together = np.full((value.shape[0], 1), len(requests), np.float32)
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", together)]))
                return responses
    """
    batching = CONFIG + "\ndynamic_batching { max_queue_delay_microseconds: 30000000 }"
    write_model(tmp_path, "m", code, batching)
    async with open_repository(tmp_path) as server:
        answers: dict[int, object] = {}

        async def infer(value: int) -> None:
            try:
                answers[value] = (await server.infer(ask("m", value))).outputs[0].array.tolist()
            except TriremeError as error:
                answers[value] = (type(error).__name__, error.message)

        async with trio.open_nursery() as nursery:
            for value in (-1, 0, 1, 2, 3, 4, 5, 6):
                nursery.start_soon(infer, value)
        assert answers.pop(-1) == ("InvalidArgumentError", "negative")
        assert answers == {value: [[8.0]] for value in range(7)}
        (entry,) = server.statistics()
        assert entry.statistics.execution_count == 1


async def test_instances_are_processes_of_their_own_and_work_side_by_side(tmp_path: Path) -> None:
    """Two requests wait for each other, which only works in two processes at once."""
    code = """
        import os
        import time

        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                here = os.path.join(pb_utils.get_model_dir(), str(os.getpid()))
                open(here, "w").close()
                while len([n for n in os.listdir(pb_utils.get_model_dir()) if n.isdigit()]) < 2:
                    time.sleep(0.01)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())])
                        for r in requests]
    """
    write_model(tmp_path, "m", code, CONFIG + "instance_group [{ kind: KIND_CPU count: 2 }]")
    async with open_repository(tmp_path) as server, trio.open_nursery() as nursery:
        nursery.start_soon(server.infer, ask("m", 1))
        nursery.start_soon(server.infer, ask("m", 2))
    pids = [name for name in os.listdir(tmp_path / "m" / "1") if name.isdigit()]
    assert len(pids) == 2


async def test_an_exception_fails_the_batch_with_the_users_frames(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                return self.inner()

            def inner(self):
                raise ValueError("no such thing")
    """
    directory = write_model(tmp_path, "m", code)
    path = directory / "1" / "model.py"
    async with open_repository(tmp_path) as server:
        with pytest.raises(InternalError) as caught:
            await server.infer(ask("m", 1))
        assert caught.value.message == (
            "Failed to process the request(s) for model 'm_0', message: ValueError: no such thing\n\nAt:\n"
            f"  {path}(7): inner\n  {path}(4): execute\n"
        )
        with pytest.raises(InternalError):  # it lives on
            await server.infer(ask("m", 1))
        (actor,) = server.model_statistics()
        assert actor.restarts == 0


async def test_elements_that_are_no_text_are_sent_as_theirs(tmp_path: Path) -> None:
    """As Triton does with columns of objects: numbers, None, and what has a text of its own."""
    elements = "[[b'\\xff', 'ä', 7, 1.5, None, True, b'']]"
    write_model(tmp_path, "m", IDENTITY.replace("tensor.as_numpy()", f"__import__('numpy').array({elements}, object)"))
    async with open_repository(tmp_path) as server:
        (output,) = (await server.infer(ask("m", 1))).outputs
        assert output.array.tolist() == [[b"\xff", "ä".encode(), b"7", b"1.5", b"None", b"True", b""]]


async def test_what_cannot_be_sent_is_an_error_of_its_request(tmp_path: Path) -> None:
    mute = "type('Mute', (), {'__str__': lambda self: 1 / 0})"
    code = IDENTITY.replace("tensor.as_numpy()", f"__import__('numpy').array([[{mute}()]])")
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        for _ in range(2):  # it lives on
            with pytest.raises(
                InternalError, match="tensor 'OUTPUT0' has an element without a text: ZeroDivisionError"
            ):
                await server.infer(ask("m", 1))
        assert server.model_statistics()[0].restarts == 0


@pytest.mark.parametrize("broken", [OSError, MemoryError])
async def test_a_request_that_cannot_be_handed_on_is_refused_and_the_next_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: type[Exception]
) -> None:
    """Parameters that no protocol could have brought; and no memory."""
    write_model(tmp_path, "m")
    async with open_repository(tmp_path) as server:
        with trio.fail_after(30):
            with pytest.raises(InvalidArgumentError, match="a request for 'm_0' cannot be sent to its process"):
                await server.infer(ask("m", 1, parameters={"what": object()}))
            with monkeypatch.context() as patch:
                patch.setattr(Channel, "prepare", raising(broken()))
                with pytest.raises(InternalError, match="no shared memory for the inputs"):
                    await server.infer(ask("m", 1))
            assert (await server.infer(ask("m", 2))).outputs[0].array.tolist() == [[2]]
        assert server.model_statistics()[0].restarts == 0


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


async def test_a_sender_may_answer_after_execute_of_an_ordinary_model(tmp_path: Path) -> None:
    code = """
        import threading

        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    threading.Thread(target=self.answer, args=(request.get_response_sender(), request)).start()

            def answer(self, sender, request):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        for value in range(20):
            response = await server.infer(ask("m", value))
            assert response.outputs[0].array.tolist() == [[value]]


async def test_inputs_can_be_written_to(tmp_path: Path) -> None:
    """Models that normalise in place must not break, nor spoil what the client sent."""
    code = IDENTITY.replace("responses.append", "tensor.as_numpy()[...] /= 2\n                responses.append")
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        request = ask("m", 2, 4)
        for _ in range(2):
            assert (await server.infer(request)).outputs[0].array.tolist() == [[1, 2]]


async def test_inputs_may_be_kept_after_execute(tmp_path: Path) -> None:
    code = """
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def initialize(self, args):
                self.kept = None

            def execute(self, requests):
                answer, self.kept = self.kept, requests[0].inputs()[0].as_numpy()
                if answer is None:
                    answer = self.kept
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer)])]
    """
    write_model(tmp_path, "m", code, BOTH.format(type="TYPE_FP32", dims=-1))
    async with open_repository(tmp_path) as server:
        for number in range(6):
            tensor = vector(*[number] * 50_000)
            response = await server.infer(InferenceRequest("m", inputs=[tensor]))
            assert set(response.outputs[0].array.tolist()) == {max(number - 1, 0)}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise ValueError('caf\\udce9 é')", "ValueError: caf? é"),
        ("return [pb_utils.InferenceResponse(error=pb_utils.TritonError('\\ud800'))]", "?"),
        (
            "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', np.array([['\\ud800']], object))])]",
            "tensor 'OUTPUT0' has an element that is no text: 'utf-8' codec can't encode character '\\ud800'",
        ),
    ],
)
async def test_half_a_character_is_no_harm(tmp_path: Path, body: str, told: str) -> None:
    """What cannot be UTF-8 reaches no front end, and does not end the process."""
    code = f"""
        import numpy as np
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                {body}
"""
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        with pytest.raises(InternalError) as caught:
            await server.infer(ask("m", 1))
        assert told in caught.value.message
        caught.value.message.encode()
        (actor,) = server.model_statistics()
        assert actor.restarts == 0
