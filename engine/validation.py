"""Whether a request fits its model: the checks between decoding and scheduling.

Order and texts are Triton's (docs/reference/errors.md#request-validation): duplicate input, raw-input deduction,
requested outputs, number of inputs, names and batch sizes, batch limit; then, input by input, datatype, unset
dimensions, shape and byte size. Triton looks at the input received last first, and so does this.

Everything that depends on the configuration alone is worked out once per model, and what depends on a request's form
alone (`RequestForm`) once per form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .config.model import Dims, ModelConfig, ModelInput
from .datatypes import BYTES
from .errors import InvalidArgumentError, request_prefix
from .request import InferenceRequest, RequestForm
from .tensor import Buffer, Tensor, count_elements, pack_bytes
from .tensor_limits import DEFAULT_LIMITS, MAX_ELEMENTS, TensorLimits, bounded_product

_UNSET = frozenset({-1, 2**64 - 1})  # -1, and how HTTP, whose dimensions are unsigned, spells it
_RAW_NAME = "raw_input"

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class _InputRule:
    """What the configuration says of one input.

    Attributes:
        exact_dims: the only ones that a request may have; None if one is variable.
        row_elements: the number of elements without the batch dimension; None if a dimension is variable.
    """

    def __init__(self, config: ModelInput) -> None:
        self.datatype = config.datatype
        self.dims = config.dims
        self.exact_dims = None if -1 in config.dims else config.dims
        self.row_elements = None if -1 in config.dims else bounded_product(config.dims)
        self.reshape = config.reshape

    def reshaped(self, dims: Dims) -> Dims:
        """The shape for the backend; variable dimensions are taken over in order."""
        assert self.reshape is not None
        variable = iter([got for want, got in zip(self.dims, dims, strict=True) if want == -1])
        return tuple(next(variable) if dim == -1 else dim for dim in self.reshape)


class _Passed(NamedTuple):
    """A validator, and what it found of a request that has passed.

    Attributes:
        sizes: bytes of the inputs, in the order in which they are checked.
        other: what another validator has found: requests for a route go to models by turns.
    """

    validator: RequestValidator
    rows: int
    sizes: tuple[int, ...]
    nbytes: int
    other: _Passed | None


class RequestValidator:
    """Checks requests against one model's configuration.

    Args:
        limits: what an input may be like, whatever the configuration says.

    Attributes:
        takes_strings: an input is of type BYTES, whose elements are counted one by one.
        takes_shapes: an input is a shape tensor, whose values are looked at.
    """

    def __init__(self, config: ModelConfig, limits: TensorLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self.takes_strings = any(tensor.datatype is BYTES for tensor in config.input)
        self._name = config.name
        self._max_batch_size = config.max_batch_size
        self._batching = config.max_batch_size > 0
        self._inputs: dict[str, _InputRule] = {}
        for tensor in config.input:  # of duplicate names, the first counts
            self._inputs.setdefault(tensor.name, _InputRule(tensor))
        self._outputs = frozenset(tensor.name for tensor in config.output)
        self._required = tuple(tensor.name for tensor in config.input if not tensor.optional)
        self._least = len(self._required)
        self._total = len(config.input)
        self._raw = config.input[0] if self._total == 1 else None
        self._shape_tensors = batched_shape_tensors(config)
        self.takes_shapes = bool(self._shape_tensors)

    def recall(self, request: InferenceRequest) -> tuple[dict[str, Tensor], int, int] | None:
        """What `check` would give for a request, and the bytes of its inputs, if another one of its form has passed,
        with as many bytes. None if that is not known."""
        form = request.form
        passed: _Passed | None = None if form is None else form.passed
        if passed is None:
            return None
        if passed.validator is not self:
            passed = passed.other
            if passed is None or passed.validator is not self:
                return None
        tensors: Sequence[Tensor] = request.inputs
        if len(tensors) > 1:
            tensors = tensors[::-1]
        inputs = {}
        for tensor, nbytes in zip(tensors, passed.sizes):  # noqa: B905  the form says how many
            if tensor.nbytes != nbytes:
                return None
            inputs[tensor.name] = tensor
        return inputs, passed.rows, passed.nbytes

    def _remember(self, form: RequestForm, given: Sequence[Tensor], found: Mapping[str, Tensor], rows: int) -> None:
        """A request of this form has passed. Where its inputs are looked into, or reshaped, the next one is checked."""
        if not (self.takes_strings or self._shape_tensors) and all(found[each.name] is each for each in given):
            sizes = tuple([tensor.nbytes for tensor in given])
            other: _Passed | None = form.passed
            if other is not None and other.validator is self:
                other = other.other
            form.passed = _Passed(self, rows, sizes, sum(sizes), None if other is None else other._replace(other=None))

    def check(self, request: InferenceRequest) -> tuple[dict[str, Tensor], int]:
        """The inputs by name as the backend sees them, and the number of rows.

        Shapes have the configured ``reshape`` applied and, for a model with batching, the batch dimension in front.
        Rows are the batch size; 1 for a batch size of 0, whose data is that of one element, and without batching.

        Raises:
            InvalidArgumentError: the request does not fit the model.
        """
        inputs: Sequence[Tensor] = request.inputs
        if request.raw_input is not None:
            inputs = (self.deduce(request, request.raw_input),)
        if len(inputs) > 1:
            refuse_duplicates(request.id, (tensor.name for tensor in inputs))
            inputs = inputs[::-1]
        for name in request.requested_outputs:
            if name not in self._outputs:
                raise InvalidArgumentError(f"unexpected inference output '{name}' for model '{self._name}'")
        if not self._least <= len(inputs) <= self._total:
            raise self._wrong_count(request, inputs)
        if self._shape_tensors:
            return self._check_with_shape_tensors(request, inputs)
        found, rows = self._check_inputs(request, inputs)
        if request.form is not None:
            self._remember(request.form, inputs, found, rows)
        return found, rows

    def _check_with_shape_tensors(
        self, request: InferenceRequest, inputs: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], int]:
        found, rows = self._check_inputs(
            request, [tensor for tensor in inputs if tensor.name not in self._shape_tensors]
        )
        for tensor in inputs:
            if tensor.name in self._shape_tensors:
                found[tensor.name] = shape_values(
                    self._shape_tensors[tensor.name], tensor, rows, request.id, self._name
                )
        return found, rows

    def _check_inputs(self, request: InferenceRequest, inputs: Sequence[Tensor]) -> tuple[dict[str, Tensor], int]:
        rules, batching = self._inputs, self._batching
        batch_size = 0
        for tensor in inputs:  # all names and batch sizes are looked at before anything else of an input
            if tensor.name not in rules:
                raise InvalidArgumentError(f"unexpected inference input '{tensor.name}' for model '{self._name}'")
            if not batching:
                continue
            shape = tensor.shape
            if not shape:
                raise InvalidArgumentError(
                    f"{request_prefix(request.id)}input '{tensor.name}' has no shape but model requires batch "
                    f"dimension for '{self._name}'"
                )
            if not batch_size:  # a 0 gives way to what the next input says
                batch_size = shape[0]
            elif shape[0] != batch_size:
                raise InvalidArgumentError(
                    f"{request_prefix(request.id)}input '{tensor.name}' batch size does not match other inputs for "
                    f"'{self._name}'"
                )
        if not 0 <= batch_size <= self._max_batch_size:
            raise InvalidArgumentError(
                f"{request_prefix(request.id)}inference request batch-size must be <= {self._max_batch_size} for "
                f"'{self._name}'"
            )
        rows = batch_size or 1
        found = {}
        for tensor in inputs:
            found[tensor.name] = self._check_input(request, tensor, rules[tensor.name], rows)
        return found, rows

    def _wrong_count(self, request: InferenceRequest, inputs: Sequence[Tensor]) -> InvalidArgumentError:
        names = [tensor.name for tensor in inputs]
        got = ",".join(f"'{name}'" for name in names)
        missing = ",".join(f"'{name}'" for name in self._required if name not in names)
        required = len(self._required)
        expected = (
            f"expected {self._total} inputs"
            if required == self._total
            else f"expected number of inputs between {required} and {self._total}"
        )
        return InvalidArgumentError(
            f"{request_prefix(request.id)}{expected} but got {len(names)} inputs for model '{self._name}'. "
            f"Got input(s) [{got}], but missing required input(s) {f'[{missing}' if missing else ''}]. "  # sic: Triton
            "Please provide all required input(s)."
        )

    def _check_input(self, request: InferenceRequest, tensor: Tensor, rule: _InputRule, rows: int) -> Tensor:
        if tensor.datatype is not rule.datatype:
            raise InvalidArgumentError(
                f"{request_prefix(request.id)}inference input '{tensor.name}' data-type is '{tensor.datatype.name}', "
                f"but model '{self._name}' expects '{rule.datatype.name}'"
            )
        shape = tensor.shape
        dims = shape[1:] if self._batching else shape
        if dims != rule.exact_dims:
            self._check_dims(request, tensor, dims, rule)
        elements = rule.row_elements
        if elements is None:
            elements = math.prod(dims)  # exact; `_check_dims` has seen as many as the configuration has, which are few
        if rule.datatype is BYTES:
            self._check_elements(request, tensor, elements * rows)
        elif (nbytes := tensor.nbytes) != (expected := elements * rows * rule.datatype.size):
            name = tensor.name if request.raw_input is None else _RAW_NAME
            raise InvalidArgumentError(
                f"{request_prefix(request.id)}input byte size mismatch for input '{name}' for model '{self._name}'. "
                f"Expected {expected}, got {nbytes}"
            )
        if rule.reshape is None and (not self._batching or shape[0] == rows):
            return tensor
        seen = dims if rule.reshape is None else rule.reshaped(dims)
        return tensor.reshaped((rows, *seen) if self._batching else seen)

    def _check_dims(self, request: InferenceRequest, tensor: Tensor, dims: Dims, rule: _InputRule) -> None:
        """Compare dimension by dimension, for shapes that are not simply the configured one."""
        matches = len(dims) == len(rule.dims)
        for want, got in zip(rule.dims, dims if matches else (), strict=False):
            if got in _UNSET:
                raise InvalidArgumentError(
                    f"{request_prefix(request.id)}All input dimensions should be specified for input '{tensor.name}' "
                    f"for model '{self._name}', got {_print_shape(tensor.shape)}"
                )
            if want not in (got, -1):
                matches = False
                break
        if not matches:
            batching = self._batching
            expected = (-1, *rule.dims) if batching else rule.dims
            raise InvalidArgumentError(
                f"{request_prefix(request.id)}unexpected shape for input '{tensor.name}' for model '{self._name}'. "
                f"Expected {_print_shape(expected)}, got {_print_shape(tensor.shape)}. "
                f"{_BATCH_NOTE if batching else ''}"
            )
        if any(not 0 <= dim <= MAX_ELEMENTS for dim in dims):
            raise InvalidArgumentError(
                f"{request_prefix(request.id)}invalid shape for input '{tensor.name}': shape "
                f"{_print_shape(tensor.shape)} contains one or more invalid dimensions"
            )

    def _check_elements(self, request: InferenceRequest, tensor: Tensor, expected: int) -> None:
        """The elements of a BYTES input: as many as expected, and none cut off."""
        prefix = request_prefix(request.id)
        where = f"for inference input '{tensor.name}' for model '{self._name}'"
        if tensor.has_array:
            count, missing = tensor.array.size, None
        else:
            count, missing = count_elements(tensor.buffer, min(expected, self._limits.max_elements) + 1)
            self._limits.check_elements(tensor.name, count)
        if count > expected:
            raise InvalidArgumentError(
                f"{prefix}unexpected number of string elements {expected + 1} {where}, expecting {expected}"
            )
        if missing is not None and missing.needed is None:
            raise InvalidArgumentError(
                f"{prefix}incomplete string length indicator {where}, expecting 4 bytes but only {missing.available} "
                "bytes available. Please make sure the string length indicator is in one buffer."
            )
        if count < expected:
            raise InvalidArgumentError(f"{prefix}expected {expected} string elements {where}, got {count}")
        if missing is not None:
            raise InvalidArgumentError(
                f"incomplete string data for inference input '{tensor.name}', expecting string of length "
                f"{missing.needed} but only {missing.available} bytes available"
            )

    def deduce(self, request: InferenceRequest, data: Buffer) -> Tensor:
        """The tensor that a request of bytes alone means (docs/reference/http-inference.md#raw-binary-requests)."""
        prefix = request_prefix(request.id)
        config = self._raw
        if config is None:
            raise InvalidArgumentError(
                f"{prefix}Raw request must only have 1 input (found 1) to be deduced but got {self._total} inputs in "
                f"'{self._name}' model configuration"
            )
        if config.dims.count(-1) > 1:
            raise InvalidArgumentError(
                f"{prefix}The shape of the raw input '{config.name}' can not be deduced because there are more than "
                "one variable-sized dimension"
            )
        dims = config.dims
        if config.datatype is BYTES:
            if bounded_product(dims) != 1:  # a variable dimension makes it negative
                raise InvalidArgumentError(
                    f"{prefix}For BYTE datatype raw input '{config.name}', the model must have input shape [1]"
                )
            data = pack_bytes((bytes(data),))
        elif -1 in dims:
            deduced = len(data) // (-bounded_product(dims) * config.datatype.size)
            dims = tuple(deduced if dim == -1 else dim for dim in dims)
        return Tensor(config.name, config.datatype, (1, *dims) if self._max_batch_size else dims, data)


def refuse_duplicates(request_id: str, names: Iterable[str]) -> None:
    """Check that no two inputs of a request have the same name.

    Raises:
        InvalidArgumentError: two do.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidArgumentError(f"{request_prefix(request_id)}input '{name}' already exists in request")
        seen.add(name)


def _print_shape(shape: Iterable[int]) -> str:
    """``[1,2]``, as signed 64-bit numbers."""
    return f"[{','.join(str(dim if dim <= MAX_ELEMENTS else dim - 2**64) for dim in shape)}]"


# Shape tensors in requests to models that batch (TensorRT's only; model_configuration of Triton, "Shape Tensors").
#
# A shape tensor has no batch dimension: a batch adds a value to it, in front, which is the number of rows. So does a
# request: what the configuration calls [2] comes as [3], the first being the request's batch size. Requests that share
# a batch have the rest in common, and that is all that is kept of them; the backend puts the batch's number in front.


def batched_shape_tensors(config: ModelConfig) -> dict[str, ModelInput]:
    """The inputs that this is about, by name."""
    if config.max_batch_size == 0:
        return {}
    return {tensor.name: tensor for tensor in config.input if tensor.is_shape_tensor and len(tensor.dims) == 1}


def with_batch_size(tensor: Tensor, rows: int) -> Tensor:
    """A shape tensor as a request of so many rows brings it, from its values alone."""
    values = np.concatenate([np.array([rows], tensor.datatype.storage), tensor.array.reshape(-1)])
    return Tensor(tensor.name, tensor.datatype, values.shape, array=values)


def shape_values(config: ModelInput, tensor: Tensor, rows: int, request_id: str, model: str) -> Tensor:
    """What is kept of a shape tensor, with the configured shape.

    Raises:
        InvalidArgumentError: it is not what the configuration and the batch size ask for.
    """
    prefix = request_prefix(request_id)
    if tensor.datatype is not config.datatype:
        raise InvalidArgumentError(
            f"{prefix}inference input '{tensor.name}' data-type is '{tensor.datatype.name}', but model '{model}' "
            f"expects '{config.datatype.name}'"
        )
    count = config.dims[0] + 1
    if tensor.shape != (count,):
        raise InvalidArgumentError(
            f"{prefix}unexpected shape for input '{tensor.name}' for model '{model}'. Expected [{count}], got "
            f"{_print_shape(tensor.shape)}. "
            "NOTE: A shape tensor of a model with a non-zero max_batch_size has the batch size in front of the values "
            "that the model config describes, and no batch dimension."
        )
    if tensor.nbytes != count * config.datatype.size:
        raise InvalidArgumentError(
            f"{prefix}input byte size mismatch for input '{tensor.name}' for model '{model}'. Expected "
            f"{count * config.datatype.size}, got {tensor.nbytes}"
        )
    values = tensor.array
    if values[0] != rows:
        raise InvalidArgumentError(
            f"{prefix}shape tensor '{tensor.name}' for model '{model}' must begin with the batch size {rows}, got "
            f"{values[0]}"
        )
    return Tensor(tensor.name, tensor.datatype, config.dims, array=values[1:])
