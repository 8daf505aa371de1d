"""A large JSON text is read as a small one is: the same values, the same errors, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trireme.api.http.infer.request import DecodedInfer, InferTerms, decode_document, decode_infer
from trireme.api.http.json import pieces as json_pieces
from trireme.api.http.json import reader as json_reader
from trireme.api.http.json import scan as json_scan
from trireme.api.http.json import strict as json_strict
from trireme.api.http.json.pieces import LargeArray, LargeString, OddTextError, cut
from trireme.api.http.json.reader import LargeText, infer_places, read_text
from trireme.api.http.json.scan import scan
from trireme.api.request_parameters import MAX_TEXT_BYTES
from trireme.engine.errors import InvalidArgumentError, TriremeError
from trireme.engine.memory.regions import Regions
from trireme.engine.tensor import Tensor

MANY = 1 << 20
LIMIT_BYTES = 1 << 26

NUMBERS = st.sampled_from(
    [b"1", b"-1", b"0.5", b"1e3", b"300", b"18446744073709551615", b"99999999999999999999", b"1e400"]
)
OTHERS = st.sampled_from(
    [
        b"true",
        b"null",
        b"NaN",
        b"-",
        b"01",
        b'"a,b]["',
        b'"\\"\\\\"',
        b'"\xc3\xa9\\u00e9"',
        b'"\xff"',
        b'"\x7f0"',
        b'"\\ud800"',
        b'{"a":1}',
        b"[]",
        b"",
        b" ",
    ]
)
ELEMENTS = NUMBERS | NUMBERS | OTHERS
ARRAYS = st.recursive(
    st.lists(NUMBERS, max_size=9).map(lambda parts: b"[" + b" ,".join(parts) + b"]"),
    lambda inner: st.lists(inner | ELEMENTS, max_size=5).map(lambda parts: b"[" + b",\n".join(parts) + b"]"),
    max_leaves=12,
)
STRINGS = st.lists(st.text('ab,"\\é漢\U0001f600\n[]{}:', max_size=30), max_size=8).map(orjson.dumps)
INPUT = st.builds(
    lambda data, shape, kind, order: (
        b"{%b}"
        % b",".join(
            [b'"name":"A"', b'"shape":%b' % orjson.dumps(shape), b'"datatype":"%b"' % kind, b'"data":%b' % data][
                :: 1 if order else -1
            ]
        )
    ),
    ARRAYS | STRINGS,
    st.lists(st.integers(0, 6), max_size=2),
    st.sampled_from([b"FP32", b"INT8", b"UINT64", b"INT64", b"BOOL", b"BYTES", b"FP16"]),
    st.booleans(),
)
BODIES = st.builds(
    lambda inputs, more, end: b'{"id":"x"%b,"inputs":[%b]%b' % (more, b",".join(inputs), end),
    st.lists(INPUT, max_size=3),
    st.sampled_from(
        [
            b"",
            b"",
            b',"data":[1,2,3,4,5,6]',
            b',"id":"y"',
            b',"parameters":{"p":[1,2,3,4]}',
            b',"parameters":{"\\u007f0":1}',
        ]
    ),
    st.sampled_from([b"}", b"}", b"}", b"", b"}x", b"]}"]),
)


def decoded(body: bytes, read: Callable[[bytes], DecodedInfer]) -> object:
    try:
        result = read(body)
    except TriremeError as error:
        return type(error), error.message
    return [
        (each.name, each.datatype, each.shape, bytes(each.buffer)) for each in result.request.inputs
    ], result.request.id


def whole(body: bytes) -> DecodedInfer:
    return decode_infer(body, len(body), "m", 1, InferTerms(LIMIT_BYTES, Regions()))


def in_pieces(body: bytes, nbytes: int = json_scan.PIECE_BYTES, most: int = MANY) -> DecodedInfer:
    return LargeText(memoryview(body), most, nbytes).read(
        infer_places,
        lambda document: decode_document(document, memoryview(b""), "m", 1, InferTerms(LIMIT_BYTES, Regions())),
    )


@contextmanager
def small_pieces(nbytes: int) -> Iterator[None]:
    """Pieces so small that any text is large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "PIECE_BYTES", nbytes)
        patch.setattr(json_pieces, "_LONG_BYTES", 2 * nbytes)
        patch.setattr(json_strict, "_PIECE_BYTES", nbytes)
        yield


