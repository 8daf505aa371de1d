"""Writing JSON as Triton does (docs/reference/json.md#writing): compact, raw bytes in strings, its own notation for
doubles.

orjson writes all the same way but doubles with an exponent, NaN and infinities, control characters without a short
escape, and strings that hold bytes that are no UTF-8; those are found in its output, or refused by it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from ....engine.datatypes import BF16, BOOL, BYTES, FP16, FP32, FP64, DataType
from ....engine.errors import InternalError, InvalidArgumentError
from ....engine.tensor import Buffer, LongBytes, Tensor, iter_spans
from ...pipeline import element_by_element
from .steps import give_way

_PIECE_ELEMENTS = 4_096
"""Of numbers, this takes 0.3 ms, in which the interpreter's lock is held."""
_PIECE_BYTES = 65_536
"""Of strings; the same."""
_SPECIAL = re.compile(rb'[\x00-\x1f"\\]')
_SHORT_ESCAPES = {ord("\b"): b"\\b", ord("\f"): b"\\f", ord("\n"): b"\\n", ord("\r"): b"\\r", ord("\t"): b"\\t"}
_ESCAPES = {
    **{bytes([code]): _SHORT_ESCAPES.get(code, b"\\u%04X" % code) for code in range(0x20)},
    b'"': b'\\"',
    b"\\": b"\\\\",
}
_EXPONENT = re.compile(rb"e[-+]?[0-9]")


def dumps(value: Any) -> bytes:
    """A document of None, bools, integers, floats, strings, lists, tuples and mappings with string keys. Strings may be
    ``bytes``, or hold ``surrogateescape`` characters; such bytes are written as they are.
    """
    try:
        text = orjson.dumps(value)
    except TypeError:  # bytes, lone surrogates, integers beyond 64 bits
        return _dumps_slowly(value)
    if b"\\u00" in text or b"null" in text or _EXPONENT.search(text):  # in strings too: no harm but the time
        return _dumps_slowly(value)
    return text


