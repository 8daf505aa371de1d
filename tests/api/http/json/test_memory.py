"""What reading a large JSON text takes: at most four times the text, or the tensors that it becomes, and no more than
is counted in the budget beforehand (docs/security.md). In pieces, so that nothing long is made by one call."""

from __future__ import annotations

import gc
import re
import tracemalloc
from typing import Any

import orjson
import pytest
from http_fakes import FakeServer, HttpClient
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.http.infer.decoder import InferDecoder
from trireme.api.http.infer.request import DecodedInfer, InferTerms
from trireme.api.http.json import pieces as json_pieces
from trireme.api.http.json.reader import LargeText
from trireme.api.http.json.scan import DEFAULT_MAX_VALUES
from trireme.api.request_parameters import MAX_PARTS, MAX_TEXT_BYTES
from trireme.engine.errors import TriremeError
from trireme.engine.memory.regions import Regions

MIB = 1 << 20
TEXT_BYTES = 3 * MIB
WORKING_BYTES = 8 * MIB
"""What may be made besides and thrown away at once, however large the text is; a few threads read at a time."""

VALUES_BYTES = 32 * MIB
"""What as many values as there may be take, besides the data of tensors."""


def tensor(datatype: str, count: int, data: str) -> bytes:
    return f'{{"inputs":[{{"name":"A","datatype":"{datatype}","shape":[{count}],"data":{data}}}]}}'.encode()


def repeated(element: str, datatype: str) -> bytes:
    count = TEXT_BYTES // (len(element) + 1)
    return tensor(datatype, count, f"[{','.join([element] * count)}]")


def in_member(elements: list[str], brackets: str = "[]") -> bytes:
    return f'{{"foo":{brackets[0]}{",".join(elements)}{brackets[1]},"inputs":[]}}'.encode()


