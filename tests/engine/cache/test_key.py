"""Which requests are the same question."""

from __future__ import annotations

from dataclasses import replace

from trireme.engine.cache import request_key
from trireme.engine.datatypes import FP32, INT32
from trireme.engine.job import Job
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

A = Tensor("A", FP32, (2, 3), bytes(24))
B = Tensor("B", FP32, (1,), b"1234")
REQUEST = InferenceRequest("m", 1, "id", [A, B])


def key(*inputs: Tensor, identity: str = "m:1", request: InferenceRequest = REQUEST) -> str:
    named = {tensor.name: tensor for tensor in inputs or (A, B)}
    job = Job(request, named, 1, "m", 1, reply=None)  # type: ignore[arg-type]
    return request_key(identity, job, frozenset(("X", "Y")))


def test_the_same_question_has_the_same_key() -> None:
    """Whatever the order of the inputs, the id, the parameters, the priority and the timeout."""
    other = replace(REQUEST, id="other", parameters={"a": 1}, priority=2, timeout_us=5, model_version=-1)
    every = replace(REQUEST, requested_outputs=("Y", "X"))
    assert {key(), key(B, A), key(request=other), key(request=every)} == {key()}


def test_another_question_has_another_key() -> None:
    questions = [
        key(),
        key(identity="m:2"),
        key(A),
        key(Tensor("A", FP32, (3, 2), bytes(24)), B),
        key(Tensor("A", INT32, (2, 3), bytes(24)), B),
        key(Tensor("C", FP32, (2, 3), bytes(24)), B),
        key(Tensor("A", FP32, (2, 3), bytes(23) + b"\x01"), B),
        key(request=replace(REQUEST, requested_outputs=("X",))),
        key(request=replace(REQUEST, requested_outputs=("Y",))),
    ]
    assert len(set(questions)) == len(questions)


def test_bytes_do_not_move_from_one_input_to_the_next() -> None:
    """A's end and B's beginning are where they are."""
    shorter = key(Tensor("A", INT32, (-1,), b"12"), Tensor("B", INT32, (-1,), b"345"))
    longer = key(Tensor("A", INT32, (-1,), b"123"), Tensor("B", INT32, (-1,), b"45"))
    assert shorter != longer
