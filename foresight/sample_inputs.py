"""Requests to measure a model with: inputs of the right shape, drawn from a seed, or taken from a file of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import numpy as np

from ..engine.config.model import ModelConfig, ModelInput
from ..engine.datatypes import BYTES, DataType
from ..engine.errors import InvalidArgumentError
from ..engine.tensor import Tensor

_TEXT = b"0"


class SampleInputs:
    """Makes the inputs of requests to one model.

    Args:
        config: complete.
        shapes: by input, its shape without the batch dimension, for what the configuration leaves open.
        arrays: by input, arrays to take the rows from, one after the other; with a batch dimension if the model has
            one. Inputs that are not there are drawn: floating-point numbers from 0 to 1, everything else zeros.

    Raises:
        InvalidArgumentError: a name or a shape does not go with the configuration.
    """

    def __init__(
        self,
        config: ModelConfig,
        shapes: Mapping[str, Sequence[int]] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
        seed: int = 1,
    ) -> None:
        self._config = config
        self._random = Random(f"inputs {seed}")
        self._shapes = {each.name: _shape(each, (shapes or {}).get(each.name)) for each in config.input}
        self._arrays = dict(arrays or {})
        self._made: dict[int, list[Tensor]] = {}
        for name in [*(shapes or {}), *self._arrays]:
            if name not in self._shapes:
                known = ", ".join(self._shapes) or "none"
                raise InvalidArgumentError(f"model '{config.name}' has no input '{name}'; it has {known}")

    def tensors(self, rows: int) -> list[Tensor]:
        """The inputs of a request of so many rows; made once for each number of rows."""
        if rows not in self._made:
            self._made[rows] = [self._tensor(each, rows) for each in self._config.input if not each.optional]
        return self._made[rows]

    def nbytes(self, rows: int) -> int:
        """Of all inputs of such a request."""
        return sum(tensor.nbytes for tensor in self.tensors(rows))

    def _tensor(self, described: ModelInput, rows: int) -> Tensor:
        datatype = described.datatype
        row = self._shapes[described.name]
        shape = (rows, *row) if self._config.max_batch_size else row
        given = self._arrays.get(described.name)
        array = self._drawn(datatype, shape) if given is None else _taken(described.name, given, shape, datatype)
        return Tensor(described.name, datatype, shape, array=array)

    def _drawn(self, datatype: DataType, shape: tuple[int, ...]) -> np.ndarray:
        if datatype is BYTES:
            return np.full(shape, _TEXT, object)
        if datatype.storage.kind != "f":
            return np.zeros(shape, datatype.storage)
        generator = np.random.default_rng(self._random.getrandbits(64))
        return generator.random(shape, np.float32).astype(datatype.storage)


def _shape(described: ModelInput, given: Sequence[int] | None) -> tuple[int, ...]:
    dims = tuple(described.dims)
    if given is None:
        return tuple(max(1, dim) for dim in dims)
    fits = len(given) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, given, strict=False))
    if not fits or any(size < 1 for size in given):
        raise InvalidArgumentError(f"input '{described.name}' has shape {list(dims)}; {list(given)} does not fit")
    return tuple(given)


def _taken(name: str, given: np.ndarray, shape: tuple[int, ...], datatype: DataType) -> np.ndarray:
    """Rows of an array, from the beginning again when they are used up."""
    row = shape[1:]
    if given.shape == shape:
        return given.astype(datatype.storage)
    if given.ndim != len(shape) or given.shape[1:] != row or not len(given):
        raise InvalidArgumentError(f"array '{name}' has shape {list(given.shape)}; expected [rows, {list(row)}]")
    indices = np.arange(shape[0]) % len(given)
    return given[indices].astype(datatype.storage)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by name.

    Raises:
        InvalidArgumentError: it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"'{path}' is no file of arrays (.npz): {error}") from error
