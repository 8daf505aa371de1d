"""Work on large JSON is done in small pieces, and the thread that does it gives way to others after each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import orjson
import pytest

from trireme.api.http.infer import response
from trireme.api.http.infer.request import AS_BINARY, AS_JSON, DecodedInfer
from trireme.api.http.infer.response import encode_infer
from trireme.api.http.json import pieces as json_pieces
from trireme.api.http.json import scan as json_scan
from trireme.api.http.json import steps as json_steps
from trireme.api.http.json import strict as json_strict
from trireme.api.http.json import tensor as json_tensor
from trireme.api.http.json import writer as json_writer
from trireme.api.http.json.pieces import cut
from trireme.api.http.json.reader import infer_places
from trireme.api.http.json.scan import PIECE_BYTES, scan
from trireme.api.http.json.strict import parse_strictly
from trireme.api.pipeline import MANY_ELEMENTS, element_by_element
from trireme.engine.admission.large_requests import LARGE_BYTES
from trireme.engine.datatypes import BOOL, BYTES, FP64, INT32, INT64, DataType
from trireme.engine.errors import InternalError
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import Buffer, Tensor, joined, pack_bytes


class Pieces:
    """What is done between two times of giving way: `sizes` has what each call had to do, one list for each piece."""

    def __init__(self) -> None:
        self.sizes: list[list[int]] = [[]]

    def give_way(self) -> None:
        self.sizes.append([])

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(data: Any, *args: Any, **options: Any) -> Any:
            self.sizes[-1].append(len(data))
            return function(data, *args, **options)

        return call

    @property
    def largest(self) -> int:
        return max(sum(each) for each in self.sizes)

    @property
    def total(self) -> int:
        return sum(map(sum, self.sizes))


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    seen = Pieces()
    for module in (json_pieces, json_scan, json_strict, json_writer):
        monkeypatch.setattr(module, "give_way", seen.give_way)
    return seen


def document(data: bytes) -> bytes:
    return b'{"inputs":[{"name":"A","shape":[1],"datatype":"FP32","data":%b}]}' % data


NUMBERS = orjson.dumps(np.random.default_rng(0).random(100_000), option=orjson.OPT_SERIALIZE_NUMPY)
ROWS = orjson.dumps(np.random.default_rng(0).random((1_000, 100)), option=orjson.OPT_SERIALIZE_NUMPY)
STRINGS = orjson.dumps(["s" * 100] * 10_000)


@pytest.mark.parametrize("data", [NUMBERS, ROWS, STRINGS], ids=["numbers", "rows", "strings"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_large_array_is_read_in_pieces(
    pieces: Pieces, monkeypatch: pytest.MonkeyPatch, data: bytes, strict: bool
) -> None:
    text = memoryview(document(data))
    monkeypatch.setattr(json_pieces, "_read", pieces.counted(json_pieces._read))
    _, large = cut(text, scan(text), infer_places, strict=strict)
    before = len(pieces.sizes)
    assert min(len(list(each.pieces())) for each in large) > len(data) // PIECE_BYTES
    assert len(pieces.sizes) > before + len(data) // PIECE_BYTES
    assert pieces.largest <= PIECE_BYTES + 1_000
    assert pieces.total >= len(data) * 0.99


def test_a_long_string_is_read_in_pieces(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    text = memoryview(document(b'["%b"]' % (b"s" * 2_000_000)))
    monkeypatch.setattr(json_pieces, "_characters", pieces.counted(json_pieces._characters))
    _, large = cut(text, scan(text), infer_places)
    for each in large:
        each.check()
    assert pieces.largest <= PIECE_BYTES
    assert pieces.total == 2_000_000


def test_a_text_is_looked_at_in_pieces(pieces: Pieces) -> None:
    scan(memoryview(NUMBERS))
    assert len(pieces.sizes) - 1 == len(NUMBERS) // PIECE_BYTES + 1


@pytest.mark.parametrize(("data", "looked_at"), [(NUMBERS, 2), (ROWS, len(ROWS) // PIECE_BYTES + 1)])
def test_flat_numbers_are_only_looked_at_closely_where_they_begin_and_end(
    monkeypatch: pytest.MonkeyPatch, data: bytes, looked_at: int
) -> None:
    seen: list[int] = []
    structure = json_scan._Scanner._structure

    def counted(scanner: Any, characters: np.ndarray, start: int) -> Any:
        seen.append(start)
        return structure(scanner, characters, start)

    monkeypatch.setattr(json_scan._Scanner, "_structure", counted)
    found = scan(memoryview(document(data)))
    assert len(seen) == looked_at
    assert found.runs[0].values == data.count(b",") + data.count(b"[")


def test_a_large_text_is_read_strictly_in_pieces(pieces: Pieces) -> None:
    assert len(parse_strictly(NUMBERS)) == 100_000
    assert len(pieces.sizes) > len(NUMBERS) / 16_384


def test_what_is_read_on_the_event_loop_never_sleeps(pieces: Pieces) -> None:
    parse_strictly(document(orjson.dumps([1] * 14_000)))
    few = Tensor("A", FP64, (MANY_ELEMENTS,), array=np.zeros(MANY_ELEMENTS))
    strings = Tensor("A", BYTES, (MANY_ELEMENTS,), pack_bytes([b"string"] * MANY_ELEMENTS))
    long = Tensor("A", BYTES, (1,), pack_bytes([b"s" * (LARGE_BYTES - 4)]))
    for tensor in (few, strings, long):
        assert not element_by_element(tensor)
        json_writer.tensor_pieces(tensor)
    assert pieces.sizes == [[]]


@pytest.mark.parametrize("datatype", [FP64, INT32])
def test_numbers_are_written_in_pieces(pieces: Pieces, monkeypatch: pytest.MonkeyPatch, datatype: DataType) -> None:
    monkeypatch.setattr(json_writer, "_elements", pieces.counted(json_writer._elements))
    json_writer.tensor_pieces(Tensor("A", datatype, (100_000,), array=np.zeros(100_000, datatype.storage)))
    assert pieces.largest == 4_096
    assert pieces.total == 100_000


def test_strings_are_written_in_pieces(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_writer, "_strings", pieces.counted(json_writer._strings))
    json_writer.tensor_pieces(Tensor("A", BYTES, (100_000,), pack_bytes([b"string"] * 100_000)))
    assert pieces.largest <= 4_096
    assert pieces.total == 100_000


@pytest.mark.parametrize("length", [200, 300_000])
def test_strings_are_written_in_pieces_of_so_many_bytes(
    pieces: Pieces, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Each is gone through, for what has to be escaped, by one call."""
    count = 3_000_000 // length
    monkeypatch.setattr(json_writer, "_escape", pieces.counted(json_writer._escape))
    monkeypatch.setattr(json_writer, "_strings", lambda batch: pieces.counted(orjson.dumps)(b"".join(batch).decode()))
    json_writer.tensor_pieces(Tensor("A", BYTES, (count,), pack_bytes([b"s" * length] * count)))
    assert pieces.largest <= PIECE_BYTES + length % PIECE_BYTES
    assert pieces.total == count * length