@settings(max_examples=150)
@given(body=BODIES, nbytes=st.sampled_from([13, 16, 21, 64]))
@example(body=b'{"inputs":[{"name":"A","shape":[2],"datatype":"INT8","data":[      1,2,     ]}]}', nbytes=13)
@example(body=b'{"inputs":[{"name":"A","shape":[2],"datatype":"INT8","data":[     ,1,      2]}]}', nbytes=13)
@example(body=b'{"inputs":[{"name":"A","shape":[2],"datatype":"INT8","data":[[1     ,],[  2]]}]}', nbytes=13)
@example(
    body=b'{"inputs":[{"name":"A","shape":[1],"datatype":"BYTES","data":["%b"]}]}' % ("é\\n".encode() * 40), nbytes=13
)
@example(
    body=b'{"inputs":[{"name":"A","shape":[1],"datatype":"BYTES","data":["%b"]}]}' % (b"\\ud83d\\ude00" * 20), nbytes=13
)
@example(body=b'{"inputs":[{"name":"A","shape":[],"datatype":"INT8","data":[1,2,3,4,5,6,x,8]}],"id":1}', nbytes=13)
def test_large_requests_are_decoded_as_small_ones_are(body: bytes, nbytes: int) -> None:
    """Odd ones included, with the same texts."""
    expected = decoded(body, whole)
    with small_pieces(nbytes):
        assert decoded(body, lambda text: in_pieces(text, nbytes)) == expected


@given(
    st.recursive(
        st.integers(-9, 9) | st.booleans() | st.text('a,:"\\[]{}é', max_size=9),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('a:"', max_size=4), inner, max_size=4),
        max_leaves=30,
    ),
    st.integers(4, 40),
)
def test_a_scan_counts_what_is_there(value: Any, nbytes: int) -> None:
    """Never fewer values than there are, and exactly as many members."""
    found = scan(memoryview(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)), nbytes)
    assert found.members == _members(value)
    assert found.values + sum(run.values for run in found.runs) >= _values(value)
    assert found.depth == _depth(value)


def _values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inner))


def _members(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_members, value.values()))
    return sum(map(_members, value)) if isinstance(value, list) else 0


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def request_text(data: bytes, datatype: str = "FP32", count: int = 0) -> bytes:
    return b'{"inputs":[{"name":"A","shape":[%d],"datatype":"%b","data":%b}]}' % (count, datatype.encode(), data)


def test_no_more_than_a_piece_is_read_at_a_time() -> None:
    """Whatever holds the interpreter's lock does so for one piece."""
    text = request_text(b"[" + b",".join([b"1.5"] * 100_000) + b"]", count=100_000)
    document, _ = cut(memoryview(text), scan(memoryview(text)), infer_places)
    data = document["inputs"][0]["data"]
    assert isinstance(data, LargeArray)
    sizes = [len(piece) for piece in data.pieces() if isinstance(piece, list)]
    assert len(sizes) > 5
    assert max(sizes) <= json_scan.PIECE_BYTES / 4 + 1
    assert sum(sizes) == 100_000
    (tensor,) = in_pieces(text).request.inputs
    assert np.array_equal(tensor.array, np.full(100_000, 1.5, np.float32))


