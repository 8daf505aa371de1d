"""The memory of infer heads: what is decoded from it is what the long way would have decoded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http.infer import decoder as decoder_module
from trireme.api.http.infer.decoder import InferDecoder
from trireme.api.http.infer.request import DecodedInfer, InferTerms, decode_infer
from trireme.engine.datatypes import DATATYPES
from trireme.engine.errors import TriremeError
from trireme.engine.memory.regions import Regions

LIMIT_BYTES = 1 << 20

NAMES = st.sampled_from(["IN", "INPUT1", "é", "", 'quote"d'])
COUNTS = st.integers(0, 2**32)
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | NAMES
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "sequence_id": st.integers(0, 2**64 - 1) | NAMES,
        "sequence_start": st.booleans(),
        "sequence_end": st.booleans(),
        "priority": COUNTS,
        "timeout": COUNTS,
        "binary_data_output": st.booleans(),
        "own": SCALARS,
        "another": SCALARS,
    },
)
OUTPUTS = st.lists(
    st.fixed_dictionaries(
        {"name": NAMES},
        optional={
            "parameters": st.fixed_dictionaries(
                {}, optional={"binary_data": st.booleans(), "classification": st.integers(0, 9)}
            )
        },
    ),
    max_size=3,
)


INPUTS = st.lists(
    st.fixed_dictionaries(
        {
            "name": NAMES,
            "datatype": st.sampled_from([*(each.name for each in DATATYPES), "NONSENSE"]),
            "shape": st.lists(st.integers(0, 4), max_size=3),
            "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(0, 24)}),
        }
    ),
    max_size=3,
)
HEADS = st.fixed_dictionaries(
    {"inputs": INPUTS}, optional={"parameters": PARAMETERS, "outputs": OUTPUTS, "id": st.just("")}
)


def size_of(head: dict[str, Any]) -> int:
    return sum(each["parameters"]["binary_data_size"] for each in head["inputs"])


def facts(decoded: DecodedInfer) -> dict[str, Any]:
    """Everything that a decoded request says, in a form that compares by value."""
    request = decoded.request
    said = {each.name: getattr(request, each.name) for each in fields(request) if each.name != "form"}
    said["inputs"] = [(each.name, each.datatype, each.shape, bytes(each.buffer)) for each in request.inputs]
    said["parameters"] = [(name, type(value), value) for name, value in request.parameters.items()]
    said["forms"] = list(decoded.forms.items())
    said["default_form"] = decoded.default_form
    return said


def outcome(decode: Callable[[], DecodedInfer]) -> object:
    """What is decoded, or how it is refused."""
    try:
        return facts(decode())
    except TriremeError as error:
        return type(error), error.message


def the_long_way(text: bytes, blobs: bytes, version: int = 1) -> object:
    return outcome(lambda: decode_infer(text + blobs, len(text), "model", version, InferTerms(LIMIT_BYTES, Regions())))


def remembered(decoder: InferDecoder) -> int:
    return int(repr(decoder).split()[2])


def fp32_head(**members: Any) -> dict[str, Any]:
    one = {"name": "IN", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    return {"inputs": [one], **members}


@settings(deadline=None)
@given(HEADS, st.data())
def test_a_repeated_head_is_decoded_as_at_first(head: dict[str, Any], data: st.DataObject) -> None:
    """Whatever binary tensors, outputs and parameters it names, and whatever bytes are behind it."""
    text = orjson.dumps(head)
    size = size_of(head)
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    for version in (1, 2, -1):
        blobs = data.draw(st.binary(min_size=size, max_size=size))
        decoded = decoder.decode(text + blobs, len(text), "model", version)
        assert facts(decoded) == the_long_way(text, blobs, version)
        assert remembered(decoder) == (size > 0)
        decoded.request.parameters["added"] = "later"
        decoded.request.inputs.clear()


IDS = st.integers(0, 2**64 - 1) | st.integers(1, 99) | NAMES | st.text("ab7", min_size=1, max_size=2)
STEPS = st.fixed_dictionaries(
    {"sequence_id": IDS}, optional={"sequence_start": st.booleans(), "timeout": COUNTS, "own": SCALARS}
)


@settings(deadline=None)
@given(HEADS, STEPS, st.lists(IDS, min_size=2, max_size=6), st.booleans())
def test_steps_that_differ_in_their_ids_are_decoded_as_if_each_came_alone(
    head: dict[str, Any], parameters: dict[str, Any], ids: list[int | str], spaced: bool
) -> None:
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    for number, identity in enumerate([*ids, *ids]):
        head["parameters"] = {**parameters, "sequence_id": identity}
        text = json.dumps(head, ensure_ascii=False).encode() if spaced else orjson.dumps(head)
        blobs = bytes([number]) * size_of(head)
        assert outcome(lambda: decoder.decode(text + blobs, len(text), "model", 1)) == the_long_way(text, blobs)  # noqa: B023


def steps(decoder: InferDecoder, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Decode requests with these parameters; how many of them went the long way. Checks what is said."""
    read: list[int] = []

    def long_way(*arguments: Any) -> DecodedInfer:
        read.append(1)
        return decode_infer(*arguments)

    monkeypatch.setattr(decoder_module, "decode_infer", long_way)
    inputs = '"inputs":[{"name":"IN","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]'
    for each in texts:
        text = f'{{"parameters":{{{each}}},{inputs}}}'.encode()
        assert facts(decoder.decode(text + bytes(8), len(text), "model", 1)) == the_long_way(text, bytes(8))
    return len(read)


