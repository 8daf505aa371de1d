"""What may arrive as a body, from the head alone."""

from __future__ import annotations

import orjson
import pytest

from trireme.api.http.bodies import BodyTerms, body_terms
from trireme.api.http.exchange import BodyKind, HttpOptions

MIB = 1 << 20


def terms(kind: BodyKind, headers: list[tuple[bytes, bytes]], inflight_bytes: int = 256 * MIB) -> BodyTerms:
    return body_terms(kind, headers, HttpOptions(64 * MIB, MIB), inflight_bytes)


def refused(kind: BodyKind, inflight_bytes: int = 256 * MIB, /, **headers: object) -> tuple[int, str] | None:
    """Status and text; None for a body that may come."""
    given = [(name.replace("_", "-").encode(), str(value).encode()) for name, value in headers.items()]
    answer = terms(kind, given, inflight_bytes).refusal()
    return None if answer is None else (answer.status, orjson.loads(answer.body)["error"])


@pytest.mark.parametrize(
    ("kind", "limit_bytes", "flag"),
    [
        (BodyKind.JSON, 64 * MIB, "http-max-input-size"),
        (BodyKind.TENSORS, 64 * MIB, "http-max-input-size"),
        (BodyKind.FILES, 64 * MIB, "http-max-input-size"),
        (BodyKind.MANAGEMENT, MIB, "http-max-management-size"),
    ],
)
def test_each_kind_has_its_limit(kind: BodyKind, limit_bytes: int, flag: str) -> None:
    assert refused(kind, content_length=limit_bytes) is None
    text = f"request size of {limit_bytes + 1} bytes exceeds the maximum allowed input size of {limit_bytes} bytes."
    assert refused(kind, content_length=limit_bytes + 1) == (413, f"{text} Use --{flag} to increase the limit.")


def test_binary_tensors_are_bounded_by_what_may_be_in_flight() -> None:
    headers = {"inference_header_content_length": 100}
    assert refused(BodyKind.TENSORS, content_length=256 * MIB, **headers) is None
    answer = refused(BodyKind.TENSORS, content_length=256 * MIB + 1, **headers)
    assert answer is not None
    assert answer[0] == 413
    assert "Use --max-inflight-bytes to" in answer[1]


@pytest.mark.parametrize(
    "headers",
    [
        {"inference_header_content_length": 0},
        {"inference_header_content_length": 64 * MIB + 1},
        {"inference_header_content_length": "x"},
        {"inference_header_content_length": 100, "content_encoding": "gzip"},
    ],
)
def test_raw_compressed_and_misleading_bodies_are_bounded_as_json(headers: dict[str, object]) -> None:
    assert refused(BodyKind.TENSORS, content_length=64 * MIB, **headers) is None
    assert refused(BodyKind.TENSORS, content_length=64 * MIB + 1, **headers) is not None


@pytest.mark.parametrize("kind", list(BodyKind))
@pytest.mark.parametrize("length", [10**12, "9" * 5000])
def test_absurd_lengths_are_refused_whatever_the_call(kind: BodyKind, length: object) -> None:
    assert refused(kind, content_length=length) is not None
    assert refused(kind, content_length=length, inference_header_content_length=10) is not None


def test_nothing_larger_than_the_budget_may_come() -> None:
    limits = MIB
    answer = refused(BodyKind.JSON, limits, content_length=2 * MIB)
    assert answer is not None
    assert answer[1].endswith("Use --max-inflight-bytes to increase the limit.")
    assert refused(BodyKind.JSON, 1, content_length=65_536) is None, "it comes with one read"


def test_what_is_large_or_of_unknown_length_or_waited_for_is_looked_at_first() -> None:
    assert not terms(BodyKind.JSON, [(b"content-length", b"65536")]).arrives
    assert terms(BodyKind.JSON, [(b"content-length", b"65537")]).arrives
    assert terms(BodyKind.JSON, []).arrives
    assert terms(BodyKind.JSON, [(b"content-length", b"1"), (b"expect", b"100-Continue")]).arrives
