"""What messages about tensors repeat is sent once: names, datatypes, shapes and sizes stand in a *spec*, which its
sender puts into a numbered slot of the receiver's.

Rules:
 1. A message that fills a slot has its spec, and the slot's number; one that uses it, the number alone.
 2. The sender chooses the slots. When all are used, the spec that was sent first makes room for a new one, as in
    `engine.memo`: so who never repeats itself makes another's spec go at most once in `SLOTS` messages.
 3. A message that could not be sent has filled nothing (`Specs.unsent`).
 4. Long specs are not remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from ..engine.admission.large_requests import FEW_STRINGS
from ..engine.datatypes import BYTES, DATATYPES, INVALID, DataType
from ..engine.tensor import Tensor
from ..engine.tensor_limits import MAX_RANK
from ..python_backend.child.codec import ALIGNMENT
from .link import LinkError
from .values import broken, read_integer, read_list, read_text

T = TypeVar("T")

SLOTS = 1_024
NO_SLOT = -1
_MOST_SPEC_BYTES = 4_096
_MOST_TENSORS = 16_384
_BY_NUMBER = {each.number: each for each in (INVALID, *DATATYPES)}
_LEAST_DIM, _END_DIM = -(2**63), 2**64


class Specs:
    """The sender's end: which spec is in which slot of the receiver."""

    __slots__ = ("_last", "numbers")

    def __init__(self) -> None:
        self.numbers: dict[tuple[object, ...], int] = {}
        self._last: tuple[object, ...] | None = None

    def fill(self, key: tuple[object, ...], spec: list[Any]) -> tuple[int, orjson.Fragment]:
        """The slot for a spec that is in none, which `key` tells from all others; and the spec as it is sent."""
        packed = orjson.dumps(spec)
        fragment = orjson.Fragment(packed)
        self._last = None
        if len(packed) > _MOST_SPEC_BYTES:
            return NO_SLOT, fragment
        numbers = self.numbers
        slot = len(numbers)
        if slot >= SLOTS:
            slot = numbers.pop(next(iter(numbers)))
        numbers[key] = slot
        self._last = key
        return slot, fragment

    def unsent(self) -> None:
        """The message of the last `fill` was not sent. Its slot is filled by the next spec."""
        if self._last is not None:
            slot = self.numbers.pop(self._last)
            if slot != len(self.numbers):  # one made room for it, and is the receiver's still
                self.numbers[object(),] = slot
            self._last = None


class Slots(Generic[T]):
    """The receiver's end."""

    __slots__ = ("filled",)

    def __init__(self) -> None:
        self.filled: dict[int, T] = {}

    def fill(self, slot: Any, template: T, texts: Sequence[str], tensors: Sequence[TensorSpec]) -> None:
        """Put what a spec says into a slot.

        Args:
            texts, tensors: that it consists of.

        Raises:
            LinkError: there is no such slot, or the spec is too long to be remembered (rule 4).
        """
        if slot == NO_SLOT:
            return
        number = read_integer(slot, 0, SLOTS)
        size = sum([len(text) + 1 for text in texts]) + sum([len(each.name) + len(each.shape) + 4 for each in tensors])
        if size > _MOST_SPEC_BYTES:
            raise LinkError(f"a spec of at least {size} bytes is to be remembered, which may have {_MOST_SPEC_BYTES}")
        self.filled[number] = template

    def get(self, slot: Any) -> T:
        """What is in a slot.

        Raises:
            LinkError: nothing.
        """
        template = self.filled.get(slot) if slot.__class__ is int else None
        if template is None:
            raise broken("a slot that is filled", slot)
        return template


class TensorSpec(NamedTuple):
    """A tensor in a payload: the bytes from `start` to `end`."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    start: int
    end: int

    def tensor(self, payload: memoryview) -> Tensor:
        return Tensor(self.name, self.datatype, self.shape, payload[self.start : self.end])


def read_tensor(value: list[Any], start: int) -> TensorSpec:
    """A tensor of a spec: name, number of its datatype, shape, bytes.

    Args:
        start: where it begins.

    Raises:
        LinkError: it is none.
    """
    name, number, shape, nbytes = value[:4]
    datatype = _BY_NUMBER.get(number) if number.__class__ is int else None
    if datatype is None:
        raise broken("the number of a datatype", number)
    dims = tuple([read_integer(dim, _LEAST_DIM, _END_DIM) for dim in read_list(shape, 0, MAX_RANK)])
    return TensorSpec(read_text(name), datatype, dims, start, start + read_integer(nbytes))


def read_tensors(value: Any) -> list[list[Any]]:
    """The tensors of a spec: each has four items, or, in shared memory, more.

    Raises:
        LinkError: they are none.
    """
    tensors = read_list(value, 0, _MOST_TENSORS)
    for each in tensors:
        read_list(each, 4, 6)
    return tensors


def aligned(nbytes: int) -> int:
    """Where the next tensor begins."""
    return nbytes + -nbytes % ALIGNMENT


def check_payload(payload: memoryview, nbytes: int) -> None:
    """Refuse a payload of fewer bytes.

    Raises:
        LinkError: it is.
    """
    if len(payload) < nbytes:
        raise LinkError(f"a payload of {len(payload)} bytes, where {nbytes} are due")


def read_json(nbytes: Any, payload: memoryview) -> Any:
    """What a payload begins with, written by `orjson`, in so many bytes.

    Raises:
        LinkError: it is none.
    """
    check_payload(payload, read_integer(nbytes))
    try:
        return orjson.loads(payload[:nbytes])
    except orjson.JSONDecodeError as error:
        raise LinkError(str(error)) from None


def is_private(payload: memoryview) -> bool:
    """Whether no other process can write there: it was copied out of a ring."""
    return payload.obj.__class__ is bytes


def packing_takes_long(tensors: Sequence[Tensor]) -> bool:
    """Whether texts are to be packed one by one, and are so many that a thread should do it (`pack`)."""
    for tensor in tensors:
        if tensor.datatype is BYTES and not tensor.has_buffer and tensor.element_count > FEW_STRINGS:
            return True
    return False


def pack(tensors: Sequence[Tensor]) -> None:
    """Pack all texts, so that they need not be packed when they are sent."""
    for tensor in tensors:
        if tensor.datatype is BYTES:
            tensor.buffer  # noqa: B018 - is made now, and kept
