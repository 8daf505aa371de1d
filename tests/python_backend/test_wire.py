"""The server's side of the values that it exchanges with a Python model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.python_backend import wire
from trireme.python_backend.child.codec import MessageError
from trireme.python_backend.wire import KnownTensors, read_tensor

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
