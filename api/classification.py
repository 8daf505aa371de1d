"""The classification extension: the top classes of an output in place of its values
(docs/reference/http-inference.md#classification)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.datatypes import BF16, BOOL, BYTES, FP16
from ..engine.errors import InvalidArgumentError
from ..engine.tensor import Tensor
from ..engine.tensor_limits import bounded_product

_UNSUPPORTED = (BOOL, FP16, BF16, BYTES)
_MAX_ELEMENTS = 1_000_000
_MAX_CLASSES = 1 << 20


def classify(tensor: Tensor, class_count: int, labels: Sequence[str], batched: bool) -> Tensor:
    """The `class_count` greatest values of each row, as ``<value>:<index>[:<label>]``.

    Args:
        tensor: an output, any shape; a row is everything behind the first dimension if `batched`, else everything.
        class_count: at least 1; more than there are values is fine.
        labels: by index; those missing or empty are left out.

    Returns:
        A BYTES tensor of shape ``[batch, n]`` if `batched`, else ``[n]``, greatest value first; equal values keep
        their order.

    Raises:
        InvalidArgumentError: a datatype without an order, or rows of more than a million values, or more than 1,048,576
            classes in all.
    """
    datatype = tensor.datatype
    if datatype in _UNSUPPORTED:
        raise InvalidArgumentError(f"class result not available for output due to unsupported type '{datatype.name}'")
    batch = (tensor.shape[0],) if batched and tensor.shape else ()
    rows = bounded_product(batch)
    width = bounded_product(tensor.shape[len(batch) :])
    if width > _MAX_ELEMENTS:
        raise InvalidArgumentError("classification output tensor too large")
    shown = min(class_count, width)
    if rows * shown > _MAX_CLASSES:
        raise InvalidArgumentError(
            f"classification of output '{tensor.name}' gives {rows * shown} classes, expected at most {_MAX_CLASSES}"
        )
    template = "%f" if datatype.storage.kind == "f" else "%d"
    classes: list[bytes] = []
    for row in tensor.array.reshape(rows, width):
        order = _descending(row, shown)
        chosen = zip(row[order].tolist(), order.tolist(), strict=True)
        classes += [_class_text(template % value, index, labels) for value, index in chosen]
    array = np.empty(len(classes), dtype=object)
    array[:] = classes
    return Tensor(tensor.name, BYTES, (*batch, shown), array=array.reshape(*batch, shown))


def _descending(row: np.ndarray, count: int) -> np.ndarray:
    """Indices of the greatest values, falling; sorted backwards, so that equal values keep their order and unsigned
    ones need no negation."""
    order = np.argsort(row[::-1], kind="stable")[::-1][:count]
    return len(row) - 1 - order


def _class_text(value: str, index: int, labels: Sequence[str]) -> bytes:
    label = labels[index] if index < len(labels) else ""
    text = f"{value}:{index}:{label}" if label else f"{value}:{index}"
    return text.encode("utf-8", "surrogateescape")
