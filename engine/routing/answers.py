"""Whether a shadow gave the answers that the target gave which answered the client.

Rules:
 1. Answers agree if there are as many responses, and each has outputs of the same names, datatypes, shapes and values.
    The order of outputs, the names of the models and the parameters of responses do not matter.
 2. Floating-point numbers agree if they differ by no more than the tolerance, and the tolerance times what the target
    gave (as `numpy.isclose` has it). So do two that are not a number, and equal infinities.
 3. All other values agree if they are the same: labels and tokens are no measurements.
 4. Two errors of one kind agree. A shadow that gave an error where the target gave none has failed.
 5. All is compared, so that the greatest difference is known; the reason is the first that was found.
 6. Work is done in pieces that hold the interpreter's lock for a moment only.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

import numpy as np

from ..datatypes import BF16, BYTES
from ..errors import TriremeError
from ..job import Outcome
from ..request import InferenceResponse
from ..tensor import Tensor, iter_bytes

_PIECE = 65_536
_TEXTS = 1_024
"""Elements, and BYTES elements, that are compared at a time."""


class Agreement(enum.Enum):
    """Of two answers. The value is how metrics call it."""

    AGREES = "agrees"
    DIFFERS = "differs"
    FAILED = "failed"


@dataclass(slots=True)
class AnswersCompared:
    """Attributes:
    why: what was found first, in words; empty if they agree.
    greatest: the greatest difference of two finite numbers.
    """

    agreement: Agreement = Agreement.AGREES
    why: str = ""
    greatest: float = 0.0

    def found(self, why: str, agreement: Agreement = Agreement.DIFFERS) -> None:
        if not self.why:
            self.agreement, self.why = agreement, why


@dataclass(slots=True)
class _Values:
    """What was found about the values of one output."""

    apart: int = 0
    where: int = 0
    greatest: float = 0.0


def compare_answers(
    target: Sequence[Outcome],
    shadow: Sequence[Outcome],
    tolerance: float,
    between: Callable[[], object] = lambda: None,
) -> AnswersCompared:
    """Compare all answers to one request.

    Args:
        target, shadow: in order; None is the end of the answers of a decoupled model.
        between: called before each piece of work (rule 6).
    """
    compared = AnswersCompared()
    theirs, its = ([each for each in outcomes if each is not None] for outcomes in (target, shadow))
    for number, (usual, other) in enumerate(zip(theirs, its, strict=False)):
        at = f" of response {number}" if len(theirs) > 1 else ""
        if isinstance(usual, TriremeError) or isinstance(other, TriremeError):
            _compare_errors(compared, usual, other)
        else:
            _compare_outputs(compared, usual, other, tolerance, at, between)
    if len(theirs) != len(its):
        compared.found(f"{len(its)} responses, expected {len(theirs)}")
    return compared


def _compare_errors(
    compared: AnswersCompared, usual: InferenceResponse | TriremeError, other: InferenceResponse | TriremeError
) -> None:
    """Rule 4."""
    if not isinstance(usual, TriremeError):
        assert isinstance(other, TriremeError), "one of them is"
        compared.found(f"an error, expected an answer: {other.message}", Agreement.FAILED)
    elif not isinstance(other, TriremeError):
        compared.found(f"an answer, expected an error: {usual.message}")
    elif usual.kind is not other.kind:
        compared.found(f"an error of kind '{other.kind.value}', expected '{usual.kind.value}': {other.message}")


def _compare_outputs(
    compared: AnswersCompared,
    usual: InferenceResponse,
    other: InferenceResponse,
    tolerance: float,
    at: str,
    between: Callable[[], object],
) -> None:
    theirs, its = ({tensor.name: tensor for tensor in response.outputs} for response in (usual, other))
    for name in its.keys() - theirs.keys():
        compared.found(f"output '{name}'{at}, which is not expected")
    for name, tensor in theirs.items():
        found = its.get(name)
        if found is None:
            compared.found(f"no output '{name}'{at}")
        elif found.datatype is not tensor.datatype:
            text = f"datatype {found.datatype.name}, expected {tensor.datatype.name}"
            compared.found(f"output '{name}'{at} has {text}")
        elif found.shape != tensor.shape:
            compared.found(f"output '{name}'{at} has shape {list(found.shape)}, expected {list(tensor.shape)}")
        else:
            _compare_values(compared, tensor, found, tolerance, at, between)


def _compare_values(
    compared: AnswersCompared, usual: Tensor, other: Tensor, tolerance: float, at: str, between: Callable[[], object]
) -> None:
    try:
        if usual.datatype is BYTES:
            values = _compare_texts(usual, other, between)
        else:
            values = _compare_numbers(usual, other, tolerance, between)
    except ValueError as error:
        compared.found(f"output '{usual.name}'{at} cannot be read: {error}")
        return
    compared.greatest = max(compared.greatest, values.greatest)
    if values.apart:
        index = [int(each) for each in np.unravel_index(values.where, usual.shape)]
        if usual.datatype is BYTES:
            compared.found(f"output '{usual.name}'{at} has another value at {index}")
            return
        text = f"output '{usual.name}'{at} has {values.apart} other values of {usual.element_count}"
        compared.found(f"{text}, the first at {index}; the greatest difference is {values.greatest:.6g}")


def _compare_numbers(usual: Tensor, other: Tensor, tolerance: float, between: Callable[[], object]) -> _Values:
    values = _Values()
    theirs, its = usual.array.reshape(-1), other.array.reshape(-1)
    if theirs.dtype != its.dtype:  # a backend may use a wider type for what goes out as bytes of this one
        its = its.astype(theirs.dtype)
    for start in range(0, theirs.size, _PIECE):
        between()
        a, b = theirs[start : start + _PIECE], its[start : start + _PIECE]
        if np.array_equal(a, b):
            continue
        if usual.datatype is BF16:
            a, b = _widened(a), _widened(b)
        wrong, apart = _apart(a, b, tolerance)
        finite = apart[np.isfinite(apart)]
        if finite.size:
            values.greatest = max(values.greatest, float(finite.max()))
        count = int(np.count_nonzero(wrong))
        if count and not values.apart:
            values.where = start + int(np.argmax(wrong))
        values.apart += count
    return values


def _apart(a: np.ndarray, b: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Which values do not agree (rules 2 and 3), and by how much each pair differs."""
    if a.dtype.kind == "f":
        with np.errstate(all="ignore"):
            wide, other = a.astype(np.float64), b.astype(np.float64)
            apart = np.abs(other - wide)
            fine = (apart <= tolerance + tolerance * np.abs(wide)) & np.isfinite(wide)
        return ~(fine | (wide == other) | (np.isnan(wide) & np.isnan(other))), apart
    if a.dtype.kind == "b":
        return a != b, (a != b).astype(np.float64)
    wide, other = (each.astype(np.int64 if each.dtype.kind == "i" else np.uint64) for each in (a, b))
    apart = np.where(wide > other, wide - other, other - wide)  # modulo 2**64, so right without a sign
    return a != b, apart.view(np.uint64).astype(np.float64)


