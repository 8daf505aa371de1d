"""The server's side of the values that it exchanges with a Python model."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.python_backend import wire
from trireme.python_backend.child.codec import MessageError
from trireme.python_backend.instance import _BROKEN
from trireme.python_backend.wire import KnownTensors, read_response, read_tensor

PAYLOAD = memoryview(bytes(range(64)))
FP32, BYTES = 11, 13

wires = st.tuples(
    st.sampled_from(["INPUT0", "x", "y" * 300]),
    st.sampled_from([FP32, BYTES, 99]),
    st.lists(st.sampled_from([-1, 0, 1, 2, 4, 16, 1 << 70]), max_size=3).map(tuple),
    st.sampled_from([-4, 0, 4, 32, 60, 64, 1 << 70]),
    st.sampled_from([-4, 0, 4, 16, 32, 64]),
)


def described(read: Any, sent: Any) -> object:
    """What becomes of a tensor that came."""
    try:
        tensor = read(PAYLOAD, sent)
    except MessageError:
        return MessageError
    return tensor.name, tensor.datatype, tensor.shape, bytes(tensor.buffer)


@given(st.lists(wires, max_size=20))
def test_tensors_that_are_known_are_read_as_others_are(sent: list[Any]) -> None:
    known = KnownTensors()
    for each in sent:
        assert described(known.read, each) == described(read_tensor, each)


ODD = [(FP32, (True, 4), 16), (11.0, (1, 4), 16), (FP32, (1.0, 4), 16), (FP32, (1, 4), 16.0), (FP32, (1, 4 + 0j), 16)]


@pytest.mark.parametrize(("number", "shape", "nbytes"), ODD)
def test_what_only_equals_something_known_is_read_as_that(number: Any, shape: Any, nbytes: Any) -> None:
    """A process may send 1.0 or True for 1. Neither gets any further, and no request finds it later."""
    known, exact = KnownTensors(), ("INPUT0", FP32, (1, 4), 0, 16)
    with contextlib.suppress(*_BROKEN):
        known.read(PAYLOAD, ("INPUT0", number, shape, 0, nbytes))
    for sent in (exact, ("INPUT0", number, shape, 0, nbytes), exact):
        tensor = known.read(PAYLOAD, sent)
        assert tensor.shape == (1, 4)
        assert {type(dim) for dim in tensor.shape} == {int}
        assert tensor.datatype is read_tensor(PAYLOAD, exact).datatype
        assert tensor.buffer == PAYLOAD[:16]


@pytest.mark.parametrize("offset", [0.0, float("nan"), None, "0"])
def test_an_offset_that_is_no_number_is_refused_of_known_tensors_too(offset: Any) -> None:
    known = KnownTensors()
    for _ in range(2):
        with pytest.raises(_BROKEN):
            known.read(PAYLOAD, ("INPUT0", FP32, (1, 4), offset, 16))
        known.read(PAYLOAD, ("INPUT0", FP32, (1, 4), 0, 16))


@pytest.mark.parametrize("parameters", [None, (), "", 0, False, ("a",), "a", {1: 2}])
def test_parameters_that_are_none_are_refused(parameters: Any) -> None:
    job: Any = SimpleNamespace(requested_outputs=(), response=lambda *parts: parts)
    assert read_response(job, (None, {}, ()), PAYLOAD, KnownTensors(), {}, False) == ([], {})
    with pytest.raises(_BROKEN):
        read_response(job, (None, parameters, ()), PAYLOAD, KnownTensors(), {}, False)


@pytest.mark.parametrize("offset", [-16, 52, 64, 1 << 70])
def test_a_known_tensor_outside_of_its_message_is_refused(offset: int) -> None:
    known = KnownTensors()
    known.read(PAYLOAD, ("INPUT0", FP32, (1, 4), 0, 16))
    with pytest.raises(MessageError, match="INPUT0"):
        known.read(PAYLOAD, ("INPUT0", FP32, (1, 4), offset, 16))


def test_a_tensor_like_another_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(wire, "read_tensor", lambda payload, sent: seen.append(sent) or read_tensor(payload, sent))
    known = KnownTensors()
    for offset in (0, 16, 32):
        assert known.read(PAYLOAD, ("INPUT0", FP32, (1, 4), offset, 16)).buffer == PAYLOAD[offset : offset + 16]
    assert len(seen) == 1


def test_not_every_tensor_is_remembered() -> None:
    known = KnownTensors()
    for number in range(2_000):
        known.read(PAYLOAD, (f"OUTPUT{number}", FP32, (1, 4), 0, 16))
    known.read(PAYLOAD, ("x" * 100_000, FP32, (1, 4), 0, 16))
    assert len(known._known) <= 256
