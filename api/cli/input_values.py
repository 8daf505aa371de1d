"""Inputs for a request, from what a person gives: JSON, arrays in files, images, text; or made up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...engine.datatypes import BF16, BY_NAME, BYTES
from ...engine.tensor import pack_bytes, wire_bytes
from .parser import USAGE, CommandError
from .remote import SentTensor, TensorInfo
from .samples import sample_inputs

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_EXAMPLES = {"BYTES": ('"a"', '"b"'), "BOOL": ("true", "false")}
_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}


def made_up(tensor: TensorInfo, rows: int) -> SentTensor:
    """Zeros, as text where it takes text.

    Args:
        rows: of the batch, if the first dimension is of any size.
    """
    shape = (rows, *tensor.shape[1:]) if tensor.shape[:1] == (-1,) else tensor.shape
    (sample,) = sample_inputs([(tensor.name, tensor.datatype, shape)])
    return _sent(tensor, np.array(sample["data"], dtype=_storage(tensor)).reshape(sample["shape"]))


def sent_tensor(tensor: TensorInfo, value: Any, *, batches: bool) -> SentTensor:
    """An input with this value: a path of a file, or what JSON has; a batch of one row may lack that dimension.

    Raises:
        CommandError: it does not fit.
    """
    shape = None
    if isinstance(value, dict) and "data" in value:
        value, shape = value["data"], value.get("shape")
    array = _from_file(tensor, value, batches=batches) if isinstance(value, Path) else _from_json(tensor, value)
    if shape is not None:
        array = _reshaped(tensor, array, shape)
    return _sent(tensor, _fitted(tensor, array, batches=batches))


def _from_json(tensor: TensorInfo, value: Any) -> np.ndarray:
    kind = BY_NAME[tensor.datatype]
    try:
        if kind is BYTES:
            return _texts(value)
        array = np.array(value)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"found {str(value)[:60]!r}")
        return _converted(tensor, array)
    except (ValueError, TypeError, OverflowError) as error:
        raise CommandError(
            f"input '{tensor.name}' cannot be read: {error}",
            f"write {kind.name} values of shape {_shape_text(tensor.shape)}, such as {_example(tensor)}",
            USAGE,
        ) from error


def _texts(value: Any) -> np.ndarray:
    """An array of `bytes`, from text or lists of it."""
    array = np.array(value, dtype=object)
    for each in array.reshape(-1):
        if isinstance(each, list):
            raise ValueError("there are rows of different lengths")
        if isinstance(each, dict):
            raise ValueError(f"found {str(each)[:60]}")
    flat = [each if isinstance(each, bytes) else str(each).encode() for each in array.reshape(-1)]
    texts = np.empty(len(flat), object)
    texts[:] = flat
    return texts.reshape(array.shape)


def _converted(tensor: TensorInfo, array: np.ndarray) -> np.ndarray:
    """In the input's type; ValueError if a value would be another one."""
    kind = BY_NAME[tensor.datatype]
    if kind is BF16:
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    converted = array.astype(kind.storage)
    if kind.storage.kind in "iub" and not np.array_equal(converted, array):
        raise ValueError(f"there are values that {kind.name} cannot hold, such as {array[converted != array].flat[0]}")
    return converted


def _from_file(tensor: TensorInfo, path: Path, *, batches: bool) -> np.ndarray:
    kind = BY_NAME[tensor.datatype]
    try:
        if path.suffix.lower() == ".npy":
            array = np.load(path, allow_pickle=False)
            return _texts(array.tolist()) if kind is BYTES else _converted(tensor, array)
        if path.suffix.lower() == ".json":
            return _from_json(tensor, _json(path))
        dims = tensor.shape[1:] if batches else tensor.shape
        if path.suffix.lower() in _IMAGES and kind is not BYTES and len(dims) >= 2:
            return _image(path, dims, tensor)
        content = path.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read '{path}': {error.strerror or error}", "correct the path", USAGE) from error
    except ValueError as error:
        raise CommandError(
            f"'{path}' does not hold input '{tensor.name}': {error}", "give another file", USAGE
        ) from error
    if kind is BYTES:
        return _texts([content])
    return (
        np.frombuffer(content, kind.storage) if kind.size and len(content) % kind.size == 0 else np.array(list(content))
    )


