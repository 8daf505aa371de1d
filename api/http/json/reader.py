"""Reading JSON in Triton's dialect (docs/reference/json.md#reading): documents, and their values by type.

orjson reads; its answer is taken when it can only be Triton's:

* What orjson refuses (NaN, byte order marks, bytes that are no UTF-8, syntax errors) is read again by `strict`.
* orjson keeps the last of duplicate members, Triton the first. Every member has one colon outside strings, so a
  document with as many colons as members found has no duplicates. Colons within strings can spoil that count, never
  feign it; then those that follow a quotation mark are counted; if that fails too, the document is read again.

Values are plain Python ones. A string that held bytes that are no UTF-8 has them as ``surrogateescape`` characters.
Values of another type than what is asked for are refused with Triton's texts (docs/reference/json.md#type-errors).
Types are told apart as in the document: ``true`` is no integer, ``1.0`` is no integer, ``1`` will do as a double. Every
function ``as_…`` raises `InternalError` for a value that is not what it asks for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import orjson

from ....engine.errors import InternalError, InvalidArgumentError, TriremeError
from ....engine.repository.uploads import FILE_PREFIX
from ....engine.tensor_limits import LimitError
from ...request_parameters import MAX_PARTS, MAX_TEXT_BYTES
from .pieces import Large, OddTextError, Places, count_members, cut
from .scan import PIECE_BYTES, refuse_parts, refuse_values, scan
from .strict import is_utf8, parse_strictly

INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1

T = TypeVar("T")


def _reader_of(kind: type[T], access: str, allowed: range | None = None) -> Callable[[Any], T]:
    def read(value: Any) -> T:
        if type(value) is not kind or (allowed is not None and value not in allowed):
            raise InternalError(f"attempt to access JSON {access}")
        return value

    return read


as_string = _reader_of(str, "non-string as string")
as_bool = _reader_of(bool, "non-boolean as boolean")
as_array: Callable[[Any], list[Any]] = _reader_of(list, "non-array as array")
as_object: Callable[[Any], dict[str, Any]] = _reader_of(dict, "non-object as object")
as_unsigned = _reader_of(int, "non-unsigned-integer as unsigned-integer", range(UINT64_MAX + 1))
as_signed = _reader_of(int, "non-signed-integer as signed-integer", range(-INT64_MAX - 1, INT64_MAX + 1))


def as_double(value: Any) -> float:
    """Any number."""
    kind = type(value)
    if kind is not float and kind is not int:
        raise InternalError("attempt to access JSON non-number as double")
    return float(value)


def member(value: Any, name: str) -> Any:
    """The member `name` of an object."""
    if type(value) is not dict or name not in value:
        raise InternalError(f"attempt to access non-existing object member '{name}'")
    return value[name]


def members(value: Any) -> list[str]:
    """The names of an object's members."""
    if type(value) is not dict:
        raise InternalError("attempt to get members for non-object")
    return list(value)


# ---- with errors that name the member ----


def converted(convert: Callable[[Any], T], value: Any, name: str, verb: str = "parse") -> T:
    """`value` as `convert` reads it.

    Raises:
        InternalError: it cannot; the text starts with ``Unable to <verb> '<name>': ``.
    """
    try:
        return convert(value)
    except InternalError as error:
        raise InternalError(f"Unable to {verb} '{name}': {error.message}") from None


def read_member(convert: Callable[[Any], T], value: Any, name: str) -> T:
    """The member `name` of the object `value` as `convert` reads it.

    Raises:
        InternalError: there is none, or it has another type; the text starts with ``Unable to parse '<name>': ``.
    """
    try:
        return convert(member(value, name))
    except InternalError as error:
        raise InternalError(f"Unable to parse '{name}': {error.message}") from None


def members_of(value: Any) -> dict[str, Any]:
    """The members of `value`; none, if it is no object: looking for a member that may be absent never fails."""
    return value if type(value) is dict else {}


# ---- documents ----


_MEMBER_COLON = re.compile(rb'"[ \t\r\n]*:')


