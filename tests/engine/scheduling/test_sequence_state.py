"""Implicit state (docs/reference/sequences.md#implicit-state): what a request leaves behind is what the next one of its
sequence gets."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sequence_world import World, make_plan, real, sequence_job

from trireme.engine.config.sequence import (
    DirectStrategy,
    ImplicitState,
    InitialState,
    OldestStrategy,
    SequenceBatching,
)
from trireme.engine.datatypes import BYTES, FP32, INT32, DataType
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.scheduling.sequence.batcher import SequenceBatcher
from trireme.engine.scheduling.sequence.initial_state import state_layout
from trireme.engine.scheduling.sequence.state import SequenceState, StateLayout, keep_states
from trireme.engine.scheduling.sequence.strategies import NullJob
from trireme.engine.tensor import Tensor, pack_bytes

NOWHERE = Path("nowhere")
SUM = ImplicitState("SUM_IN", "SUM_OUT", INT32, (1,))
TEXT = ImplicitState("TEXT_IN", "TEXT_OUT", BYTES, (2,))
GROWING = ImplicitState("SEEN_IN", "SEEN_OUT", FP32, (-1,))
DIRECT = SequenceBatching(DirectStrategy())
OLDEST = SequenceBatching(OldestStrategy())
BOTH = pytest.mark.parametrize("batching", [DIRECT, OLDEST], ids=["direct", "oldest"])


def layout(*states: ImplicitState, batching: bool = True, folder: Path = NOWHERE) -> StateLayout:
    made = state_layout(states, batching, folder)
    assert made is not None
    return made


def output(name: str, values: object, datatype: DataType = INT32) -> Tensor:
    array = np.array(values, datatype.storage)
    return Tensor(name, datatype, array.shape, array=array)


def add_up(jobs: Iterable) -> None:
    """A model that counts its sequence's requests, in one batch."""
    jobs = list(jobs)
    counted = np.concatenate([job.inputs["SUM_IN"].array for job in jobs]) + 1
    keep_states(jobs, [Tensor("SUM_OUT", INT32, counted.shape, array=counted)], True)


# The state of one sequence


def test_a_model_without_states_has_no_layout():
    assert state_layout((), True, NOWHERE) is None


@pytest.mark.parametrize("batching", [False, True])
def test_a_fresh_state_is_zeros_of_the_declared_size(batching):
    state = layout(SUM, TEXT, GROWING, batching=batching).start()
    first = (1,) if batching else ()
    assert {name: tensor.shape for name, tensor in state.inputs.items()} == {
        "SUM_IN": (*first, 1),
        "TEXT_IN": (*first, 2),
        "SEEN_IN": (*first, 1),
    }
    assert state.inputs["SUM_IN"].array.ravel().tolist() == [0]
    assert state.inputs["TEXT_IN"].array.ravel().tolist() == [b"", b""]


def test_what_is_written_is_read_next_and_nothing_else_changes():
    state = layout(SUM, TEXT).start()
    state.write(output("SUM_OUT", [[5]]))
    assert state.inputs["SUM_IN"].array.tolist() == [[5]]
    assert state.inputs["SUM_IN"].name == "SUM_IN"
    assert state.inputs["TEXT_IN"].array.tolist() == [[b"", b""]]


def test_written_data_is_copied():
    state = layout(SUM).start()
    array = np.array([[5]], np.int32)
    state.write(Tensor("SUM_OUT", INT32, (1, 1), array=array))
    array[:] = 9
    assert state.inputs["SUM_IN"].array.tolist() == [[5]]


def test_type_and_shape_may_become_others():
    state = layout(GROWING).start()
    state.write(output("SEEN_OUT", [[1, 2, 3]]))
    assert (state.inputs["SEEN_IN"].datatype, state.inputs["SEEN_IN"].shape) == (INT32, (1, 3))


@pytest.mark.parametrize("spec", [SUM, replace(TEXT, dims=(1,))])
def test_same_buffer_is_written_in_place_while_the_shape_stays(spec):
    state = layout(replace(spec, same_buffer=True)).start()
    array = state.inputs[spec.input_name].array
    value = b"x" if spec.datatype is BYTES else 4
    state.write(output(spec.output_name, [[value]], spec.datatype))
    assert state.inputs[spec.input_name].array is array
    assert array.tolist() == [[value]]
    if spec.datatype is BYTES:
        assert bytes(state.inputs[spec.input_name].buffer) == pack_bytes([b"x"])
    state.write(output(spec.output_name, [[value, value]], spec.datatype))
    assert state.inputs[spec.input_name].shape == (1, 2)


