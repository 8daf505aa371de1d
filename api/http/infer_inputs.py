"""The ``inputs`` of an infer request: tensors from JSON, or views on the bytes behind it, or copies of shared memory.

Rules: docs/reference/http-inference.md#request-object, docs/reference/http-inference.md#input-data,
docs/reference/http-inference.md#binary-tensors, docs/reference/shared-memory.md#tensors-in-regions.
"""

from __future__ import annotations

from typing import Any

from ...engine.bounded_product import MAX_ELEMENTS, bounded_product
from ...engine.datatypes import BY_NAME, BYTES, INVALID, DataType
from ...engine.errors import InvalidArgumentError
from ...engine.region_tensor import RegionTensor
from ...engine.shared_memory import Regions
from ...engine.tensor import Tensor
from ...engine.tensor_limits import TensorLimits
from . import json_reader
from .json_access import converted, find_slice, members_of, read_member


def read_inputs(
    inputs: list[Any], blobs: memoryview, model_name: str, limit_bytes: int, regions: Regions, limits: TensorLimits
) -> list[Tensor]:
    """The tensors of a request, in order.

    Args:
        inputs: the JSON member ``inputs``.
        blobs: the bytes that follow the JSON text; binary tensors become views on them.
        limit_bytes: bound on a tensor given as JSON.
        regions: shared memory; tensors there are read later.
        limits: what one tensor may be like.

    Raises:
        InternalError: a member is missing or has the wrong type.
        InvalidArgumentError: no or several sources of data, bytes missing or left over, a bad shape or datatype;
            or a region has no such part.
        NotFoundError: an input is in a region that is not registered.
    """
    tensors: list[Tensor] = []
    at = 0
    end = len(blobs)
    for value in inputs:
        members = members_of(value)
        parameters = members_of(members.get("parameters"))
        _check_source(members, parameters)
        name = read_member(json_reader.as_string, members, "name")
        datatype = BY_NAME.get(read_member(json_reader.as_string, members, "datatype"), INVALID)
        shape = _read_shape(name, members, limits)
        if "binary_data_size" not in parameters:
            place = find_slice(parameters, regions)
            if place is not None:
                tensors.append(RegionTensor(name, datatype, shape, place))
            else:
                tensors.append(_from_json(name, datatype, shape, members.get("data"), limit_bytes, limits))
            continue
        size = converted(json_reader.as_unsigned, parameters["binary_data_size"], "binary_data_size")
        stop = at + size
        if stop > end:
            raise InvalidArgumentError(
                f"unexpected size for input '{name}', expecting {stop - end} additional bytes for model '{model_name}'"
            )
        tensors.append(Tensor(name, datatype, shape, blobs[at:stop]))
        at = stop
    if at != end:
        raise InvalidArgumentError(f"unexpected additional input data for model '{model_name}'")
    return tensors


def _check_source(members: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Exactly one member must say where the data is."""
    has_data = "data" in members
    has_binary = "binary_data_size" in parameters
    has_region = "shared_memory_region" in parameters
    if has_data + has_binary + has_region == 1:
        return
    found = " no field is set"
    if has_data or has_binary or has_region:
        present = ((has_data, "data"), (has_binary, "binary_data_size"), (has_region, "shared_memory_region"))
        found = " set" + "".join(f" '{name}'" for has, name in present if has)
    raise InvalidArgumentError(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But{found}"
    )


def _read_shape(name: str, members: dict[str, Any], limits: TensorLimits) -> tuple[int, ...]:
    dims = read_member(json_reader.as_array, members, "shape")
    limits.check_rank(name, len(dims))
    for dim in dims:
        converted(json_reader.as_unsigned, dim, "shape")
    return tuple(dims)


def _from_json(
    name: str, datatype: DataType, shape: tuple[int, ...], data: Any, limit_bytes: int, limits: TensorLimits
) -> Tensor:
    size = bounded_product(shape) * datatype.size
    # A size beyond 64 bits has a text of its own, which the reader knows.
    if limit_bytes < size <= MAX_ELEMENTS:
        raise _too_large(name, size, limit_bytes)
    tensor = json_reader.tensor_from_json(name, datatype, shape, data, limits)
    if datatype is BYTES and tensor.nbytes > limit_bytes:
        raise _too_large(name, tensor.nbytes, limit_bytes)
    return tensor


def _too_large(name: str, size: int, limit_bytes: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit_bytes} "
        "bytes. Use --http-max-input-size to increase the limit."
    )
