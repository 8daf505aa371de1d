"""Requests on their way to the engine, and what a hostile front end may send instead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import numpy as np
import orjson
import pytest
from hypothesis import given
from wired import JSON, damaged, wired

from trireme.engine.datatypes import BYTES, DATATYPES, FP32, INVALID
from trireme.engine.description import ModelDescription
from trireme.engine.errors import NotFoundError
from trireme.engine.memory.regions import RegionKind, Regions, RegionSlice
from trireme.engine.memory.tensors import RegionTensor
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor, pack_bytes
from trireme.engine.tracing.record import SpanContext
from trireme.front_ends.kinds import ADMIT
from trireme.front_ends.link import LinkError
from trireme.front_ends.regions import RegionTable, RemoteRegions, write_regions
from trireme.front_ends.requests import RequestReader, RequestWriter, SentRequest
from trireme.front_ends.slots import NO_SLOT, SLOTS
from trireme.front_ends.trace_wishes import TraceWish

TEXTS = st.text(st.characters(), max_size=12)
U64 = st.integers(0, 2**64 - 1)
DIMS = st.integers(-(2**63), 2**64 - 1)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = draw(st.sampled_from((*DATATYPES, INVALID)))
    shape = tuple(draw(st.lists(DIMS, max_size=4)))
    return Tensor(draw(TEXTS), datatype, shape, memoryview(draw(st.binary(max_size=70))))


@st.composite
def requests(draw: st.DrawFn) -> InferenceRequest:
    raw = draw(st.none() | st.binary(max_size=40))
    return InferenceRequest(
        draw(TEXTS),
        draw(st.integers(-1, 2**63 - 1)),
        draw(TEXTS),
        draw(st.lists(tensors(), max_size=3)),
        tuple(draw(st.lists(TEXTS, max_size=3))),
        draw(st.dictionaries(TEXTS, st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS, max_size=3)),
        draw(U64),
        draw(U64),
        draw(U64 | TEXTS.filter(bool)),
        draw(st.booleans()),
        draw(st.booleans()),
        raw_input=None if raw is None else memoryview(raw),
    )


WISHES = st.none() | st.builds(
    TraceWish,
    st.none()
    | st.builds(
        SpanContext,
        st.integers(1, 2**128 - 1),
        st.integers(1, 2**64 - 1),
        st.integers(0, 255),
        st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    ),
    TEXTS,
)


def contents(request: InferenceRequest) -> list[Any]:
    inputs = [(each.name, each.datatype, each.shape, bytes(each.buffer)) for each in request.inputs]
    raw = None if request.raw_input is None else bytes(request.raw_input)
    return [
        inputs, raw, request.model_name, request.model_version, request.id, request.requested_outputs,
        request.parameters, request.priority, request.timeout_us, request.correlation_id, request.sequence_start,
        request.sequence_end, request.in_regions,
    ]  # fmt: skip


class Ends:
    """A writer and a reader."""

    def __init__(self, regions: Regions | None = None, descriptions: dict[int, ModelDescription] | None = None) -> None:
        self.writer = RequestWriter()
        self.reader = RequestReader((descriptions or {}).get, regions or Regions(lambda: None))

    def pass_on(self, request: InferenceRequest, number: int = 1, description: int = 0, lease: int = 0) -> SentRequest:
        return self.reader.read(*wired(*self.writer.write(number, request, description, lease)))


def plain(name: str = "IN", elements: int = 16) -> InferenceRequest:
    data = np.arange(elements, dtype=np.float32)
    return InferenceRequest("identity", -1, "", [Tensor(name, FP32, (1, elements), None, data)], ("OUT",))


@given(st.lists(requests(), min_size=1, max_size=3), WISHES, st.integers(0, 2**62))
def test_requests_arrive_as_they_are(several: list[InferenceRequest], wish: TraceWish | None, lease: int) -> None:
    ends = Ends()
    for request in (*several, *several):
        head, payload = wired(*ends.writer.write(7, request, 0, lease, wish))
        plain = ends.reader.read_plain(head, payload)
        sent = ends.reader.read(head, payload)
        assert contents(sent.request) == contents(request)
        assert plain is None or contents(plain[0]) == contents(request)
        assert (sent.number, sent.lease, sent.wish, sent.refusal) == (7, lease, wish, None)


def test_what_repeats_is_sent_once() -> None:
    ends = Ends()
    first, _ = ends.writer.write(1, plain(), 3)
    head, payload = ends.writer.write(2, plain(), 3)
    assert len(first) == 5
    assert head == (ADMIT, 2, 0, "")
    assert payload.nbytes == 64
    with pytest.raises(LinkError, match="slot"):
        ends.reader.read(*wired(head, payload))  # the first one has not come
    assert ends.reader.read_plain(*wired(head, payload)) is None
    ends = Ends()
    ends.pass_on(plain(), 1, 3)
    read = ends.reader.read_plain([ADMIT, 2, 0, "an id"], memoryview(bytes(64)))
    assert read is not None
    assert (read[0].id, read[0].model_name, read[0].inputs[0].shape) == ("an id", "identity", (1, 16))
    for odd in ([ADMIT, -1, 0, ""], [ADMIT, 1, [], ""], [ADMIT, 1, 0, 7], [ADMIT, 1, 1, ""]):
        assert ends.reader.read_plain(odd, memoryview(bytes(64))) is None
    assert ends.reader.read_plain([ADMIT, 1, 0, ""], memoryview(bytes(63))) is None


def test_a_message_that_could_not_be_sent_has_filled_no_slot() -> None:
    ends = Ends()
    for elements in range(1, SLOTS + 3):  # more than there are
        ends.writer.write(1, plain(elements=elements), 0)
        ends.writer.unsent()
        assert contents(ends.pass_on(plain(elements=elements)).request) == contents(plain(elements=elements))
    for elements in (SLOTS + 2, SLOTS + 1, 1, 2):
        assert contents(ends.pass_on(plain(elements=elements)).request) == contents(plain(elements=elements))


def test_slots_are_bounded() -> None:
    ends = Ends()
    for elements in range(1, 2 * SLOTS):
        ends.pass_on(plain(elements=elements))
    assert len(ends.writer._specs.numbers) == len(ends.reader._slots.filled) == SLOTS


def test_long_specs_are_not_remembered() -> None:
    ends = Ends()
    for _ in range(2):
        head, payload = ends.writer.write(1, plain("N" * 10_000), 0)
        assert head[2] == NO_SLOT
        assert ends.reader.read(*wired(head, payload)).request.inputs[0].name == "N" * 10_000


def test_the_model_is_known_by_its_description_as_long_as_that_holds() -> None:
    description: Any = object()
    descriptions: dict[int, Any] = {3: description}
    ends = Ends(descriptions=descriptions)
    assert ends.pass_on(plain(), description=3).description is description
    del descriptions[3]
    assert ends.pass_on(plain(), description=3).description is None


# ---- hostile ----


def read_anything(reader: RequestReader, head: list[Any], payload: memoryview) -> None:
    try:
        sent = reader.read(head, payload)
    except LinkError:
        return
    for tensor in sent.request.inputs:
        assert isinstance(tensor.name, str)
        assert len(tensor.buffer) <= len(payload)


@given(st.lists(JSON, max_size=7), st.binary(max_size=64))
def test_any_head_is_a_request_or_an_error_of_the_link(tail: list[Any], payload: bytes) -> None:
    read_anything(Ends().reader, [ADMIT, *tail], memoryview(payload))


@given(st.data(), requests(), WISHES, st.binary(max_size=100))
def test_a_damaged_head_is_a_request_or_an_error_of_the_link(
    data: st.DataObject, request: InferenceRequest, wish: TraceWish | None, payload: bytes
) -> None:
    ends = Ends()
    head, _ = ends.writer.write(1, request, 0, 5, wish)
    read_anything(ends.reader, data.draw(damaged(head)), memoryview(payload))


@pytest.mark.parametrize(
    "damage",
    [
        {2: -2},
        {4: ["m" * 5000, -1, 0, [], []]},
        {4: ["m", -1, 0, ["O"] * 5000, []]},
        {4: ["m", -1, 0, [], [["I", 11, [1] * 60, 4]] * 100]},
        {2: SLOTS, 4: ["m", -1, 0, [], []]},
        {2: True, 4: ["m", -1, 0, [], []]},
        {1: -1, 4: ["m", -1, 0, [], []]},
        {3: 7, 4: ["m", -1, 0, [], []]},
        {4: ["m", -1, 0, [], [["I", 99, [1], 4]]]},
        {4: ["m", -1, 0, [], [["I", 11, [1], -4]]]},
        {4: ["m", -1, 0, [], [["I", 11, [1] * 65, 4]]]},
        {4: ["m", -1, 0, [], [["I", 11, [2**64], 4]]]},
        {4: ["m", -1, 0, [], [["I", 11, [1.0], 4]]]},
        {4: ["m", -1, 0, [], [["I", 11, [1], 1 << 40]]]},
        {4: ["m", -1, 0, [], [["I", 11, [1], 4, "region"]]]},
        {5: {"raw": 1 << 40}},
        {5: {"unknown": 1}},
        {5: {"flags": 4}},
        {5: {"lease": 0}},
        {5: {"trace": ["m", "0", "1", 0, []]}},
        {5: {"trace": ["m", "f" * 33, "1", 0, []]}},
        {5: []},
    ],
)
def test_what_cannot_be_ends_the_link(damage: dict[int, Any]) -> None:
    head: list[Any] = [ADMIT, 1, 0, "", ["m", -1, 0, [], []], {}]
    for at, value in damage.items():
        head[at] = value
    with pytest.raises(LinkError):
        Ends().reader.read(head, memoryview(bytes(32)))


def test_texts_in_memory_that_the_front_end_can_change_are_copied() -> None:
    ends = Ends()
    request = InferenceRequest(
        "m", inputs=[Tensor("N", FP32, (1,), bytes(4)), Tensor("T", BYTES, (2,), pack_bytes([b"one", b"two"]))]
    )
    request.raw_input = b"raw"
    head, payload = ends.writer.write(1, request, 0)
    arrived, view = wired(head, payload)
    shared = bytearray(view)
    sent = ends.reader.read(arrived, memoryview(shared))
    assert sent.shared == (1, 2)
    assert sent.shared_bytes == 14 + 3
    sent.copy_shared(bytes)
    shared[:] = b"\xff" * len(shared)
    assert list(sent.request.inputs[1].array) == [b"one", b"two"]
    assert sent.request.raw_input == b"raw"
    assert bytes(sent.request.inputs[0].buffer) == b"\xff" * 4
    assert ends.reader.read(arrived, view).shared == ()  # it was copied out of the ring


# ---- shared memory ----


@pytest.fixture
def regions() -> Iterator[Regions]:
    name = f"trireme_test_{os.getpid()}"
    path = f"/dev/shm/{name}"
    with open(path, "wb") as file:
        file.write(bytes(range(256)) * 16)
    registered = Regions(lambda: None)
    try:
        registered.register_system("r", f"/{name}", 0, 4096)
        yield registered
    finally:
        os.unlink(path)


def test_inputs_and_outputs_in_regions_are_found_by_the_engine(regions: Regions) -> None:
    table, remote = RegionTable(regions), RemoteRegions()
    remote.read(*wired(*write_regions(1, table.refresh())))
    request = InferenceRequest(
        "m",
        inputs=[
            Tensor("A", FP32, (1,), b"abcd"),
            RegionTensor("R", FP32, (2,), remote.slice("r", 8, 8)),
            Tensor("T", BYTES, (1,), pack_bytes([b"x"])),
        ],
        in_regions=True,
    )
    request.output_places = {"OUT": remote.slice("r", 64, 16)}
    ends = Ends(regions)
    head, payload = ends.writer.write(1, request, 0)
    arrived, view = wired(head, payload)
    sent = ends.reader.read(arrived, memoryview(bytearray(view)))
    first, second, third = sent.request.inputs
    assert [bytes(each.buffer) for each in (first, second, third)] == [b"abcd", bytes(range(8, 16)), b"\1\0\0\0x"]
    assert isinstance(second, RegionTensor)
    assert sent.request.in_regions
    assert sent.shared == (2,)
    assert sent.places == {"OUT": regions.slice("r", 64, 16)}
    assert sent.request.output_places == sent.places


def test_a_region_that_is_gone_refuses_the_request_and_not_the_link(regions: Regions) -> None:
    request = InferenceRequest("m", inputs=[RegionTensor("R", FP32, (2,), regions.slice("r", 0, 8))], in_regions=True)
    request.output_places = {"OUT": RegionSlice(regions.slice("r", 0, 8).region, 0, 8)}
    regions.unregister(RegionKind.SYSTEM)
    sent = Ends(regions).pass_on(request)
    assert isinstance(sent.refusal, NotFoundError)
    assert sent.refusal.message == "Unable to find shared memory region: 'r'"


def test_regions_keep_their_identity_until_they_are_registered_again(regions: Regions) -> None:
    table, remote = RegionTable(regions), RemoteRegions()
    remote.read(*wired(*write_regions(1, table.refresh())))
    place = remote.slice("r", 0, 8)
    region: Any = regions.status(RegionKind.SYSTEM, "r")[0]
    assert not table.refresh()
    regions.register_system("s", region.key, 0, 4096)
    rows = table.refresh()
    assert rows == [["s", RegionKind.SYSTEM.value, 4096]]  # what has not changed is not told again
    remote.read(*wired(*write_regions(2, rows)))
    assert remote.slice("r", 0, 8).region is place.region
    regions.unregister(RegionKind.SYSTEM)
    regions.register_system("r", region.key, 0, 4096)
    remote.read(*wired(*write_regions(table.generation, table.refresh())))
    assert remote.slice("r", 0, 8).region is not place.region
    with pytest.raises(NotFoundError):
        remote.slice("s", 0, 8)
    assert table.everything() == [["r", RegionKind.SYSTEM.value, 4096]]


def test_names_of_regions_may_be_long(regions: Regions) -> None:
    table, remote = RegionTable(regions), RemoteRegions()
    key = regions.status(RegionKind.SYSTEM, "r")[0].key  # type: ignore[union-attr]
    for number in range(100):
        regions.register_system(f"{number}-{'n' * 8_000}", key, 0, 4096)
    head, payload = write_regions(1, table.refresh())
    assert len(orjson.dumps(head)) < 100
    remote.read(*wired(head, payload))
    assert remote.slice(f"99-{'n' * 8_000}", 0, 8).byte_size == 8


@given(JSON)
def test_any_other_word_about_regions_is_an_error_of_the_link(value: Any) -> None:
    said = orjson.dumps(value)
    for head in ([40, 1, value], [40, value, len(said)], [40, 1, len(said)]):
        with suppress(LinkError):
            RemoteRegions().read(head, memoryview(said))