def test_a_large_answer_is_put_together_in_pieces(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that has not been written to before takes the system's time."""
    monkeypatch.setattr(response, "give_way", pieces.give_way)
    before = 0

    def counted(parts: list[Buffer], between: Callable[[], object] | None) -> memoryview:
        nonlocal before
        before = len(pieces.sizes)
        return joined(parts, between)

    monkeypatch.setattr(response, "joined", counted)
    tensor = Tensor("A", BYTES, (200_000,), pack_bytes([b"s" * 60] * 200_000))
    answer = encode_infer(InferenceResponse("m", 1, "", [tensor]), DecodedInfer(InferenceRequest("m"), {}, AS_JSON))
    assert answer.tail is not None
    assert before > 0
    assert len(pieces.sizes) - before >= len(answer.tail) >> 20 > 10


def test_an_answer_of_many_numbers_is_sent_from_where_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "joined", None)
    numbers = np.random.default_rng(0).random(100_000)
    few = Tensor("A", INT32, (2,), array=np.array([1, 2], np.int32))
    tensors = [few, Tensor("B", FP64, (100_000,), array=numbers)]
    answer = encode_infer(InferenceResponse("m", 1, "", tensors), DecodedInfer(InferenceRequest("m"), {}, AS_JSON))
    assert answer.tail is not None
    assert len(answer.tail) > 1_000_000
    first, second = orjson.loads(bytes(answer.body) + bytes(answer.tail))["outputs"]
    assert (first["data"], second["data"]) == ([1, 2], numbers.tolist())


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("count", [3, 200_000])
def test_outputs_of_both_forms_are_closed_once(order: tuple[int, ...], count: int) -> None:
    forms = {str(number): (AS_JSON, AS_BINARY)[binary] for number, binary in enumerate(order)}
    tensors = [Tensor(name, FP64, (count,), array=np.arange(count) + 0.5) for name in forms]
    answer = encode_infer(InferenceResponse("m", 1, "", tensors), DecodedInfer(InferenceRequest("m"), forms, AS_JSON))
    whole = bytes(answer.body) + bytes(answer.tail or b"")
    outputs = orjson.loads(whole[: len(whole) - 8 * count * sum(order)])["outputs"]
    assert [len(each.get("data", ())) for each in outputs] == [0 if binary else count for binary in order]


def test_numbers_that_are_written_large_fit_into_their_memory() -> None:
    longest = [-1.2345678901234567e-06, -2.2250738585072014e-308, -123456789012345680000.0, -1.7976931348623157e308]
    text = json_writer.tensor_data(Tensor("A", FP64, (80_000,), array=np.array(longest * 20_000)))
    assert orjson.loads(text) == longest * 20_000
    integers = Tensor("A", INT64, (80_000,), array=np.full(80_000, -(2**63)))
    assert len(json_writer.tensor_data(integers)) == 80_000 * 21 + 1


def test_numbers_alone_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes as long as to make them."""
    seen: list[int] = []
    flatten = json_tensor._flatten
    monkeypatch.setattr(json_tensor, "_flatten", lambda data: seen.append(len(data)) or flatten(data))
    for data, looked_at in ((NUMBERS, 0), (ROWS, 0), (NUMBERS[:-1] + b",true]", 1)):
        text = memoryview(document(data))
        value, _ = cut(text, scan(text), infer_places)
        large = value["inputs"][0]["data"]
        count = data.count(b",") + 1
        with pytest.raises(InternalError) if looked_at else nullcontext():
            json_tensor.tensor_from_json("A", FP64, (count,), large)
        assert len(seen) == looked_at


@pytest.mark.parametrize("datatype", [BOOL, INT32])
def test_numbers_alone_are_still_of_a_type(datatype: DataType) -> None:
    text = memoryview(document(NUMBERS))
    value, _ = cut(text, scan(text), infer_places)
    with pytest.raises(InternalError, match="attempt to access JSON non-"):
        json_tensor.tensor_from_json("A", datatype, (100_000,), value["inputs"][0]["data"])


def test_giving_way_is_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """To let go of the interpreter's lock for a moment would not do."""
    naps: list[float] = []
    monkeypatch.setattr(json_steps.time, "sleep", naps.append)
    json_steps.give_way()
    assert [nap > 0 for nap in naps] == [True]
