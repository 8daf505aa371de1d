"""The ``inputs`` of an infer request: where their data is, and how typed contents become tensors
(docs/reference/grpc.md#input-tensors)."""

from __future__ import annotations

import numpy as np

from ...engine.datatypes import BYTES, DataType
from ...engine.errors import InvalidArgumentError
from ...engine.memory.regions import Regions
from ...engine.memory.tensors import RegionTensor
from ...engine.tensor import Buffer, Tensor
from .infer_messages import WireInput, WireRequest, datatype_of
from .infer_parameters import find_slice, names_region
from .wire_contents import FIELDS, WireContents


def read_inputs(request: WireRequest, regions: Regions) -> list[Tensor]:
    """The tensors of a request, in order. Raw ones are views on the message, and so are FP32 and FP64 contents;
    those in shared memory are read later.

    Raises:
        InvalidArgumentError: no data, several sources of data, contents that do not fit the datatype, or a region that
            has no such part.
        NotFoundError: an input is in a region that is not registered.
    """
    tensors: list[Tensor] = []
    raw = iter(request.raw)
    for given in request.inputs:
        datatype = datatype_of(given)
        if given.parameters and names_region(given.parameters, given.name):
            if given.contents is not None:
                where = _where(given, request)
                raise InvalidArgumentError(f"unexpected 'content' provided when using shared memory {where}")
            place = find_slice(given.parameters, regions)
            tensors.append(RegionTensor(given.name, datatype, tuple(given.shape), place))
            continue
        data: Buffer | None
        if given.contents is None:
            data = next(raw, None)
            if data is None:
                raise InvalidArgumentError(f"unable to find data {_where(given, request)} in request.")
        elif request.raw:
            raise InvalidArgumentError(
                f"contents field must not be specified when using raw_input_contents for '{given.name}' for model "
                f"'{request.model_name}'"
            )
        else:
            prepared = given.prepared
            if isinstance(prepared, InvalidArgumentError):
                raise prepared
            data = _pack(given.contents, datatype, given, request) if prepared is None else prepared
        tensors.append(Tensor(given.name, datatype, tuple(given.shape), data))
    return tensors


def prepare_contents(request: WireRequest) -> None:
    """Make of all typed contents, unpacked, what `read_inputs` will ask for: this part of it may take long."""
    for given in request.inputs:
        if given.contents is not None:
            try:
                given.prepared = _pack(given.contents, datatype_of(given), given, request)
            except InvalidArgumentError as error:
                given.prepared = error.with_traceback(None)


def _pack(contents: WireContents, datatype: DataType, given: WireInput, request: WireRequest) -> Buffer:
    """Typed contents as they would be sent raw: at most one field may have elements, the one for the datatype.

    Raises:
        InvalidArgumentError: it is otherwise.
    """
    data: Buffer | None = None
    for number, kind, datatypes_allowed in FIELDS:
        if not (contents.element_count if kind == "BYTES" else number in contents.numbers):
            continue
        where = _where(given, request)
        if data is not None:
            raise InvalidArgumentError(f"unexpected explicit tensor data {where}, binary data was already supplied.")
        if datatype not in datatypes_allowed:
            raise InvalidArgumentError(
                f"unexpected explicit tensor data {where} of type '{kind}', expected datatype '{datatype.name}'"
            )
        data = contents.elements if datatype is BYTES else contents.numbers[number].view(np.uint8).data
    return b"" if data is None else data


def _where(given: WireInput, request: WireRequest) -> str:
    return f"for input tensor '{given.name}' for model '{request.model_name}'"
