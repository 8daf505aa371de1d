"""Answers on their way to a front end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from wired import JSON, damaged, wired

from trireme.engine.datatypes import BYTES, DATATYPES, FP32
from trireme.engine.errors import FailureReason, InternalError, UnavailableError
from trireme.engine.job import Outcome
from trireme.engine.memory.regions import RegionKind, RegionSlice
from trireme.engine.memory.tensors import RegionTensor, is_in_place
from trireme.engine.request import InferenceResponse
from trireme.engine.tensor import Tensor
from trireme.front_ends.kinds import ANSWER, OUTCOME
from trireme.front_ends.link import LinkError
from trireme.front_ends.regions import RemoteRegion
from trireme.front_ends.responses import Answered, ResponseReader, ResponseWriter

TEXTS = st.text(st.characters(), max_size=12)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = draw(st.sampled_from(DATATYPES))
    shape = tuple(draw(st.lists(st.integers(0, 2**63 - 1), max_size=4)))
    return Tensor(draw(TEXTS), datatype, shape, memoryview(draw(st.binary(max_size=70))))


RESPONSES = st.builds(
    InferenceResponse,
    TEXTS,
    st.integers(1, 2**63 - 1),
    TEXTS,
    st.lists(tensors(), max_size=3),
    st.dictionaries(TEXTS, st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS, max_size=2),
)
OUTCOMES = st.none() | RESPONSES | st.builds(lambda text: InternalError(text, reason=FailureReason.BACKEND), TEXTS)


def contents(outcome: Outcome) -> Any:
    if isinstance(outcome, InferenceResponse):
        outputs = [(each.name, each.datatype, each.shape, bytes(each.buffer)) for each in outcome.outputs]
        return [outputs, outcome.model_name, outcome.model_version, outcome.id, outcome.parameters]
    return None if outcome is None else (type(outcome), outcome.message, outcome.reason)


def read(reader: ResponseReader, head: list[Any], payload: memoryview, request_id: str) -> Answered:
    if head[0] == ANSWER:
        return Answered(reader.read_answer(head, payload, request_id, None), True, True)
    return reader.read_outcome(head, payload, None)


@given(st.lists(st.tuples(OUTCOMES, st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=3))
def test_answers_arrive_as_they_are(given_answers: list[tuple[Outcome, bool, bool, bool]]) -> None:
    writer, reader = ResponseWriter(), ResponseReader()
    for outcome, final, accepted, own_id in (*given_answers, *given_answers):
        request_id = outcome.id if own_id and isinstance(outcome, InferenceResponse) else "another"
        sent = writer.write(7, request_id, outcome, final=final, accepted=accepted)
        answered = read(reader, *wired(*sent), request_id)
        assert contents(answered.outcome) == contents(outcome)
        assert (answered.final, answered.accepted) == (final, accepted)
        usual = writer.write_usual(7, request_id, outcome)
        if usual is not None:
            head, payload = writer.write(7, request_id, outcome)
            assert (usual[0], usual[1].parts) == (head, payload.parts)


def plain() -> InferenceResponse:
    return InferenceResponse("identity", 1, "", [Tensor("OUT", FP32, (1, 16), None, np.ones((1, 16), np.float32))])


def test_what_repeats_is_sent_once() -> None:
    writer, reader = ResponseWriter(), ResponseReader()
    reader.read_answer(*wired(*writer.write(1, "", plain())), "", None)
    head, payload = writer.write(1, "", plain())
    assert contents(reader.read_answer(*wired(head, payload), "", None)) == contents(plain())
    assert head == (ANSWER, 1, 0)
    assert payload.nbytes == 64
    usual = writer.write_usual(1, "", plain())
    assert usual is not None
    assert (usual[0], usual[1].nbytes) == (head, 64)
    assert writer.write_usual(1, "another", plain()) is None


def test_a_message_that_could_not_be_sent_has_filled_no_slot() -> None:
    writer, reader = ResponseWriter(), ResponseReader()
    writer.write(1, "", plain())
    writer.unsent()
    assert contents(reader.read_answer(*wired(*writer.write(1, "", plain())), "", None)) == contents(plain())


def test_an_output_that_is_in_its_place_brings_no_bytes() -> None:
    region = RemoteRegion("r", RegionKind.SYSTEM, 4096)
    place = RegionSlice(region, 64, 32)
    response = plain()
    response.outputs.append(RegionTensor("PLACED", BYTES, (1,), RegionSlice(region, 0, 9)))
    writer, reader = ResponseWriter(), ResponseReader()
    for sent in (writer.write(1, "", response), writer.write(1, "", response)):
        arrived = reader.read_answer(*wired(*sent), "", {"PLACED": place})
        assert is_in_place(arrived.outputs[1], place)
        assert arrived.outputs[1].nbytes == 9
        assert contents(InferenceResponse("", 1, "", arrived.outputs[:1])) == contents(
            InferenceResponse("", 1, "", plain().outputs)
        )
    with pytest.raises(LinkError, match="a place"):
        reader.read_answer(*wired(*writer.write(1, "", response)), "", None)


@given(st.sampled_from((ANSWER, OUTCOME)), st.lists(JSON, max_size=5), st.binary(max_size=64))
def test_any_head_is_an_answer_or_an_error_of_the_link(kind: int, tail: list[Any], payload: bytes) -> None:
    with suppress(LinkError):
        read(ResponseReader(), [kind, 1, *tail], memoryview(payload), "")


@given(st.data(), OUTCOMES, st.booleans(), st.binary(max_size=64))
def test_a_damaged_head_is_an_answer_or_an_error_of_the_link(
    data: st.DataObject, outcome: Outcome, final: bool, payload: bytes
) -> None:
    head, _ = ResponseWriter().write(1, "", outcome, final=final)
    damage = data.draw(damaged(head))
    with suppress(LinkError):
        read(ResponseReader(), [head[0], 1, *damage[2:]], memoryview(payload), "")


def test_errors_go_with_their_kind() -> None:
    refused = ResponseWriter().write(1, "", UnavailableError("full"), accepted=False)
    answered = ResponseReader().read_outcome(*wired(*refused), None)
    assert contents(answered.outcome) == (UnavailableError, "full", FailureReason.OTHER)
    assert (answered.final, answered.accepted) == (True, False)