def test_a_thousand_live_sequences_are_decoded_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each id has a head of its own, and there would be room for 512; what begins and ends one is another head."""
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    texts = [f'"sequence_id":{number}' for number in range(1_000, 2_000)]
    assert steps(decoder, texts * 3, monkeypatch) == 2
    assert steps(decoder, [f'{each},"sequence_end":true' for each in texts], monkeypatch) == 2
    assert steps(decoder, [f'"sequence_id" : "user-{number}"' for number in range(100, 200)], monkeypatch) == 2
    assert remembered(decoder) < 10


@pytest.mark.parametrize(
    "parameters",
    [
        '"own":"{0}","sequence_id":{0}',
        '"sequence_id":{0},"sequence_id":5',
        '"sequence_id":5,"sequence_id":{0}',
        '"own\\"sequence_id":{0},"sequence_id":5',
        '"sequence_id":"{0}","sequence\\u005fid":5',
        '"sequence_id":-{0}',
    ],
    ids=["said twice", "first of two", "last of two", "part of a name", "escaped", "negative"],
)
def test_ids_that_do_not_stand_alone_mean_what_they_mean(parameters: str) -> None:
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    inputs = '"inputs":[{"name":"IN","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]'
    for number in range(10, 30):
        text = f'{{"parameters":{{{parameters.format(number)}}},{inputs}}}'.encode()
        read = partial(decoder.decode, text + bytes(8), len(text), "model", 1)
        assert outcome(read) == the_long_way(text, bytes(8))


@pytest.mark.parametrize("step", ['"sequence_id":{0}', '"sequence_id":"{0}"'], ids=["number", "text"])
def test_a_head_with_a_blanked_id_in_it_is_no_head_of_another_client(step: str) -> None:
    """Zero bytes are not JSON; they must not lead to the sequence whose step is remembered."""
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    inputs = '"inputs":[{"name":"IN","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]'
    for identity in ("1000", "2000", "3000", "\0\0\0\0", "\0\0\0\0"):
        text = f'{{"parameters":{{{step.format(identity)}}},{inputs}}}'.encode()
        read = partial(decoder.decode, text + bytes(8), len(text), "model", 1)
        assert outcome(read) == the_long_way(text, bytes(8))
    assert remembered(decoder) == 2


@settings(deadline=None)
@given(HEADS, st.binary(max_size=80))
def test_other_lengths_behind_a_head_that_is_known_get_the_same_error(head: dict[str, Any], blobs: bytes) -> None:
    text = orjson.dumps(head)
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    for _ in range(2):  # it is remembered, and then the one that came last
        decoder.decode(text + bytes(size_of(head)), len(text), "model", 1)
    assert outcome(lambda: decoder.decode(text + blobs, len(text), "model", 1)) == the_long_way(text, blobs)


@settings(deadline=None)
@given(st.lists(HEADS, min_size=1, max_size=3), st.data())
def test_a_body_that_differs_from_the_one_before_is_read_as_if_it_came_alone(
    heads: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Wherever it differs; and whatever length, model and version come with it."""
    bodies = [(orjson.dumps(head), size_of(head)) for head in heads]
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    for _ in range(4):
        text, size = data.draw(st.sampled_from(bodies))
        for _ in range(2):
            outcome(lambda text=text, size=size: decoder.decode(text + bytes(size), len(text), "model", 1))
        body = bytearray(text + bytes(size))
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        length = min(len(text) + data.draw(st.integers(-1, 1)), len(body))
        version = data.draw(st.sampled_from([1, 2]))
        decode = partial(decoder.decode, bytes(body), length, "model", version)
        assert outcome(decode) == the_long_way(bytes(body[:length]), bytes(body[length:]), version)