DATA = {
    "digits as bytes": repeated("1", "UINT8"),
    "digits": repeated("1", "INT64"),
    "digits as floats": repeated("1", "FP64"),
    "floats": repeated("3.1415926", "FP32"),
    "bools": repeated("true", "BOOL"),
    "odd numbers": repeated("NaN", "FP32"),
    "empty strings": repeated('""', "BYTES"),
    "letters": repeated('"a"', "BYTES"),
    "words": repeated('"abcdefgh"', "BYTES"),
    "escapes": repeated('"\\u00e9"', "BYTES"),
    "long strings": repeated(f'"{"x" * 5_000}"', "BYTES"),
    "one string": tensor("BYTES", 1, f'["{"x" * TEXT_BYTES}"]'),
    "one string of escapes": tensor("BYTES", 1, '["' + "\\n" * (TEXT_BYTES // 2) + '"]'),
    "nested": repeated("[1]", "INT32"),
    "deeply nested": repeated("[[[[1]]]]", "INT32"),
    "empty arrays": repeated("[]", "INT32"),
    "strings as numbers": repeated('"a"', "INT32"),
    "objects": repeated('{"a":1}', "INT32"),
    "no JSON": repeated("1", "INT32")[:-1],
    "numbers where no tensor is": in_member(["1"] * (TEXT_BYTES // 2)),
    "strings where no tensor is": in_member(['"ab"'] * (TEXT_BYTES // 5)),
    "arrays where no tensor is": in_member(["[]"] * (TEXT_BYTES // 3)),
    "duplicate keys": in_member(['"a":1'] * (TEXT_BYTES // 6), "{}"),
    "a string where no tensor is": in_member([f'"{"x" * TEXT_BYTES}"']),
}

FEW = DEFAULT_MAX_VALUES - 10
PARTS = {
    "different keys": in_member([f'"{number:x}":1' for number in range(FEW)], "{}"),
    "the same keys": in_member(['"a":1'] * FEW, "{}"),
    "empty objects": in_member(["{}"] * FEW),
    "short arrays": in_member(["[]"] * FEW),
    "short strings": in_member(['"ab"'] * FEW),
    "inputs": orjson.dumps(
        {"inputs": [{"name": f"a{n}", "shape": [1], "datatype": "INT32", "data": [1]} for n in range(MAX_PARTS)]}
    ),
    "parameters": orjson.dumps({"parameters": {f"p{n}": 1 for n in range(MAX_PARTS)}, "inputs": []}),
    "strings with characters of four bytes": orjson.dumps(
        {"parameters": {f"p{n}": "x" * 500_000 + "\U0001f600" for n in range(4)}, "inputs": []}
    ),
}


def measured(text: bytes) -> tuple[int, int, DecodedInfer | None]:
    """Most bytes that reading took, the text not counted; what was charged; what it says, if it was not refused."""
    decoder = InferDecoder(InferTerms(1 << 30, Regions()))
    decoded, cost = None, 0
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        try:
            large = LargeText(memoryview(text), DEFAULT_MAX_VALUES)
            cost = large.cost_bytes
            decoded = decoder.decode_large(large, memoryview(b""), "m", 1)
        except TriremeError:
            pass
        return tracemalloc.get_traced_memory()[1] - before, cost, decoded
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", DATA)
def test_reading_takes_no_more_than_four_times_what_is_read(kind: str) -> None:
    text = DATA[kind]
    peak, cost, decoded = measured(text)
    tensors = 0 if decoded is None else sum(each.nbytes for each in decoded.request.inputs)
    assert peak + len(text) <= 4 * max(len(text), tensors)
    assert peak <= cost + WORKING_BYTES


@given(st.text('[],:{}"\\1 a', max_size=2_000))
def test_what_a_text_is_charged_is_bounded_by_its_length(text: str) -> None:
    """Whatever it says: so this is what one document may take beyond `--max-inflight-bytes`."""
    body = text.encode()
    try:
        cost = LargeText(memoryview(body), DEFAULT_MAX_VALUES, 64).cost_bytes
    except TriremeError:
        return
    values = 1 + sum(map(text.count, ",[{"))
    assert cost <= 8 * len(body) + values * VALUES_BYTES // DEFAULT_MAX_VALUES


@pytest.mark.parametrize("kind", PARTS)
def test_what_is_bounded_by_number_takes_what_is_counted(kind: str) -> None:
    """Each is an object, which is larger than its text; there are only so many."""
    text = PARTS[kind]
    peak, cost, _ = measured(text)
    assert peak <= cost + WORKING_BYTES
    assert peak <= 3 * len(text) + VALUES_BYTES


def test_many_small_strings_are_kept_packed() -> None:
    """A request that waits takes what it is counted with, though it may be too small to be read in pieces."""
    text = tensor("BYTES", 5_000, "[" + ",".join(['"ab"'] * 5_000) + "]")
    decoded = InferDecoder(InferTerms(1 << 30, Regions())).decode(text, len(text), "m", 1)
    (given,) = decoded.request.inputs
    assert not given.has_array
    assert given.nbytes == 5_000 * 6


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the texts were that one call has read, the longest last."""
    seen = [0]
    genuine = orjson.loads

    def loads(text: bytes) -> Any:
        seen.append(max(seen[-1], len(text)))
        return genuine(text)

    monkeypatch.setattr(orjson, "loads", loads)
    return seen


PROMPT = '\u4f60 said "hello"\n' * 200_000


@pytest.mark.parametrize(
    "body",
    [{"IN": PROMPT}, {"parameters": {"IN": PROMPT}}, {"IN": [PROMPT]}],
    ids=["a member", "a nested one", "an array"],
)
async def test_a_long_text_is_read_in_pieces(body: dict[str, Any], longest: list[int]) -> None:
    """Such as the prompt of a generate request."""
    server = FakeServer()
    await HttpClient(server).post("/v2/models/strings/generate", orjson.dumps(body))
    (request,) = server.submitted
    assert request.inputs[0].array.tolist() == [PROMPT.encode()]
    assert longest[-1] <= json_pieces.PIECE_BYTES + 10


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("infer", {"id": "x" * (MAX_TEXT_BYTES + 1), "inputs": []}),
        ("infer", {"parameters": {"a": "x" * (MAX_TEXT_BYTES + 1)}, "inputs": []}),
        ("infer", {"foo": [{"a": "x" * (MAX_TEXT_BYTES + 1)}], "inputs": []}),
        ("infer", {"x" * (MAX_TEXT_BYTES + 1): 1, "inputs": []}),
        ("infer", {"parameters": {f"p{n}": "x" * 900_000 for n in range(3)}, "inputs": []}),
        ("generate", {"IN": "a", "other": "x" * (MAX_TEXT_BYTES + 1)}),
        ("generate", {"IN": "a", **{f"p{n}": "x" * 900_000 for n in range(3)}}),
        ("generate", {"IN": "a", "id": "x" * (MAX_TEXT_BYTES + 1)}),
    ],
)
async def test_other_long_texts_are_refused(path: str, body: dict[str, Any], longest: list[int]) -> None:
    server = FakeServer()
    reply = await HttpClient(server).post(f"/v2/models/strings/{path}", orjson.dumps(body))
    assert reply.status == 400
    assert re.search(r"string(s| with)?.* of |string of the", reply.error)
    assert "expected at most" in reply.error
    assert server.submitted == []
    assert longest[-1] < MAX_TEXT_BYTES


async def test_texts_of_a_megabyte_are_taken() -> None:
    """Read by the reader that lets others in between."""
    text = "\u00e9" * (MAX_TEXT_BYTES // 2)
    server = FakeServer()
    client = HttpClient(server)
    for path, body in (
        ("infer", {"id": text, "inputs": [{"name": "IN", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}),
        ("generate", {"IN": "a", "p": text}),
    ):
        await client.post(f"/v2/models/strings/{path}", orjson.dumps(body))
    assert server.submitted[0].id == text
    assert server.submitted[1].parameters["p"] == text