def _widened(bits: np.ndarray) -> np.ndarray:
    """BF16 as FP32, of which it is the upper half."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _compare_texts(usual: Tensor, other: Tensor, between: Callable[[], object]) -> _Values:
    """Only up to the first that differs: texts have no order in which one could be near another."""
    values = _Values()
    if usual.has_buffer and other.has_buffer and _same_bytes(usual, other, between):
        return values
    theirs, its = _elements(usual), _elements(other)
    for start in range(0, usual.element_count, _TEXTS):
        between()
        pairs = zip_longest(islice(theirs, _TEXTS), islice(its, _TEXTS))
        for number, (mine, found) in enumerate(pairs):
            if mine != found:
                values.apart, values.where = 1, start + number
                return values
    return values


def _same_bytes(usual: Tensor, other: Tensor, between: Callable[[], object]) -> bool:
    theirs, its = (np.frombuffer(tensor.buffer, np.uint8) for tensor in (usual, other))
    if theirs.size != its.size:
        return False
    for start in range(0, theirs.size, _PIECE):
        between()
        if not np.array_equal(theirs[start : start + _PIECE], its[start : start + _PIECE]):
            return False
    return True


def _elements(tensor: Tensor) -> Iterator[bytes]:
    if not tensor.has_array:
        yield from iter_bytes(tensor.buffer)
        return
    flat = tensor.array.reshape(-1)
    for start in range(0, flat.size, _TEXTS):
        yield from flat[start : start + _TEXTS].tolist()