def test_a_string_of_megabytes_is_read_in_pieces_too() -> None:
    long = b"a\\n\xc3\xa9" * 600_000
    text = request_text(b'["x", "%b","y"]' % long, "BYTES", 3)
    document, _ = cut(memoryview(text), scan(memoryview(text)), infer_places)
    pieces = document["inputs"][0]["data"].pieces()
    (parts,) = [list(piece.pieces()) for piece in pieces if isinstance(piece, LargeString)]
    assert b"".join(parts) == long.replace(b"\\n", b"\n")
    assert max(map(len, parts)) <= json_scan.PIECE_BYTES
    (tensor,) = in_pieces(text).request.inputs
    assert tensor.array.tolist() == [b"x", long.replace(b"\\n", b"\n"), b"y"]


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b",".join([b"[]"] * 2_000) + b"]",
        b"{" + b",".join([b'"a":0'] * 2_000) + b"}",
        request_text(b"[" + b",".join([b"{}"] * 2_000) + b"]"),
        b'{"inputs":[%b]}' % b",".join([b"{}"] * 2_000),
    ],
    ids=["arrays", "duplicates", "objects in data", "inputs"],
)
def test_texts_of_too_many_values_are_refused_before_any_is_made(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trireme.api.http.json.reader.parse_strictly", lambda _text: pytest.fail("was read"))
    with pytest.raises(InvalidArgumentError, match="--http-max-json-values"):
        LargeText(memoryview(text), 1_000).read(infer_places, lambda document: document)


def test_plain_data_does_not_count_as_values() -> None:
    text = request_text(b"[" + b",".join([b"1"] * 100_000) + b"]", count=100_000)
    decoded = LargeText(memoryview(text), 1_000).read(infer_places, lambda document: document)
    assert isinstance(decoded["inputs"][0]["data"], LargeArray)


@pytest.mark.parametrize(
    ("element", "kind"),
    [(b"NaN", "FP32"), (b"-Inf", "FP64"), (b'"\xff"', "BYTES")],
    ids=["NaN", "infinite", "no UTF-8"],
)
def test_nor_does_odd_data_that_is_only_data(element: bytes, kind: str) -> None:
    """It is read by the strict reader, and in pieces as well."""
    text = request_text(b"[" + b",".join([element] * 30_000) + b"]", kind, 30_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trireme.api.http.json.reader.parse_strictly", lambda _text: pytest.fail("was read at once"))
        (tensor,) = in_pieces(text, most=2_000).request.inputs
    assert tensor.element_count == 30_000
    assert bytes(tensor.buffer) == bytes(whole(text).request.inputs[0].buffer)


def test_large_invalid_texts_are_refused_without_being_read_as_a_whole() -> None:
    text = request_text(b"[" + b",".join([b"1"] * 90_000) + b",x]", "FP32", 90_000)
    with pytest.raises(InvalidArgumentError, match="too large to say where"):
        in_pieces(text, most=2_000)


def test_texts_besides_data_are_limited_in_length() -> None:
    """One string can be made by one call only."""
    text = b'{"id":"%b","a":"%b","inputs":[]}' % (b"x" * 50_000, b"x" * 50_000)
    assert LargeText(memoryview(text), 3_200).read(infer_places, lambda document: document)["inputs"] == []
    with pytest.raises(InvalidArgumentError, match="32 for each value that --http-max-json-values allows"):
        LargeText(memoryview(text), 3_100)


@pytest.mark.parametrize("end", [b'","inputs":[]}', b'"'], ids=["valid", "not JSON"])
def test_bytes_that_are_no_utf8_are_limited_besides_data(end: bytes) -> None:
    """They become four bytes each on their way, and a string of them is made by one call."""
    for count in (1, 11):
        body = b'{"id":"' + b'","b":"'.join([b"\xff" * 50_000] * 2 * count) + end
        many = len(body) > MAX_TEXT_BYTES
        with pytest.raises(TriremeError) if len(end) == 1 or many else nullcontext() as caught:
            assert LargeText(memoryview(body), MANY).read(infer_places, lambda document: document)["inputs"] == []
        assert (caught is not None and "is not UTF-8" in caught.value.message) is many


@pytest.mark.parametrize("nested", [False, True])
def test_strings_of_large_data_are_counted(nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being read, where they are the outermost elements."""
    data = b"[" + b",".join([b'""'] * (MANY + 1)) + b"]"
    if nested:
        data = b"[" + data + b"]"
    else:
        monkeypatch.setattr(LargeArray, "pieces", lambda _array: pytest.fail("was read"))
    with pytest.raises(InvalidArgumentError, match="--max-tensor-elements"):
        in_pieces(request_text(data, "BYTES", MANY + 1))


def test_texts_of_any_size_can_be_read_whole() -> None:
    assert read_text(memoryview(b'{"a":1}'), 10) == {"a": 1}
    long = orjson.dumps({"a": ["b"] * 30_000})
    assert read_text(memoryview(long), MANY) == {"a": ["b"] * 30_000}
    for text in (b"[1,2,3,4,5,6,7,8,9,10]", long):
        with pytest.raises(InvalidArgumentError, match="--http-max-json-values"):
            read_text(memoryview(text), 8)


def test_long_texts_are_read_in_pieces_whatever_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for all of a file in a load request would hold up the event loop."""
    monkeypatch.setattr(json_reader, "parse", lambda _text: pytest.fail("was read by one call"))
    content = "b" * (1 << 20)
    assert read_text(memoryview(orjson.dumps({"a": content})), MANY) == {"a": content}


def test_bytes_that_are_no_utf8_are_moved_as_a_whole() -> None:
    """A megabyte of them took a second, one by one."""
    value = json_strict.parse_strictly(b'{"a":"%b"}' % (b"\xff" * 200_000))
    assert value["a"].encode("utf-8", "surrogateescape") == b"\xff" * 200_000


def check_all(text: bytes) -> None:
    for large in cut(memoryview(text), scan(memoryview(text), 16), infer_places)[1]:
        large.check()


def test_odd_texts_say_so() -> None:
    for text in (request_text(b"[1,2,3,,4]"), request_text(b'["\x7f"]'), b"[", b'{"a":1,"a":2}'):
        with pytest.raises(OddTextError):
            check_all(text)


def test_a_tensor_of_large_data_is_as_wide_as_its_type() -> None:
    text = request_text(b"[" + b",".join([b"300"] * 70_000) + b"]", "INT8", 70_000)
    (tensor,) = in_pieces(text).request.inputs
    assert isinstance(tensor, Tensor)
    assert tensor.array.dtype == np.int8
    assert set(tensor.array.tolist()) == {44}
