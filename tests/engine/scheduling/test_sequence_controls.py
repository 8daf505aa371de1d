"""Control inputs in all forms (docs/reference/sequences.md#control-inputs)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config.sequence import ControlKind, SequenceControl
from trireme.engine.datatypes import BOOL, BYTES, FP32, INT32, INT64, UINT32, UINT64
from trireme.engine.scheduling.sequence.controls import Controls

FORMS = [(INT32, -7, 5), (FP32, 0.5, -2.25), (BOOL, True, False), (BOOL, False, True)]
PLACES = [(True, False), (False, False), (False, True), (True, True)]


@pytest.mark.parametrize(("datatype", "false", "true"), FORMS)
@pytest.mark.parametrize("batching", [False, True])
def test_flags_have_the_values_of_their_place_in_the_form_asked_for(datatype, false, true, batching):
    controls = Controls(
        [
            SequenceControl("S", ControlKind.START, datatype, false, true),
            SequenceControl("E", ControlKind.END, datatype, false, true),
            SequenceControl("R", ControlKind.READY, datatype, false, true),
        ],
        batching,
    )
    for start, end in PLACES:
        inputs = controls.inputs(3, start, end)
        assert set(inputs) == {"S", "E", "R"}
        for name, holds in (("S", start), ("E", end), ("R", True)):
            tensor = inputs[name]
            assert (tensor.name, tensor.datatype) == (name, datatype)
            assert tensor.shape == tensor.array.shape == ((1, 1) if batching else (1,))
            assert tensor.array.dtype == datatype.storage
            assert tensor.array.ravel()[0] == (true if holds else false)
    assert {name: tensor.array.ravel()[0] for name, tensor in controls.null.items()} == dict.fromkeys("SER", false)


@pytest.mark.parametrize("datatype", [INT32, UINT32, INT64, UINT64])
@given(key=st.integers(0, 2**64 - 1))
def test_numeric_ids_keep_their_low_bits(datatype, key):
    controls = Controls([SequenceControl("C", ControlKind.CORRID, datatype)], True)
    tensor = controls.inputs(key, False, False)["C"]
    assert tensor.has_buffer, "each request has its own: an array is made only for who needs it"
    assert not tensor.has_array
    assert tensor.array.dtype == datatype.storage
    assert int(tensor.array[0, 0]) % 2 ** (8 * datatype.size) == key % 2 ** (8 * datatype.size)
    assert bytes(tensor.buffer) == key.to_bytes(8, "little")[: datatype.size]
    assert controls.null["C"].array.tolist() == [[0]]


def test_a_long_id_in_a_short_type():
    controls = Controls([SequenceControl("C", ControlKind.CORRID, INT32)], False)
    assert controls.inputs(2**32 + 7, False, False)["C"].array.tolist() == [7]


@pytest.mark.parametrize(("key", "element"), [("abc", b"abc"), ("é☃", "é☃".encode()), (12, b"12")])
def test_string_ids(key, element):
    """Numbers are the ids that the server gives in iterative models."""
    controls = Controls([SequenceControl("C", ControlKind.CORRID, BYTES)], True)
    tensor = controls.inputs(key, True, False)["C"]
    assert tensor.array.tolist() == [[element]]
    assert bytes(tensor.buffer) == np.uint32(len(element)).tobytes() + element
    assert controls.null["C"].array.tolist() == [[b""]]


def test_all_controls_are_optional():
    controls = Controls([], True)
    assert controls.inputs(1, True, True) == {}
    assert controls.null == {}


def test_flags_are_shared_and_therefore_read_only():
    controls = Controls([SequenceControl("S", ControlKind.START, INT32, 0, 1)], True)
    with pytest.raises(ValueError, match="read-only"):
        controls.inputs(1, True, False)["S"].array[0, 0] = 3