def test_requests_of_one_head_share_nothing_that_can_be_changed() -> None:
    text = orjson.dumps(fp32_head(parameters={"own": 1}, outputs=[{"name": "OUT"}]))
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    first, second, third = (decoder.decode(text + bytes([n] * 8), len(text), "m", 1).request for n in range(3))
    for one, other in ((first, second), (second, third)):
        assert one is not other
        assert one.inputs is not other.inputs
        assert one.inputs[0] is not other.inputs[0]
        assert one.parameters is not other.parameters
    assert [bytes(each.inputs[0].buffer) for each in (first, second, third)] == [bytes([n] * 8) for n in range(3)]


def test_requests_of_one_head_have_one_form() -> None:
    """By which their validator knows that it has seen the like."""
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    one, other = (orjson.dumps(fp32_head(outputs=[{"name": name}])) for name in ("ONE", "OTHER"))
    forms = [decoder.decode(text + bytes(8), len(text), "m", 1).request.form for text in (one, one, other, other, one)]
    assert forms[0] is forms[2] is None
    assert forms[1] is forms[4] is not None
    assert forms[3] not in forms[:2]


def test_tensors_are_views_on_the_body() -> None:
    text = orjson.dumps(fp32_head())
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    for _ in range(2):
        body = bytearray(text + bytes(8))
        (tensor,) = decoder.decode(body, len(text), "m", 1).request.inputs
        body[-8] = 7
        assert bytes(tensor.buffer) == b"\x07" + bytes(7)


def test_names_of_requests_are_not_remembered() -> None:
    """A client that numbers its requests would fill the memory with heads that never come again."""
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    for number in range(3):
        text = orjson.dumps(fp32_head(id=str(number)))
        assert decoder.decode(text + bytes(8), len(text), "m", 1).request.id == str(number)
    assert remembered(decoder) == 0


@pytest.mark.parametrize("member", [b'"data"', rb'"d\u0061ta"'])
def test_data_in_the_head_is_not_remembered(member: bytes) -> None:
    """Not even if its name is written strangely: later, as many bytes as all tensors have would be taken for theirs."""
    given = {"name": "A", "datatype": "INT32", "shape": [2], "data": [1, 2]}
    text = orjson.dumps({"inputs": [given, *fp32_head()["inputs"]]}).replace(b'"data"', member)
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    for blobs in (bytes(8), bytes(16), bytes(range(8)), bytes(16)):
        decode = partial(decoder.decode, text + blobs, len(text), "model", 1)
        assert outcome(decode) == the_long_way(text, blobs)
    assert remembered(decoder) == 0


def test_bodies_without_bytes_behind_the_head_are_not_remembered() -> None:
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    body = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[2],"data":[1,2]}]}'
    decoder.decode(body, len(body), "m", 1)
    assert decoder.decode(b"raw", 0, "m", 1).request.raw_input == b"raw"
    assert remembered(decoder) == 0


def test_what_was_refused_is_not_remembered() -> None:
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    for text in (b"{", b'{"inputs":3}', orjson.dumps(fp32_head(parameters={"triton_x": 1}))):
        for _ in range(2):
            with pytest.raises(TriremeError):
                decoder.decode(text + bytes(8), len(text), "m", 1)
    assert remembered(decoder) == 0


def test_memory_is_bounded() -> None:
    """In the number of heads and in the size of each."""
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    most = 0
    for number in range(2_000):
        text = orjson.dumps(fp32_head(parameters={"own": number}))
        for _ in range(2):
            assert decoder.decode(text + bytes(8), len(text), "m", 1).request.parameters == {"own": number}
        most = max(most, remembered(decoder))
    assert 0 < most <= 512
    decoder = InferDecoder(InferTerms(LIMIT_BYTES, Regions()))
    text = orjson.dumps(fp32_head(parameters={"own": "x" * 2_048}))
    decoder.decode(text + bytes(8), len(text), "m", 1)
    assert remembered(decoder) == 0