def test_same_buffer_may_be_what_the_output_was_computed_in():
    state = layout(replace(SUM, same_buffer=True)).start()
    array = state.inputs["SUM_IN"].array
    array += 3
    state.write(Tensor("SUM_OUT", INT32, array.shape, array=array))
    assert state.inputs["SUM_IN"].array.tolist() == [[3]]


@pytest.mark.parametrize("same_buffer", [False, True])
def test_sequences_do_not_share_what_they_begin_with(same_buffer):
    both = layout(replace(SUM, same_buffer=same_buffer))
    one, other = both.start(), both.start()
    one.write(output("SUM_OUT", [[5]]))
    assert other.inputs["SUM_IN"].array.tolist() == [[0]]
    assert both.start().inputs["SUM_IN"].array.tolist() == [[0]]


def test_scratch_has_the_shapes_and_none_of_the_contents():
    state = layout(GROWING, TEXT).start()
    state.write(output("SEEN_OUT", [[1, 2, 3]], FP32))
    state.write(output("TEXT_OUT", [[b"secret", b""]], BYTES))
    scratch = state.scratch()
    assert scratch.inputs["SEEN_IN"].array.tolist() == [[0, 0, 0]]
    assert scratch.inputs["TEXT_IN"].array.tolist() == [[b"", b""]]
    scratch.write(output("SEEN_OUT", [[9]], FP32))
    assert state.inputs["SEEN_IN"].array.tolist() == [[1, 2, 3]]


def test_unknown_states_are_named():
    with pytest.raises(InvalidArgumentError) as refused:
        layout(SUM).start().write(output("SUM_IN", [[5]]))
    assert refused.value.message == "state 'SUM_IN' is not a valid state name."


# A batch's states


def test_each_job_keeps_its_row():
    made = layout(SUM)
    jobs = [sequence_job(key) for key in (1, 2, 3)]
    for job in jobs:
        job.state = made.start()
    keep_states(jobs, [output("SUM_OUT", [[1], [2], [3], [4]])], True)
    assert [job.state.inputs["SUM_IN"].array.tolist() for job in jobs] == [[[1]], [[2]], [[3]]]


def test_without_batching_the_whole_output_is_the_state():
    job = sequence_job(1)
    job.state = layout(GROWING, batching=False).start()
    keep_states([job], [output("SEEN_OUT", [1, 2], FP32)], False)
    assert job.state.inputs["SEEN_IN"].array.tolist() == [1, 2]


def test_too_few_rows_are_an_error_of_the_model():
    job = sequence_job(1)
    job.state = layout(SUM).start()
    with pytest.raises(
        InternalError, match=r"must have a row for each request of the batch, but has the shape \[0, 1\]"
    ):
        keep_states([job], [Tensor("SUM_OUT", INT32, (0, 1), array=np.zeros((0, 1), np.int32))], True)


def test_a_request_that_has_failed_keeps_its_state_and_its_row():
    jobs = [sequence_job(key) for key in range(1, 4)]
    for job in jobs:
        job.state = layout(SUM).start()
    jobs[1].answered = True
    keep_states(jobs, [output("SUM_OUT", [[1], [2], [3]])], True)
    assert [job.state.inputs["SUM_IN"].array.tolist() for job in jobs] == [[[1]], [[0]], [[3]]]


def test_when_one_output_is_short_none_is_kept():
    jobs = [sequence_job(key) for key in range(1, 3)]
    for job in jobs:
        job.state = layout(SUM, GROWING).start()
    with pytest.raises(InternalError):
        keep_states(jobs, [output("SUM_OUT", [[1], [2]]), output("SEEN_OUT", [[1]], FP32)], True)
    assert [job.state.inputs["SUM_IN"].array.tolist() for job in jobs] == [[[0]], [[0]]]


def test_a_model_without_states_cannot_write_one():
    with pytest.raises(InvalidArgumentError) as refused:
        keep_states([sequence_job(1)], [output("S", [[1]])], True)
    assert refused.value.message == "unable to add state 'S'. State configuration is missing for model 'm'."


# Through the batcher


def run_model(world: World) -> dict[str, int]:
    """Let the counting model execute all there is; what each request found, by its name."""
    found: dict[str, int] = {}
    world.act()
    while any(world.running.values()):
        for instance in sorted(world.running):
            if world.running[instance]:
                jobs = world.running[instance][0].jobs
                found.update({job.id: int(job.inputs["SUM_IN"].array[0, 0]) for job in real(jobs)})
                add_up(jobs)
                world.settle(instance)
        world.act()
    return found


