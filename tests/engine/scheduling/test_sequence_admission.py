"""Who gets in, in which order it is checked, and what the others are told (docs/reference/sequences.md#admission)."""

from __future__ import annotations

import logging

import pytest
from sequence_world import CONTROLS, World, make_plan, sequence_job

from trireme.engine.config.sequence import ControlKind, SequenceBatching, SequenceControl
from trireme.engine.datatypes import BYTES, INT32
from trireme.engine.errors import ErrorKind, TriremeError

STRINGS = SequenceBatching(controls=(SequenceControl("ID", ControlKind.CORRID, BYTES),))
NUMBERS = SequenceBatching(controls=(SequenceControl("ID", ControlKind.CORRID, INT32),))
ANY = SequenceBatching(controls=CONTROLS[:3])


def refusal(batching: SequenceBatching, *arguments: object, stopped: bool = False, **options: object) -> TriremeError:
    world = World.of(make_plan(batching))
    if stopped:
        world.core.stop()
    with pytest.raises(TriremeError) as refused:
        world.ask(*arguments, **options)
    assert world.core.queued == 0
    assert world.core.active == 0
    return refused.value


NOT_STARTED = (
    "inference request for sequence {} to model 'm' must specify the START flag on the first request of the sequence"
)
NO_ID = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
BATCHED = "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"


@pytest.mark.parametrize(
    ("arguments", "rows", "text"),
    [
        ((5,), 1, NOT_STARTED.format(5)),
        (("abc",), 1, NOT_STARTED.format("abc")),
        ((5, "e"), 1, NOT_STARTED.format(5)),
        ((0, "s"), 1, NO_ID),
        (("", "s"), 1, NO_ID),
        ((5, "s"), 2, BATCHED),
        ((0, ""), 2, BATCHED),
    ],
)
def test_invalid_requests_are_told_what_is_wrong(arguments, rows, text):
    error = refusal(ANY, *arguments, rows=rows)
    assert (error.kind, error.message) == (ErrorKind.INVALID_ARGUMENT, text)


@pytest.mark.parametrize(("key", "ok"), [("a" * 128, True), ("a" * 129, False), ("é" * 64, True), ("é" * 65, False)])
def test_string_ids_have_at_most_128_bytes(key, ok):
    if ok:
        World.of(make_plan(ANY)).ask(key, "s")
        return
    error = refusal(ANY, key, "s", rows=2)
    assert error.kind is ErrorKind.UNSUPPORTED
    assert error.message == "string correlation ID cannot be longer than 128 characters"


@pytest.mark.parametrize(
    ("batching", "key", "given", "expected"),
    [(STRINGS, 7, "UINT64", "BYTES"), (NUMBERS, "seven", "BYTES", "INT32")],
)
def test_the_models_id_type_is_checked_before_all_that_needs_the_scheduler(batching, key, given, expected):
    error = refusal(batching, key, "s", "r1", rows=2)
    assert error.kind is ErrorKind.INVALID_ARGUMENT
    assert error.message == (
        f"[request id: r1] sequence batching control 'ID' data-type is '{given}', but model 'm' expects '{expected}'"
    )


@pytest.mark.parametrize("batching", [STRINGS, NUMBERS])
@pytest.mark.parametrize("key", [0, ""])
def test_no_id_is_not_an_id_of_the_wrong_type(batching, key):
    assert "non-zero or non-empty" in refusal(batching, key, "s").message


def test_stopping_refuses_new_sequences_in_words_without_a_request_id():
    error = refusal(ANY, 5, "s", "r1", stopped=True)
    assert error.kind is ErrorKind.UNAVAILABLE
    assert error.message == ("Server is stopping, scheduler for model has stopped accepting new inference requests")
    assert "START flag" in refusal(ANY, 5, "", stopped=True).message


def test_stopping_lets_known_sequences_go_on_to_their_end():
    world = World.of(make_plan(ANY, 1))
    world.ask(1, "s", "a")
    world.ask(2, "s", "x")  # in the backlog
    world.core.stop()
    world.ask(1, "e", "b")
    world.ask(2, "", "y")
    with pytest.raises(TriremeError, match="Server is stopping"):
        world.ask(1, "s")
    world.run()
    assert world.names == [["a"], ["b"], ["x"], ["y"]]


def test_numbers_and_strings_are_different_sequences():
    world = World.of(make_plan(ANY))
    world.ask(5, "s", "number")
    with pytest.raises(TriremeError, match="START flag"):
        world.ask("5")
    world.ask("5", "s", "string")
    world.run()
    assert world.names == [["number", "string"]]


def test_an_id_is_unknown_again_after_the_end():
    world = World.of(make_plan(ANY))
    world.ask(5, "s")
    world.ask(5, "e")
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(5)
    world.run()
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(5)


def test_a_refused_request_does_not_keep_its_sequence_alive():
    world = World.of(make_plan(ANY))
    world.ask(5, "s")
    world.wait(0.75)
    with pytest.raises(TriremeError, match="batch-size 1"):
        world.ask(5, rows=2)
    world.wait(0.25)
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(5)


def test_start_of_a_known_sequence_begins_anew_in_the_same_slot_and_is_warned_of(caplog):
    world = World.of(make_plan(ANY, 2))
    world.ask(8, "s", "other")
    world.ask(9, "s", "old1")
    world.ask(9, "", "old2")
    with caplog.at_level(logging.WARNING, "trireme.sequence"):
        world.ask(9, "s", "new1")
    world.ask(9, "e", "new2")
    world.run()
    assert world.names == [["other", "old1"], ["-", "old2"], ["-", "new1"], ["-", "new2"]]
    (warning,) = caplog.records
    assert warning.getMessage() == (
        "sequence 9 for model 'm' has a conflict. The previous sequence did not end before this sequence start. "
        "Previous sequence will be terminated early."
    )


def test_enqueue_fills_in_what_belongs_to_the_scheduler():
    world = World.of(make_plan(ANY, 1), instances=0)
    world.now = 2.0
    job = sequence_job(1, "s", timeout_us=500_000)
    job.level = 7
    world.core.enqueue(job, world.now)
    assert (job.arrival, job.level, job.enqueued_s, job.deadline_s) == (1, 0, 2.0, 2.5)
    assert world.ask(1).arrival == 2
