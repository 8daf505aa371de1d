"""The attacks: what they send is what it is said to be, and what they do is judged as it should be."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: names there are also those of other tests

import attack_payloads as payloads
from attack import BUDGET_BYTES, Result
from attack_clients import Seen, frame, goaway_in, status_of

MIB = 1 << 20


def test_bombs_unpack_to_what_they_are_said_to_be() -> None:
    shape = json.loads(gzip.decompress(payloads.many_dims(1000)))["inputs"][0]["shape"]
    assert shape == [payloads.HEAVY_DIM] * 1000
    nested = json.loads(gzip.decompress(payloads.nested_lists(3 * MIB)))["inputs"][0]["data"]
    assert nested == [[]] * (MIB + 1)
    assert json.loads(payloads.duplicate_keys(600)) == {"a": 1}
    assert json.loads(payloads.empty_strings_json(7))["inputs"][0]["data"] == [""] * 7
    zeros = payloads.gzip_repeated(b"<", b"ab", 5 * MIB, b">")
    assert len(zeros) < 20_000
    assert gzip.decompress(zeros) == b"<" + b"ab" * (5 * MIB) + b">"


def test_messages_by_hand_are_messages() -> None:
    request = service_pb2.ModelInferRequest  # pyright: ignore[reportAttributeAccessIssue]
    vast = request.FromString(payloads.grpc_many_dims("a", 1000))
    assert (vast.model_name, list(vast.inputs[0].shape)) == ("a", [payloads.HEAVY_DIM] * 1000)
    texts = request.FromString(payloads.grpc_empty_strings("a", 300))
    assert (list(texts.inputs[0].shape), len(texts.inputs[0].contents.bytes_contents)) == ([1, 300], 300)
    small = request.FromString(payloads.grpc_small("a"))
    assert len(small.raw_input_contents[0]) == 64


def result(*, waited_ms: float = 1.0, failures: int = 0, memory_mib: float = 0.0, alive: bool = True) -> Result:
    return Result("an attack", "400", 0.1, memory_mib, Seen(10, failures, waited_ms, 1.0), alive)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (result(waited_ms=51), "waited 51 ms"),
        (result(failures=2), "2 requests of another client failed"),
        (result(memory_mib=2 * BUDGET_BYTES / MIB + 1), "513 MiB"),
        (result(alive=False), "the server has died"),
    ],
)
def test_what_others_notice_is_a_complaint(bad: Result, complaint: str) -> None:
    assert bad.complaints == [complaint]


def test_an_attack_without_an_effect_is_none() -> None:
    assert result(waited_ms=49, memory_mib=2 * BUDGET_BYTES / MIB).complaints == []


def test_answers_are_read_as_what_they_are() -> None:
    assert status_of(b"HTTP/1.1 413 Payload Too Large\r\n\r\n") == "413"
    assert status_of(b"") == "closed"
    assert goaway_in(frame(4, 0, 0) + frame(7, 0, 0, bytes(4) + (11).to_bytes(4, "big"))) == "goaway 11"
    assert goaway_in(frame(4, 0, 0)) is None