def _json(path: Path) -> Any:
    import json

    return json.loads(path.read_text(encoding="utf-8"))


def _image(path: Path, dims: Sequence[int], tensor: TensorInfo) -> np.ndarray:
    """An image in the size that the input has, channels first, last or none; from 0 to 1 if the type is a float."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise CommandError(
            "images are read with the package pillow, which is not installed", "pip install 'trireme-server[models]'"
        ) from error
    first = len(dims) == 3 and dims[0] in _CHANNELS and dims[2] not in _CHANNELS
    last = len(dims) == 3 and not first and dims[2] in _CHANNELS
    channels = dims[0] if first else dims[2] if last else 1
    kind = BY_NAME[tensor.datatype]
    height, width = (dims[1], dims[2]) if first else (dims[0], dims[1]) if last else dims[-2:]
    try:
        with Image.open(path) as opened:
            image = opened.convert(_CHANNELS[channels])
    except UnidentifiedImageError as error:
        raise ValueError("it is no image") from error
    if height > 0 and width > 0:
        image = image.resize((width, height))
    array = np.asarray(image)
    if channels > 1 and first:
        array = array.transpose(2, 0, 1)
    elif last and channels == 1:
        array = array[..., np.newaxis]
    return _converted(tensor, array / 255 if kind is BF16 or kind.storage.kind == "f" else array)


def _reshaped(tensor: TensorInfo, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    try:
        return array.reshape(shape)
    except (ValueError, TypeError) as error:
        raise CommandError(
            f"input '{tensor.name}' has {array.size} values, which are not of shape {shape}",
            "correct one of them",
            USAGE,
        ) from error


def _fitted(tensor: TensorInfo, array: np.ndarray, *, batches: bool) -> np.ndarray:
    """In the input's shape: a batch dimension, and dimensions of 1, are put in front; flat data is cut into rows."""
    want = tensor.shape
    if _fits(array.shape, want):
        return array
    if array.ndim < len(want):
        wider = array.reshape((1,) * (len(want) - array.ndim) + array.shape)
        if _fits(wider.shape, want):
            return wider
    known = math.prod(each for each in want if each > 0)
    if array.ndim <= 1 and known and array.size % known == 0 and sum(each < 0 for each in want) <= 1:
        flat = array.reshape([array.size // known if each < 0 else each for each in want])
        if _fits(flat.shape, want):
            return flat
    note = " (the first dimension is the batch)" if batches else ""
    raise CommandError(
        f"input '{tensor.name}' has shape {_shape_text(array.shape)}, expected {_shape_text(want)}{note}",
        "give as many values as the shape has; -1 stands for any number",
        USAGE,
    )


def _fits(shape: Sequence[int], want: Sequence[int]) -> bool:
    return len(shape) == len(want) and all(b in (a, -1) for a, b in zip(shape, want, strict=True))


def _example(tensor: TensorInfo) -> str:
    """A value as JSON has it, of the input's shape; without the first dimension if that is of any size."""
    shape = tensor.shape[1:] if len(tensor.shape) > 1 and tensor.shape[0] < 0 else tensor.shape
    *outer, last = shape or (1,)
    values = _EXAMPLES.get(tensor.datatype, ("1", "2"))
    inner = ", ".join([*values, "…"] if not 0 <= last <= len(values) else values[:last])
    for size in reversed(outer):
        inner = f"[{inner}]" + ", …" * (size != 1)
    return f"[{inner}]"


def _shape_text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _storage(tensor: TensorInfo) -> np.dtype:
    return BY_NAME[tensor.datatype].storage


def _sent(tensor: TensorInfo, array: np.ndarray) -> SentTensor:
    if BY_NAME[tensor.datatype] is BYTES:
        data = pack_bytes(each if isinstance(each, bytes) else str(each).encode() for each in array.reshape(-1))
    else:
        data = bytes(wire_bytes(np.ascontiguousarray(array)))
    return SentTensor(tensor.name, tensor.datatype, tuple(array.shape), data)