def parse(body: bytes | memoryview) -> Any:
    """The value of a JSON document.

    Raises:
        InternalError: ``failed to parse the request JSON buffer: <reason> at <byte offset>``.
        InvalidArgumentError: it is nested too deeply to be read.
    """
    if not isinstance(body, bytes):
        body = bytes(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_strictly(body)
    members = count_members(value)
    if members == body.count(b":") or members == sum(1 for _ in _MEMBER_COLON.finditer(body)):
        return value
    return parse_strictly(body)


# ---- texts that are read off the event loop: what they may hold, what they cost, and in which order they are read ----


ON_LOOP_BYTES = 32_768
"""A text up to this size is read on the event loop, however it is made: strictly, that takes 5 ms at most."""

_BYTES_A_VALUE = 256  # a member of an object, or an empty one; two lists for an input of one number
_BYTES_A_NUMBER = 8
_BYTES_A_LENGTH = 4
_COPIES = 2  # of what is no plain data: put together, and as strings or files
_WIDER, _TEXTS = 2, 6 << 20  # a string may have four bytes a character; there are no more bytes of them than that


class LargeText:
    """A JSON text, looked at and not read yet.

    Args:
        text: up to the bound on bodies.
        max_values: ``--http-max-json-values``.
        piece_bytes: how much of it is looked at in one go.
        with_files: it may be of any length, whatever the number of its values.

    Attributes:
        cost_bytes: what its values take while it is read, beyond the text itself.

    Raises:
        InvalidArgumentError: it has too many values, outside of the data of tensors.
    """

    def __init__(
        self, text: memoryview, max_values: int, piece_bytes: int = PIECE_BYTES, *, with_files: bool = False
    ) -> None:
        self._text = text
        self._max_values = max_values
        self._found = found = scan(text, piece_bytes)
        refuse_parts(len(found.runs))
        in_runs = sum(run.values for run in found.runs)
        outside = len(text) - sum(run.stop - run.start for run in found.runs)
        self._outside = outside - sum(stop - start for start, stop in found.strings_outside())
        refuse_values(found.values, 0 if with_files else self._outside, max_values)
        self._values = found.values + in_runs
        # Data of tensors becomes numbers, or strings with their lengths in front.
        data = max(in_runs * _BYTES_A_NUMBER, in_runs * _BYTES_A_LENGTH + len(text) - outside)
        self.cost_bytes = found.values * _BYTES_A_VALUE + data + outside * _COPIES + min(outside, _TEXTS) * _WIDER

    def read(self, places: Places, use: Callable[[Any], T]) -> T:
        """What `use` makes of the document.

        Args:
            places: in which members large arrays may be left as text (`pieces.LargeArray`).
            use: called with the document, and perhaps again, with the document as it is read in another way.

        Raises:
            InternalError: the text is not JSON.
            InvalidArgumentError: it is nested too deeply, or has too many values.
            TriremeError: what `use` raises.
        """
        with contextlib.suppress(OddTextError):
            return _use(*cut(self._text, self._found, places, max_values=self._max_values), use)
        self._refuse_long_bytes(self._outside)
        with contextlib.suppress(OddTextError):
            return _use(*cut(self._text, self._found, places, strict=True, max_values=self._max_values), use)
        self._refuse_long_bytes(len(self._text))
        longest = max((stop - start for start, stop in self._found.strings), default=0)
        if longest > MAX_TEXT_BYTES:
            raise InvalidArgumentError(
                f"the request JSON is invalid, or not arranged as a request, and with a string of {longest} bytes too "
                f"large to say where: expected at most {MAX_TEXT_BYTES}"
            )
        if self._values > self._max_values:
            raise InvalidArgumentError(
                f"the request JSON is invalid, or not arranged as a request, and with about {self._values} values too "
                f"large to say where: expected at most {self._max_values}, which --http-max-json-values sets"
            )
        return use(parse_strictly(self._text))

    def _refuse_long_bytes(self, nbytes: int) -> None:
        """Bytes that are no UTF-8 take several times their length to be read, and a string of them is made at once."""
        if nbytes > MAX_TEXT_BYTES and not is_utf8(self._text):
            raise InvalidArgumentError(
                f"the request JSON is not UTF-8, and has {nbytes} bytes besides plain tensor data, expected at most "
                f"{MAX_TEXT_BYTES}"
            )


def read_text(text: memoryview, max_values: int) -> Any:
    """The value of a text of any size, by plain Python values.

    Raises:
        InternalError: it is not JSON.
        InvalidArgumentError: it is nested too deeply, or has too many values.
    """
    if len(text) <= PIECE_BYTES:
        if len(text) > max_values:
            refuse_values(scan(text).values, len(text), max_values)
        return parse(text)
    found = scan(text)
    values = found.values + sum(run.values for run in found.runs)
    refuse_values(values, 0, max_values)  # files may come with it, of any length
    if values > MOST_PLAIN_VALUES:
        raise LimitError(f"the request JSON has about {values} values, expected at most {MOST_PLAIN_VALUES}")
    return parse_strictly(text) if len(text) > _PLAIN_BYTES else parse(text)


MOST_PLAIN_VALUES = 4 * MAX_PARTS
"""No call but inference has a use for more: a load request has one for each of its files."""

_PLAIN_BYTES = 1 << 18


def infer_places(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where infer requests have the data of tensors."""
    inputs = members_of(document).get("inputs")
    for each in inputs if type(inputs) is list else ():
        if "data" in members_of(each):
            yield each, "data"


def load_places(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where load requests have files."""
    parameters = members_of(members_of(document).get("parameters"))
    for name in list(parameters):
        if name.startswith(FILE_PREFIX):
            yield parameters, name


def generate_places(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where generate requests have them: any member may be a tensor, but for the id."""
    members = members_of(document)
    for holder in (members, members_of(members.get("parameters"))):
        for name in list(holder):
            if name != "id":
                yield holder, name


def _use(document: Any, large: list[Large], use: Callable[[Any], T]) -> T:
    """What is wrong with the text counts before what is wrong with what it says, as if it had been read first."""
    try:
        made = use(document)
    except LimitError:
        raise
    except TriremeError:
        for each in large:
            each.check()
        raise
    for each in large:
        each.check()
    return made
