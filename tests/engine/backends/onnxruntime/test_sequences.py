"""ONNX models of sequences: what their graphs must offer (docs/reference/backends.md#checks-against-the-graph), and
what they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper

from trireme.engine.backends.interface import Completion, InstanceSpec
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.clock import SystemClock
from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfig, ModelConfigMessage, ModelInput, ModelOutput
from trireme.engine.config.sequence import sequence_batching
from trireme.engine.datatypes import BF16, BYTES, INT32, DataType
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError, UnsupportedError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.scheduling.sequence.controls import Controls
from trireme.engine.scheduling.sequence.initial_state import state_layout
from trireme.engine.scheduling.sequence.strategies import NullJob
from trireme.engine.tensor import Tensor

START = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
CORRID = 'control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
STATE = 'state { input_name: "OLD" output_name: "NEW" data_type: TYPE_INT32 dims: [ 1 ] }'
INPUT = 'input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }'
OUTPUT = 'output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }'


def config(batching: str = START + STATE, max_batch_size: int = 4, tensors: str = INPUT + OUTPUT) -> ModelConfig:
    text = f'name: "m" backend: "onnxruntime" max_batch_size: {max_batch_size} {tensors}'
    return model_config(text_format.Parse(f"{text} sequence_batching {{ {batching} }}", ModelConfigMessage()))


def value(name: str, kind: int = TensorProto.INT32, shape: Any = ("n", 1)) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def counting_model(models: Any, **changed: Any) -> None:
    """Y = X + START, NEW = X + OLD; `changed` are the tensors of the graph that are otherwise."""
    tensors = {name: changed.get(name) or value(name) for name in ("X", "START", "OLD", "Y", "NEW")}
    nodes = [helper.make_node("Add", ["X", "START"], ["Y"]), helper.make_node("Add", ["X", "OLD"], ["NEW"])]
    models.graph(nodes, [tensors["X"], tensors["START"], tensors["OLD"]], [tensors["Y"], tensors["NEW"]])


def refusal(models: Any, kind: type[TriremeError] = InvalidArgumentError, **changes: Any) -> str:
    with pytest.raises(kind) as caught:
        OnnxRuntimeBackend({}).load(config(**changes), models.files)
    return str(caught.value)


# What the graph must offer


def test_controls_and_states_count_as_inputs(models: Any) -> None:
    counting_model(models)
    OnnxRuntimeBackend({}).load(config(), models.files)
    assert refusal(models, batching=STATE) == (
        "unable to load model 'm', configuration expects 2 inputs, model provides 3"
    )
    assert refusal(models, batching=START) == (
        "unable to load model 'm', configuration expects 2 inputs, model provides 3"
    )


def test_a_control_that_the_graph_does_not_have(models: Any) -> None:
    counting_model(models)
    assert refusal(models, InternalError, batching=START.replace("START", "BEGIN", 1) + STATE) == (
        "configuration specified sequence control 'BEGIN', but model does not provide that input"
    )


@pytest.mark.parametrize(("shape", "printed"), [(("n", 2), "[2]"), (("n", "k"), "[-1]"), (("n",), "[]")])
def test_a_control_has_one_element(models: Any, shape: Any, printed: str) -> None:
    counting_model(models, START=value("START", shape=shape), Y=value("Y", shape=("n", "k")))
    assert refusal(models) == (
        f"unable to load model 'm', sequence control 'START' in model has dims {printed} but dims [1] is expected"
    )


def test_a_control_of_a_model_that_does_not_batch_has_one_dimension(models: Any) -> None:
    shape = (1,)
    tensors = {name: value(name, shape=shape) for name in ("X", "START", "OLD", "Y", "NEW")}
    counting_model(models, **tensors)
    OnnxRuntimeBackend({}).load(config(max_batch_size=0), models.files)
    counting_model(models, **{**tensors, "START": value("START", shape=(1, 1)), "Y": value("Y", shape=(1, 1))})
    assert "has dims [1,1] but dims [1] is expected" in refusal(models, max_batch_size=0)


def test_types_of_controls(models: Any) -> None:
    counting_model(models)
    floats = START.replace("int32", "fp32")
    assert refusal(models, batching=floats + STATE) == (
        "unable to load model 'm', sequence control 'START', the model expects data-type INT32 but the model "
        "configuration specifies data-type TYPE_FP32"
    )
    names = CORRID.replace('"CORRID"', '"START"')
    assert refusal(models, batching=names + STATE).endswith(
        "the model expects data-type INT32 but the model configuration specifies data-type TYPE_STRING"
    )


def test_types_of_states(models: Any) -> None:
    counting_model(models)
    assert refusal(models, batching=START + STATE.replace("INT32", "FP32")) == (
        "unable to load model 'm', configuration expects datatype TYPE_FP32 for input state 'OLD', model provides "
        "TYPE_INT32"
    )
    nodes = [
        helper.make_node("Add", ["X", "START"], ["Y"]),
        helper.make_node("Cast", ["OLD"], ["NEW"], to=TensorProto.INT64),
    ]
    models.graph(nodes, [value("X"), value("START"), value("OLD")], [value("Y"), value("NEW", TensorProto.INT64)])
    assert refusal(models) == (
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for output state 'NEW', model provides "
        "TYPE_INT64"
    )


def test_names_of_states(models: Any) -> None:
    counting_model(models)
    assert refusal(models, batching=START + STATE.replace("OLD", "OLDER")) == (
        "unexpected inference input 'OLDER', allowed inputs are: OLD, START, X"
    )
    assert refusal(models, batching=START + STATE.replace("NEW", "NEWER")) == (
        "unexpected inference output 'NEWER', allowed outputs are: NEW, Y"
    )


def test_shapes_of_states(models: Any) -> None:
    counting_model(models)
    assert refusal(models, batching=START + STATE.replace("[ 1 ]", "[ 1, 2 ]")).startswith(
        "model 'm', tensor 'OLD': the model expects 2 dimensions (shape [-1,1]) but the model configuration specifies 3"
    )
    assert "making complete shape [-1,3])" in refusal(models, batching=START + STATE.replace("[ 1 ]", "[ 3 ]"))
    OnnxRuntimeBackend({}).load(config(START + STATE.replace("[ 1 ]", "[ -1 ]")), models.files)


def test_a_state_of_variable_shape_must_begin_with_one_that_fits(models: Any) -> None:
    counting_model(models)
    begin = 'initial_state { name: "b" data_type: TYPE_INT32 dims: [ 2 ] zero_data: true } }'
    state = STATE.replace("[ 1 ]", "[ -1 ]")[:-1] + begin
    assert "making complete shape [-1,2])" in refusal(models, batching=START + state)


def test_a_state_in_bf16_and_strings_cannot_go_together(models: Any) -> None:
    nodes = [helper.make_node("Identity", ["CORRID"], ["Y"]), helper.make_node("Identity", ["OLD"], ["NEW"])]
    text, half = TensorProto.STRING, TensorProto.BFLOAT16
    models.graph(
        nodes,
        [value("X"), value("CORRID", text), value("OLD", half)],
        [value("Y", text), value("NEW", half)],
    )
    tensors = INPUT + OUTPUT.replace("INT32", "STRING")
    batching = CORRID + STATE.replace("INT32", "BF16")
    assert "cannot take the TYPE_STRING input 'CORRID' and return the TYPE_BF16 output 'NEW' in one run" in refusal(
        models, UnsupportedError, tensors=tensors, batching=batching
    )


# Auto-complete


def test_controls_and_states_are_not_completed_as_inputs_and_outputs(models: Any) -> None:
    counting_model(models)
    completion = OnnxRuntimeBackend({}).auto_complete(config(tensors=""), models.files)
    assert isinstance(completion, Completion)
    assert completion.input == (ModelInput("X", INT32, (1,)),)
    assert completion.output == (ModelOutput("Y", INT32, (1,)),)


# Execution


class World:
    """One instance of a model, and the requests of its sequences."""

    def __init__(self, config: ModelConfig, models: Any) -> None:
        batching = sequence_batching(config)
        assert batching is not None
        self.instance = OnnxRuntimeBackend({}).load(config, models.files).create_instance(InstanceSpec("m_0"))
        self.batching = config.max_batch_size > 0
        self.controls = Controls(batching.controls, self.batching)
        self.states = state_layout(batching.states, self.batching, Path("nowhere"))

    def job(self, inputs: dict[str, Tensor], state: Any = None, *, key: int | str = 1, start: bool = False) -> Job:
        """A request as a scheduler completes it."""
        if self.states is not None and state is None:
            state = self.states.start()
        inputs = {**inputs, **self.controls.inputs(key, start, False), **(state.inputs if state else {})}
        job = Job(InferenceRequest("m"), inputs, 1, "m", 1, _NoReply())
        job.state = state
        return job

    def null(self, like: Job) -> NullJob:
        return NullJob(like, self.controls)

    def run(self, *jobs: Job) -> list[Any]:
        """Execute a batch: for each job its outputs by name, its error, or None."""
        batch = ExecutionBatch(jobs, "m_0", SystemClock())
        try:
            self.instance.execute(batch)
        except TriremeError as error:
            batch.finish(error)
        answers = {id(job): outcome for job, outcome, _ in batch.answers}
        return [
            {tensor.name: tensor.array.tolist() for tensor in outcome.outputs}
            if isinstance(outcome, InferenceResponse)
            else outcome
            for outcome in (answers.get(id(job)) for job in jobs)
        ]


class _NoReply:
    def deliver(self, outcome: Any, final: bool) -> bool:
        raise AssertionError("answers of a batch are collected, not delivered")


def x(*values: Any, datatype: DataType = INT32, name: str = "X") -> dict[str, Tensor]:
    """One row, as a request brings it."""
    array = np.empty((1, len(values)), datatype.storage)
    array[0] = values
    return {name: Tensor(name, datatype, array.shape, bytes(Tensor(name, datatype, array.shape, array=array).buffer))}


def kept(job: Job, name: str = "OLD") -> Any:
    return job.state.inputs[name].array.tolist()


def test_each_row_has_its_own_controls_and_state(models: Any) -> None:
    counting_model(models)
    world = World(config(), models)
    first, second = world.job(x(5), start=True), world.job(x(7))
    first.state.inputs["OLD"] = Tensor("OLD", INT32, (1, 1), array=np.array([[100]], np.int32))
    again = world.job(x(5), first.state, start=True)
    assert world.run(again, world.null(again), second) == [{"Y": [[6]]}, {"Y": [[0]]}, {"Y": [[7]]}]
    assert (kept(again), kept(second)) == ([[105]], [[7]])
    assert world.run(world.job(x(1), second.state)) == [{"Y": [[1]]}]
    assert kept(second) == [[8]]


def test_a_state_that_is_an_output_too_is_answered_if_the_client_asks(models: Any) -> None:
    counting_model(models)
    world = World(config(tensors=INPUT + OUTPUT + OUTPUT.replace('"Y"', '"NEW"')), models)
    first, second = world.job(x(5)), world.job(x(7))
    second.request.requested_outputs = ("Y",)
    assert world.run(first, second) == [{"Y": [[5]], "NEW": [[5]]}, {"Y": [[7]]}]
    assert (kept(first), kept(second)) == ([[5]], [[7]])


def test_a_model_may_have_no_output_but_its_state(models: Any) -> None:
    models.graph([helper.make_node("Add", ["X", "OLD"], ["NEW"])], [value("X"), value("OLD")], [value("NEW")])
    world = World(config(STATE, tensors=INPUT), models)
    job = world.job(x(5))
    assert world.run(job) == [{}]
    assert kept(job) == [[5]]


@pytest.mark.parametrize("same_buffer", [False, True])
def test_without_batching_the_state_has_the_shape_that_the_model_makes(models: Any, same_buffer: bool) -> None:
    """It remembers everything it has seen."""
    models.graph(
        [helper.make_node("Concat", ["OLD", "X"], ["NEW"], axis=0), helper.make_node("Shape", ["OLD"], ["Y"])],
        [value("X", shape=(1,)), value("OLD", shape=("k",))],
        [value("Y", TensorProto.INT64, (1,)), value("NEW", shape=("j",))],
    )
    state = STATE.replace("[ 1 ]", "[ -1 ]")[:-1] + f"use_same_buffer_for_input_output: {str(same_buffer).lower()} }}"
    world = World(config(state, 0, INPUT + OUTPUT.replace("INT32", "INT64")), models)
    job = world.job({"X": Tensor("X", INT32, (1,), array=np.array([5], np.int32))})
    assert world.run(job) == [{"Y": [1]}]
    job = world.job({"X": Tensor("X", INT32, (1,), array=np.array([6], np.int32))}, job.state)
    assert world.run(job) == [{"Y": [2]}]
    assert kept(job) == [0, 5, 6]


def test_states_of_strings_and_ids_that_are_strings(models: Any) -> None:
    text = TensorProto.STRING
    models.graph(
        [helper.make_node("Identity", ["OLD"], ["Y"]), helper.make_node("Identity", ["CORRID"], ["NEW"])],
        [value("X"), value("OLD", text), value("CORRID", text)],
        [value("Y", text), value("NEW", text)],
    )
    batching = CORRID + STATE.replace("INT32", "STRING")
    world = World(config(batching, tensors=INPUT + OUTPUT.replace("INT32", "STRING")), models)
    job = world.job(x(0), key="größer")
    assert world.run(job, world.null(job)) == [{"Y": [[b""]]}, {"Y": [[b""]]}]
    assert kept(job) == [["größer".encode()]]
    assert world.run(world.job(x(0), job.state, key="größer")) == [{"Y": [["größer".encode()]]}]


def test_states_in_bf16(models: Any) -> None:
    half = TensorProto.BFLOAT16
    models.graph(
        [
            helper.make_node("Cast", ["X"], ["F"], to=half),
            helper.make_node("Concat", ["F", "OLD"], ["both"], axis=1),
            helper.make_node("Gather", ["both", "first"], ["NEW"], axis=1),
            helper.make_node("Cast", ["OLD"], ["O"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["O"], ["Y"], to=TensorProto.INT32),
        ],
        [value("X"), value("OLD", half)],
        [value("Y"), value("NEW", half)],
        [helper.make_tensor("first", TensorProto.INT64, [1], [0])],
    )
    world = World(config(STATE.replace("INT32", "BF16")), models)
    first, second = world.job(x(3)), world.job(x(-2))
    assert world.run(first, second) == [{"Y": [[0]]}, {"Y": [[0]]}]
    assert first.state.inputs["OLD"].datatype is BF16
    assert world.run(world.job(x(0), first.state), world.job(x(0), second.state)) == [{"Y": [[3]]}, {"Y": [[-2]]}]


def looking_up_model(models: Any) -> None:
    """Y = T[X], which fails where X is too large; NEW = X + OLD."""
    models.graph(
        [helper.make_node("Gather", ["T", "X"], ["Y"]), helper.make_node("Add", ["X", "OLD"], ["NEW"])],
        [value("X"), value("OLD")],
        [value("Y"), value("NEW")],
        [helper.make_tensor("T", TensorProto.INT32, [4], [1, 2, 3, 4])],
    )


def test_a_run_that_fails_leaves_all_states_as_they_were(models: Any) -> None:
    looking_up_model(models)
    world = World(config(STATE), models)
    first, second = world.job(x(2)), world.job(x(3))
    world.run(first, second)
    assert all(isinstance(each, InternalError) for each in world.run(world.job(x(1), first.state), world.job(x(9))))
    assert world.run(world.job(x(1), second.state)) == [{"Y": [[2]]}]
    assert (kept(first), kept(second)) == ([[2]], [[4]])


@pytest.mark.parametrize(("output", "text"), [("NEW", "state 'NEW'"), ("Y", "output tensor 'Y'")])
def test_outputs_with_too_few_rows_fail_requests_and_their_states_stay(models: Any, output: str, text: str) -> None:
    """The model gives back one row however many it gets."""
    other = "Y" if output == "NEW" else "NEW"
    models.graph(
        [
            helper.make_node("Add", ["X", "OLD"], [other]),
            helper.make_node("Slice", ["X", "zero", "one", "zero"], [output]),
        ],
        [value("X"), value("OLD")],
        [value("Y"), value("NEW")],
        [helper.make_tensor(name, TensorProto.INT64, [1], [at]) for at, name in enumerate(("zero", "one"))],
    )
    world = World(config(STATE), models)
    first, second = world.job(x(2)), world.job(x(3))
    answers = world.run(first, second)
    assert text in str(answers[1])
    assert isinstance(answers[1], TriremeError)
    assert isinstance(answers[0], TriremeError) == (output == "NEW")
    assert (kept(first), kept(second)) == ([[0 if output == "NEW" else 2]], [[0]])


def test_text_that_is_none_fails_its_request_and_neither_moves_rows_nor_states(models: Any) -> None:
    """The counter shows which row got which state."""
    text = TensorProto.STRING
    models.graph(
        [helper.make_node("Identity", ["X"], ["Y"]), helper.make_node("Add", ["OLD", "one"], ["NEW"])],
        [value("X", text), value("OLD")],
        [value("Y", text), value("NEW")],
        [helper.make_tensor("one", TensorProto.INT32, [1], [1])],
    )
    tensors = (INPUT + OUTPUT).replace("INT32", "STRING")
    world = World(config("direct { }" + STATE, tensors=tensors), models)
    jobs = [world.job(x(each, datatype=BYTES)) for each in (b"a", b"\xff", b"c")]
    first, second, third = world.run(*jobs)
    assert (first, third) == ({"Y": [[b"a"]]}, {"Y": [[b"c"]]})
    assert isinstance(second, InvalidArgumentError)
    assert "input 'X' must hold UTF-8 text, but its element 0 is not" in second.message
    assert [kept(job) for job in jobs] == [[[1]], [[0]], [[1]]]


def test_nothing_runs_when_no_request_is_left(models: Any) -> None:
    text = TensorProto.STRING
    models.graph(
        [helper.make_node("Identity", ["X"], ["Y"]), helper.make_node("Identity", ["OLD"], ["NEW"])],
        [value("X", text), value("OLD")],
        [value("Y", text), value("NEW")],
    )
    world = World(config("direct { }" + STATE, tensors=(INPUT + OUTPUT).replace("INT32", "STRING")), models)
    world.instance.close()  # a run would fail now, with another error
    (error,) = world.run(world.job(x(b"\xff", datatype=BYTES)))
    assert isinstance(error, InvalidArgumentError)
