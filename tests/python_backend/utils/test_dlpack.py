"""Tensors go to and come from other libraries through DLPack, without a copy, for as long as they are referred to."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trireme.python_backend.child.utils.errors import TritonModelException
from trireme.python_backend.child.utils.tensor import Tensor

TYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
shapes = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)


class Watched(np.ndarray):
    """An array that can be watched by a weak reference."""


def watched(count: int) -> tuple[np.ndarray, weakref.ref[Any]]:
    array = np.arange(count, dtype=np.float32).view(Watched)
    return array, weakref.ref(array)


@pytest.mark.parametrize("dtype", TYPES)
def test_torch_sees_the_same_memory(dtype: str) -> None:
    array = np.ones((2, 3), dtype)
    for seen in (torch.from_dlpack(Tensor("a", array)), torch.from_dlpack(Tensor("a", array).to_dlpack())):
        assert seen.data_ptr() == array.ctypes.data
        np.testing.assert_array_equal(seen.numpy(), array)


@pytest.mark.parametrize("dtype", TYPES)
def test_memory_of_torch_is_seen(dtype: str) -> None:
    source = torch.from_numpy(np.ones((2, 3), dtype))
    for given_one in (source, source.__dlpack__(max_version=None)):
        tensor = Tensor.from_dlpack("a", given_one)
        assert tensor.as_numpy().ctypes.data == source.data_ptr()
        assert tensor.as_numpy().dtype == np.dtype(dtype)
        assert tensor.shape() == [2, 3]


@given(arrays.arrays(st.sampled_from(TYPES), shapes))
def test_every_array_survives_both_ways(array: np.ndarray) -> None:
    for seen in (np.from_dlpack(Tensor("a", array)), Tensor.from_dlpack("a", Tensor("b", array)).as_numpy()):
        assert seen.shape == array.shape
        np.testing.assert_array_equal(seen, array)


def test_bf16_passes_through() -> None:
    source = torch.tensor([[1.0, -2.5]], dtype=torch.bfloat16)
    tensor = Tensor.from_dlpack("a", source)
    assert torch.equal(torch.from_dlpack(tensor), source)
    with pytest.raises(TritonModelException, match="BF16"):
        tensor.as_numpy()


def test_read_only_memory_can_be_exported() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    assert torch.from_dlpack(Tensor("a", array)).tolist() == [0, 1, 2]


def test_versioned_export_says_read_only() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    assert not Tensor.from_dlpack("a", array).as_numpy().flags.writeable
    assert Tensor.from_dlpack("a", np.arange(3)).as_numpy().flags.writeable


def test_versioned_capsule_is_taken() -> None:
    assert Tensor.from_dlpack("a", np.arange(3).__dlpack__(max_version=(1, 0))).as_numpy().tolist() == [0, 1, 2]


def test_exporter_without_versions_is_asked_again() -> None:
    class Old:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, stream: object = None) -> object:
            return np.arange(3).__dlpack__()

    assert Tensor.from_dlpack("a", Old()).as_numpy().tolist() == [0, 1, 2]


def test_memory_lives_as_long_as_the_consumer_of_an_export() -> None:
    array, gone = watched(4)
    tensor = Tensor._view("a", array)
    seen = torch.from_dlpack(tensor)
    del array, tensor
    gc.collect()
    assert gone() is not None
    assert seen.tolist() == [0, 1, 2, 3]
    del seen
    gc.collect()
    assert gone() is None


def test_memory_lives_as_long_as_a_view_of_an_import() -> None:
    array, gone = watched(4)
    view = Tensor.from_dlpack("a", array).as_numpy()[1:]
    del array
    gc.collect()
    assert gone() is not None
    assert view.tolist() == [1, 2, 3]
    del view
    gc.collect()
    assert gone() is None


def test_unused_capsule_gives_its_memory_back() -> None:
    array, gone = watched(4)
    capsule = Tensor._view("a", array).to_dlpack()
    del array
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


def test_empty_import_gives_its_memory_back_at_once() -> None:
    array, gone = watched(0)
    tensor = Tensor.from_dlpack("a", array)
    del array
    gc.collect()
    assert tensor.shape() == [0]
    assert gone() is None


def test_copy_is_made_if_asked_for() -> None:
    array = np.arange(3)
    assert np.from_dlpack(Tensor("a", array), copy=True).ctypes.data != array.ctypes.data


@pytest.mark.parametrize("source", [torch.ones(2, 3).T, np.ones((4, 3))[::2], torch.ones(2, 3).expand(2, 2, 3)])
def test_other_orders_are_refused(source: Any) -> None:
    text = "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
    with pytest.raises(TritonModelException) as caught:
        Tensor.from_dlpack("a", source)
    assert str(caught.value) == text


def test_strides_of_single_elements_do_not_matter() -> None:
    assert Tensor.from_dlpack("a", torch.ones(4, 1, 2).transpose(0, 1)).shape() == [1, 4, 2]


def test_bytes_are_refused() -> None:
    with pytest.raises(TritonModelException, match=r"^DLPack does not have support for string tensors\.$"):
        Tensor("a", np.array([b"x"], object)).to_dlpack()


def test_capsule_is_used_once() -> None:
    capsule = np.arange(3).__dlpack__()
    Tensor.from_dlpack("a", capsule)
    with pytest.raises(TritonModelException, match=r"used_dltensor.*expected a DLPack capsule that has not been used"):
        Tensor.from_dlpack("a", capsule)


def test_refused_capsule_can_still_be_used() -> None:
    capsule = np.ones((2, 3)).T.__dlpack__()
    with pytest.raises(TritonModelException, match="contiguous"):
        Tensor.from_dlpack("a", capsule)
    assert torch.from_dlpack(capsule).shape == (3, 2)


def test_objects_without_the_protocol_are_refused() -> None:
    with pytest.raises(TritonModelException) as caught:
        Tensor.from_dlpack("a", 5)
    assert str(caught.value) == (
        "Provided tensor is not supported. Tensor must be a DLPack capsule"
        "         or have `__dlpack__` and `__dlpack_device__` attributes"
    )


def test_other_devices_are_refused() -> None:
    class OnMetal:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 8, 0

        def __dlpack__(self, **options: object) -> object:
            raise AssertionError("it should not be asked")

    with pytest.raises(TritonModelException, match=r"^DLDevice type 8 is not support by Python backend\.$"):
        Tensor.from_dlpack("a", OnMetal())


@pytest.mark.parametrize("source", [np.ones(2, np.complex64), torch.ones(2, dtype=torch.float8_e5m2)], ids=str)
def test_types_that_triton_lacks_are_refused(source: Any) -> None:
    with pytest.raises(TritonModelException, match=r"DLPack type with code .* is not supported"):
        Tensor.from_dlpack("a", source)


def test_device_is_the_cpu() -> None:
    assert Tensor("a", np.zeros(1)).__dlpack_device__() == (1, 0)


def test_a_capsule_is_one_reference_to_its_tensor() -> None:
    """Models count them, to see whether memory is given back."""
    tensor = Tensor("a", np.zeros(3, np.float32))
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == before + 1
    taken = torch.from_dlpack(capsule)
    del capsule
    assert sys.getrefcount(tensor) == before + 1
    del taken
    assert sys.getrefcount(tensor) == before