@BOTH
def test_each_sequence_counts_its_own_requests_from_start_to_end(batching):
    world = World.of(make_plan(batching, 2, layout(SUM)), instances=2)
    for key in range(1, 8):
        world.ask(key, "s", f"{key}a")
        for name in "bcd"[: key % 4]:
            world.ask(key, "", f"{key}{name}")
        world.ask(key, "e", f"{key}e")
    found = run_model(world)
    assert found == {
        **{f"{key}{name}": position for key in range(1, 8) for position, name in enumerate("abcd"[: key % 4 + 1])},
        **{f"{key}e": key % 4 + 1 for key in range(1, 8)},
    }


@BOTH
def test_a_start_begins_with_a_fresh_state_wherever_it_comes(batching):
    """In a sequence that did not end, and in the slot of one that ended, was idle, or was cancelled."""
    world = World.of(make_plan(batching, 1, layout(SUM)))
    world.ask(1, "s", "a0")
    world.ask(1, "", "a1")
    world.ask(1, "s", "b0")
    world.ask(1, "e", "b1")
    world.ask(2, "s", "c0")
    assert run_model(world) == {"a0": 0, "a1": 1, "b0": 0, "b1": 1, "c0": 0}
    world.wait(1.0)
    world.ask(2, "s", "d0")
    assert run_model(world) == {"d0": 0}
    world.ask(3, "s", "e0")
    world.core.cancel(world.ask(2, "", "d1"))
    assert run_model(world) == {"e0": 0}


@BOTH
def test_the_next_sequence_may_begin_while_the_last_request_of_the_old_one_is_executed(batching):
    world = World.of(make_plan(batching, 1, layout(SUM)))
    world.ask(1, "s", "a0")
    world.ask(1, "e", "a1")
    world.ask(2, "s", "b0")
    world.act()
    add_up(world.running[0][0].jobs)
    world.settle()
    world.act()  # a1 is out, 2 has the slot
    last = world.running[0][0].jobs
    world.settle()
    world.act()
    add_up(last)  # too late: its sequence is over, and no other sequence's state is touched
    assert run_model(world) == {"b0": 0}


@BOTH
def test_a_request_that_fails_leaves_the_state_as_it_was(batching):
    world = World.of(make_plan(batching, 1, layout(SUM)))
    world.ask(1, "s", "a0")
    run_model(world)
    world.ask(1, "", "a1")
    world.act()
    world.settle()  # without writing
    world.ask(1, "", "a2")
    assert run_model(world) == {"a2": 1}


def test_padding_has_a_state_of_its_own():
    world = World.of(make_plan(DIRECT, 2, layout(SUM, GROWING)))
    world.ask(1, "s", "a")
    world.ask(2, "s", "b")
    run_model(world)
    world.ask(2, "", "c")
    world.act()
    null, job = world.running[0][0].jobs
    assert isinstance(null, NullJob)
    assert null.inputs["SUM_IN"].array.tolist() == [[0]]
    assert null.inputs["SEEN_IN"].shape == job.inputs["SEEN_IN"].shape
    assert isinstance(null.state, SequenceState)
    add_up((null, job))
    world.settle()
    world.ask(1, "", "d")
    assert run_model(world) == {"d": 1}


@BOTH
@pytest.mark.parametrize("declared", [GROWING, replace(GROWING, dims=(1,))], ids=["variable", "fixed"])
def test_states_of_different_shapes_do_not_share_a_batch(declared, batching):
    """Whatever the configuration says of them: a model may leave others behind (rule 2)."""
    world = World.of(make_plan(batching, 2, layout(declared)))
    first = world.ask(1, "s", "1a")
    world.ask(2, "s", "2a")
    world.act()
    keep_states([first], [output("SEEN_OUT", [[1, 2]], FP32)], True)
    world.settle()
    world.ask(1, "", "1b")
    world.ask(2, "", "2b")
    world.run()
    assert [sorted(set(names) - {"-"}) for names in world.names] == [["1a", "2a"], ["1b"], ["2b"]]


# What a state begins with