def string(text: str | bytes) -> bytes:
    """A string with its quotation marks."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return b'"' + _escape(raw) + b'"'


def double(value: float) -> bytes:
    """A double: shortest digits that read back the same; fixed notation for magnitudes from 1e-6 to below 1e21."""
    if not math.isfinite(value):
        return _not_finite(value).encode()
    return _respell(repr(float(value))).encode()


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _respell(number: str) -> str:
    """A decimal number, with or without exponent, in the right notation."""
    mantissa, exponential, exponent = number.partition("e")
    if not exponential:
        return number
    power = int(exponent)
    if not -6 <= power < 21:
        return f"{mantissa}e{power}"
    sign = "-" if mantissa[0] == "-" else ""
    digits = mantissa.lstrip("-").replace(".", "")
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    return f"{sign}{digits.ljust(power + 1, '0')}.0"


def tensor_data(tensor: Tensor) -> bytes:
    """The elements of a tensor as one flat array. FP32 is widened to double first.

    Raises:
        InvalidArgumentError: JSON cannot carry the datatype (FP16, BF16).
        InternalError: the tensor's data does not fit its shape.
    """
    return b"".join(tensor_pieces(tensor))


def tensor_pieces(tensor: Tensor, end: bytes = b"") -> list[Buffer]:
    """The same text, and `end` behind it, none of which holds the interpreter's lock for long while it is made. Gives
    way meanwhile if it is made on a thread: the event loop, which makes what is small, must not sleep. Many numbers are
    one piece, together with the end."""
    datatype = tensor.datatype
    if datatype is FP16 or datatype is BF16:
        raise InvalidArgumentError(
            f"sending {datatype.name} data via JSON is not supported. Please use the binary data format for output"
        )
    try:
        if datatype is BYTES and not tensor.has_array:
            return [*_packed_strings(tensor), end]
        flat = tensor.array.reshape(-1)
    except ValueError:
        raise InternalError(f"output tensor shape does not match size of output for '{tensor.name}'") from None
    if flat.size <= _PIECE_ELEMENTS:
        return [_elements(flat, datatype), end]
    on_thread = element_by_element(tensor)
    strings: list[Buffer] = []
    numbers = None if datatype is BYTES else LongBytes(1 + flat.size * _most_bytes(datatype) + len(end))
    keep = strings.append if numbers is None else numbers.put  # numbers are copied while the cache still has them
    opening = b"["
    for start in range(0, flat.size, _PIECE_ELEMENTS):
        if on_thread:
            give_way()
        keep(opening)
        keep(memoryview(_elements(flat[start : start + _PIECE_ELEMENTS], datatype))[1:-1])
        opening = b","
    keep(b"]")
    keep(end)
    return strings if numbers is None else [numbers.view]


def _packed_strings(tensor: Tensor) -> list[bytes]:
    """An array of strings that are packed. No more than a piece of them is unpacked at a time: each is an object.

    Raises:
        ValueError: they are not as many as the shape says.
    """
    view = memoryview(tensor.buffer)
    on_thread = element_by_element(tensor)
    pieces: list[bytes] = [b"["]
    batch: list[bytes] = []
    count = nbytes = 0
    if on_thread:
        give_way()
    for start, stop in iter_spans(view):
        count += 1
        if stop - start > _PIECE_BYTES:
            pieces += (_strings(batch)[1:-1], b',"') if batch else (b'"',)
            for at in range(start, stop, _PIECE_BYTES):
                if on_thread:
                    give_way()
                pieces.append(_escape(bytes(view[at : min(at + _PIECE_BYTES, stop)])))
            pieces.append(b'",')
            batch, nbytes = [], 0
            continue
        batch.append(bytes(view[start:stop]))
        nbytes += stop - start
        if len(batch) == _PIECE_ELEMENTS or nbytes > _PIECE_BYTES:
            pieces += (_strings(batch)[1:-1], b",")
            batch, nbytes = [], 0
            if on_thread:
                give_way()
    if count != tensor.element_count:
        raise ValueError
    if batch:
        pieces += (_strings(batch)[1:-1], b",")
    if count:
        pieces[-1] = pieces[-1][:-1]
    pieces.append(b"]")
    return pieces if len(pieces) > 4 else [b"".join(pieces)]


def _most_bytes(datatype: DataType) -> int:
    """That a number has, with a comma."""
    if datatype is BOOL:
        return len("false,")
    if datatype is FP32 or datatype is FP64:
        return len("-0.0000012345678901234567,")
    limits = np.iinfo(datatype.storage)
    return max(len(str(limits.min)), len(str(limits.max))) + 1


def _elements(flat: np.ndarray, datatype: DataType) -> bytes:
    if datatype is BYTES:
        return _strings(flat.tolist())
    if datatype is FP32 or datatype is FP64:
        return _doubles(np.ascontiguousarray(flat, dtype=np.float64))
    flat = np.ascontiguousarray(flat, dtype=np.bool_ if datatype is BOOL else datatype.storage)
    return orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)


def _doubles(flat: np.ndarray) -> bytes:
    text = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"e" not in text and b"n" not in text:  # no exponent, no null
        return text
    magnitude = np.abs(flat)
    same = (magnitude >= 1e-4) & (magnitude < 1e16) | (magnitude < 1e-6)  # where orjson's notation is Triton's
    if same.all():
        return text
    numbers = text[1:-1].decode().split(",")
    for index in np.flatnonzero(~same).tolist():
        number = numbers[index]
        numbers[index] = _not_finite(float(flat[index])) if number == "null" else _respell(number)
    return f"[{','.join(numbers)}]".encode()


def _strings(elements: list[bytes]) -> bytes:
    if not elements:
        return b"[]"
    if sum(map(len, elements)) <= _PIECE_BYTES and not _SPECIAL.search(b"".join(elements)):
        return b'["' + b'","'.join(elements) + b'"]'
    return b'["' + b'","'.join(map(_escape, elements)) + b'"]'


def _escape(raw: bytes) -> bytes:
    if len(raw) > _PIECE_BYTES:
        return b"".join([_escape(raw[at : at + _PIECE_BYTES]) for at in range(0, len(raw), _PIECE_BYTES)])
    return _SPECIAL.sub(lambda match: _ESCAPES[match[0]], raw) if _SPECIAL.search(raw) else raw


def _dumps_slowly(value: Any) -> bytes:
    if isinstance(value, str | bytes):
        return string(value)
    if isinstance(value, float):
        return double(value)
    if value is None or isinstance(value, bool):
        return orjson.dumps(value)
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, Mapping):
        return b"{" + b",".join(string(name) + b":" + _dumps_slowly(item) for name, item in value.items()) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(_dumps_slowly, value)) + b"]"
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")
