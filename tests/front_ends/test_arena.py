"""Memory of bodies: received into segments, viewed by the engine, used again when nothing refers to it any more."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from link_ends import all_of, both_ends
from wired import wired

from trireme.engine.datatypes import BYTES, FP32
from trireme.engine.memory.regions import Regions
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import END_BYTES, Tensor, pack_bytes
from trireme.front_ends import arena
from trireme.front_ends.arena import ArenaLender, LentPayload, gather, is_to_gather, is_to_stage, memory_for, stage
from trireme.front_ends.link import LinkError
from trireme.front_ends.requests import NO_DESCRIPTION, RequestReader, RequestWriter, SentRequest
from trireme.front_ends.responses import ResponseReader, ResponseWriter

LARGE = 1 << 20


def address(buffer: Any) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def two_inputs(body: memoryview, at: int = 7) -> InferenceRequest:
    half = len(body) // 2
    tensors = [
        Tensor("A", FP32, (half // 4 - 100,), body[at : at + half - 400]),
        Tensor("B", FP32, (half // 8,), body[half : half + half // 2]),
    ]
    return InferenceRequest("m", -1, "id", tensors)


def passed_on(one: Any, other: Any, request: InferenceRequest) -> SentRequest:
    head, payload = RequestWriter(one.lender).write(1, request, NO_DESCRIPTION)
    assert one.send(head, payload)
    one.flush()
    (message,) = all_of(other)
    return RequestReader(lambda _number: None, Regions(lambda: None)).read(message.head, message.payload)


def test_the_engine_views_what_was_received_and_nothing_is_copied() -> None:
    with both_ends() as (one, other):
        body = memory_for(one.lender, LARGE)
        body[:] = bytes(range(256)) * (LARGE // 256)
        request = two_inputs(body)
        sent = passed_on(one, other, request)
        for here, there in zip(request.inputs, sent.request.inputs, strict=True):
            assert bytes(here.buffer) == bytes(there.buffer)
            assert address(there.buffer) != address(here.buffer)  # the other end maps it elsewhere
        body[7] = 99  # one and the same memory
        body[LARGE // 2] = 98
        assert sent.request.inputs[0].buffer[0] == 99
        assert sent.request.inputs[1].buffer[0] == 98


def test_a_body_as_a_whole_is_viewed() -> None:
    with both_ends() as (one, other):
        body = memory_for(one.lender, LARGE)
        sent = passed_on(one, other, InferenceRequest("m", raw_input=body))
        body[LARGE - 1] = 77
        assert sent.request.raw_input is not None
        assert sent.request.raw_input[LARGE - 1] == 77


@pytest.mark.parametrize("first_here", [True, False])
def test_memory_is_used_again_when_neither_end_refers_to_it(first_here: bool) -> None:
    with both_ends() as (one, other):
        body = memory_for(one.lender, LARGE)
        where = address(body)
        request = two_inputs(body)
        sent = passed_on(one, other, request)
        held: list[list[Any]] = [[body, request], [sent]]
        del body, request, sent
        held[0 if first_here else 1].clear()
        other.flush()
        all_of(one)
        second = memory_for(one.lender, LARGE)
        assert address(second) != where
        del second
        held[1 if first_here else 0].clear()
        other.flush()
        all_of(one)
        one.lender.sweep()
        places = {address(each) for each in [memory_for(one.lender, LARGE) for _ in range(3)]}
        assert where in places


def test_memory_that_is_never_sent_is_used_again() -> None:
    lender = ArenaLender(4)
    first = memory_for(lender, LARGE)
    where = address(first)
    del first
    assert address(memory_for(lender, LARGE)) == where


def test_an_array_may_be_where_one_was_that_the_engine_still_views() -> None:
    """An identity is used again; that the first array is gone says nothing about the second one."""
    with both_ends() as (one, other):
        first = memory_for(one.lender, LARGE)
        sent = passed_on(one, other, two_inputs(first))
        del first
        ((_, number),) = one.lender._dead
        second = memory_for(one.lender, LARGE)
        one.lender._dead.clear()
        one.lender._dead.append((id(second.obj), number))
        one.lender.sweep()
        assert one.lender.segment_of([second]) is not None
        del sent
        other.flush()
        all_of(one)
        assert one.lender.segment_of([second]) is not None
        assert not one.lender._dead


def test_bodies_leave_segments_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "MOST_BODIES", 2)
    lender = ArenaLender(4)
    bodies = [memory_for(lender, LARGE) for _ in range(3)]
    assert [lender.segment_of([body]) is not None for body in bodies] == [True, True, False]
    small = memory_for(lender, arena.LEAST_BYTES - 1)
    assert lender.segment_of([small]) is None
    assert lender.has_room


def test_a_segment_is_lent_once() -> None:
    with both_ends() as (one, other):
        body = memory_for(one.lender, LARGE)
        request = two_inputs(body)
        passed_on(one, other, request)
        assert one.lender.segment_of([body]) is None
        again = passed_on(one, other, request)  # a copy
        body[7] = 55
        assert again.request.inputs[0].buffer[0] != 55


def test_what_comes_in_pieces_is_gathered_on_a_thread() -> None:
    with both_ends() as (one, other):
        inputs = [
            Tensor("A", FP32, (LARGE // 4,), bytes(range(256)) * (LARGE // 256)),
            Tensor("B", FP32, (1,), b"abcd"),
        ]
        request = InferenceRequest("m", inputs=inputs)
        assert is_to_gather(one.lender, request)
        thread = threading.Thread(target=gather, args=(one.lender, request))
        thread.start()
        thread.join()
        assert not is_to_gather(one.lender, request)
        assert isinstance(RequestWriter(one.lender).write(1, request, NO_DESCRIPTION)[1], LentPayload)
        sent = passed_on(one, other, request)
        assert [bytes(each.buffer) for each in sent.request.inputs] == [bytes(each.buffer) for each in inputs]
        assert not is_to_gather(one.lender, InferenceRequest("m", inputs=[inputs[1]]))


@pytest.mark.parametrize("header", [0, 1, 133, 250])
def test_what_a_body_ends_with_is_used_where_it_is(header: int) -> None:
    """Clients put tensors at the ends of bodies, behind a text of any length."""
    with both_ends() as (one, other):
        body = memory_for(one.lender, header + LARGE)
        body[header:] = np.arange(LARGE // 4, dtype=np.float32).tobytes()
        half = LARGE // 2
        tensors = [
            Tensor("A", FP32, (half // 4,), body[header : header + half]),
            Tensor("B", FP32, (half // 4,), body[header + half :]),
        ]
        sent = passed_on(one, other, InferenceRequest("m", inputs=tensors))
        for here, there in zip(tensors, sent.request.inputs, strict=True):
            assert there.array.flags.aligned
            assert address(there.buffer) % END_BYTES == 0
            assert np.array_equal(there.array, here.array)


@pytest.mark.parametrize("nbytes", [LARGE, LARGE + 1, LARGE + 63])
def test_a_body_as_a_whole_ends_where_it_does(nbytes: int) -> None:
    with both_ends() as (one, other):
        body = memory_for(one.lender, nbytes)
        body[:] = bytes(range(256)) * (nbytes // 256) + bytes(range(nbytes % 256))
        sent = passed_on(one, other, InferenceRequest("m", raw_input=body))
        raw = sent.request.raw_input
        assert raw == body
        assert (address(raw) + nbytes) % END_BYTES == 0
        body[nbytes - 1] = 7
        assert raw is not None
        assert raw[nbytes - 1] == 7


def test_what_is_gathered_is_used_where_it_is() -> None:
    with both_ends() as (one, other):
        inputs = [Tensor(str(number), FP32, (number,), bytes(4 * number)) for number in (1, LARGE // 4, 5)]
        request = InferenceRequest("m", inputs=inputs)
        gather(one.lender, request)
        sent = passed_on(one, other, request)
        assert [address(each.buffer) % END_BYTES for each in sent.request.inputs] == [0, 0, 0]


@pytest.mark.parametrize("at", [-1, 2**62, "0", None, LARGE])
def test_a_raw_input_that_cannot_be_there_ends_the_link(at: Any) -> None:
    body = memoryview(bytearray(LARGE))
    head, _ = RequestWriter().write(1, InferenceRequest("m", raw_input=body), NO_DESCRIPTION)
    parts = wired(head)[0]
    parts[5]["raw_at"] = at
    with pytest.raises(LinkError):
        RequestReader(lambda _number: None, Regions(lambda: None)).read(parts, body)


def test_a_large_answer_is_copied_once() -> None:
    with both_ends() as (one, other):
        values = np.arange(LARGE // 4, dtype=np.float32)
        outputs = [Tensor("OUT", FP32, values.shape, None, values), Tensor("T", BYTES, (1,), pack_bytes([b"text"]))]
        response = InferenceResponse("m", 1, "", outputs)
        assert is_to_stage(response)
        staged = stage(one.lender, response)
        assert response.outputs is outputs
        head, payload = ResponseWriter(one.lender).write(1, "", staged)
        assert isinstance(payload, LentPayload)
        assert one.send(head, payload)
        one.flush()
        (message,) = all_of(other)
        came = ResponseReader().read_answer(message.head, message.payload, "", None)
        assert np.array_equal(came.outputs[0].array, values)
        assert bytes(came.outputs[1].buffer) == pack_bytes([b"text"])
        memory: Any = staged.outputs[0].buffer
        memory[0] = 9
        assert came.outputs[0].buffer[0] == 9


@pytest.mark.parametrize("offsets", [[0], [0, LARGE], [-1, 0], ["0", 0], [0, 2**62], None, [0, 0, 0], {}])
def test_offsets_that_cannot_be_end_the_link(offsets: Any) -> None:
    body = memoryview(bytearray(LARGE))
    head, _ = RequestWriter().write(1, two_inputs(body), NO_DESCRIPTION)
    broken = [*wired(head)[0][:5], {"offsets": offsets}]
    with pytest.raises(LinkError):
        RequestReader(lambda _number: None, Regions(lambda: None)).read(broken, body)