def initial(**changes: object) -> ImplicitState:
    begin = replace(InitialState("zeros", INT32, (2,), None), **changes)  # pyright: ignore[reportArgumentType]
    return ImplicitState("S", "T", INT32, (-1,), (begin,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "secret").write_bytes(b"x" * 100)
    return tmp_path


def test_zero_data_has_the_dimensions_given():
    assert layout(initial()).start().inputs["S"].array.tolist() == [[0, 0]]


def test_data_file_gives_its_first_bytes(folder):
    (folder / "initial_state" / "f").write_bytes(np.array([7, 8, 9], "<i4").tobytes())
    made = layout(initial(data_file="f"), folder=folder)
    assert made.start().inputs["S"].array.tolist() == [[7, 8]]
    state = layout(replace(initial(data_file="f"), same_buffer=True), folder=folder).start()
    state.write(output("T", [[1, 1]]))
    assert state.inputs["S"].array.tolist() == [[1, 1]]


def test_a_file_of_strings_is_taken_whole(folder):
    (folder / "initial_state" / "f").write_bytes(pack_bytes([b"a", b"bc"]))
    state = ImplicitState("S", "T", BYTES, (2,), (InitialState("n", BYTES, (2,), "f"),))
    assert layout(state, folder=folder).start().inputs["S"].array.tolist() == [[b"a", b"bc"]]


WRONG = {
    "The data type used for 'initial_state' field of state 'S' does not match the state data type.": initial(
        datatype=FP32
    ),
    "Field 'name' must be set when using initial_state for state input 'S'.": initial(name=""),
    "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'S'. "
    "2 != 1": initial(dims=(2, 1)),
    "'initial_state' field for state input name 'S' contains variable dimensions.": initial(dims=(-1,)),
    "'initial_state' dim for input name 'S' doesn't match 'state' dim description. 2 != 3": replace(
        initial(), dims=(3,)
    ),
    "initial_state setting expects state'S' to have state_data set": initial(data_file=""),
    "initial_state field for state input 'S' must contain exactly one or zero element. Found '2' elements.": replace(
        initial(), initial=initial().initial * 2
    ),
    "initial_state setting expects 8 bytes, but the data provided from shortonly has 5 bytes.": initial(
        data_file="short"
    ),
    "initial_state file '../../secret' of state 'S' is outside the model's directory": initial(
        data_file="../../secret"
    ),
}


@pytest.mark.parametrize(("text", "state"), WRONG.items())
def test_what_cannot_be_begun_with_is_named_at_load(folder, text, state):
    (folder / "initial_state" / "short").write_bytes(b"\2\0\0\0x")
    with pytest.raises(InvalidArgumentError) as refused:
        state_layout((state,), True, folder)
    assert refused.value.message == text


def test_a_data_file_that_is_not_there_is_named_at_load(folder):
    with pytest.raises(InternalError) as refused:
        state_layout((initial(data_file="none"),), True, folder)
    path = folder / "initial_state" / "none"
    assert refused.value.message == f"failed to open text file for read {path}: No such file or directory"


BROKEN_STRINGS = [
    (b"\2\0\0\0x", "incomplete string data for inference input 'S', expecting string of length 2 but only 1 bytes "),
    (b"\1\0", "incomplete string length indicator for inference input 'S', expecting 4 bytes but only 2 bytes "),
    (pack_bytes([b"a", b"b"]), "unexpected number of string elements 2 for inference input 'S', expecting 1"),
    (b"", "expected 1 strings for inference input 'S', got 0"),
]


@pytest.mark.parametrize("same_buffer", [False, True])
@pytest.mark.parametrize(("content", "text"), BROKEN_STRINGS)
def test_strings_that_are_none_load_and_fail_the_requests_that_start(folder, caplog, content, text, same_buffer):
    """As in Triton, where the model is ready and every request gets this error."""
    (folder / "initial_state" / "f").write_bytes(content)
    state = ImplicitState("S", "T", BYTES, (1,), (InitialState("n", BYTES, (1,), "f"),), same_buffer=same_buffer)
    with caplog.at_level(logging.ERROR, "trireme.sequence"):
        states = layout(state, folder=folder)
    assert text in caplog.text
    core = SequenceBatcher(make_plan(SequenceBatching(states=(state,)), states=states))
    for _ in range(2):
        with pytest.raises(InvalidArgumentError) as refused:
            core.enqueue(sequence_job(1, "s"), 0.0)
        assert refused.value.message.startswith(text)


def test_an_input_may_hold_one_state_only():
    with pytest.raises(InvalidArgumentError) as refused:
        state_layout((SUM, SUM), True, NOWHERE)
    assert refused.value.message == "State input name 'SUM_IN' specified more than once."


@pytest.mark.parametrize(
    ("same_buffer", "on_gpu", "text"),
    [
        (False, True, "you must also enable 'use_single_buffer' for state input name 'SUM_IN'."),
        (True, False, "set 'use_growable_memory' to false for state input 'SUM_IN'."),
        (True, True, None),
    ],
)
def test_growable_memory_is_complained_about_and_does_no_harm(caplog, same_buffer, on_gpu, text):
    with caplog.at_level(logging.ERROR, "trireme.sequence"):
        made = state_layout((replace(SUM, same_buffer=same_buffer, growable=True),), True, NOWHERE, on_gpu)
    assert made is not None
    assert [record.getMessage().endswith(text or "") for record in caplog.records] == ([True] if text else [])
