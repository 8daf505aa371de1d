"""Header blocks: what a client's mean (RFC 7541, RFC 9113 §8.2, §8.3), and how a server's are written.

Rule 1: A block that cannot be decoded leaves both sides with different tables: the connection is at fault.
Rule 2: A list that is malformed, or too large, costs its stream. One that is far too large costs the connection.
Rule 3: Every block is decoded, even if its stream is refused, because it may change the table.
Rule 4: As long as no block changes the dynamic table, equal blocks mean equal lists, and a dictionary knows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Generic

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.hpack import encode_integer
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from ...engine.memo import Memo
from .frames import ConnectionFault, ErrorCode, H, StreamFault
from .limits import Http2Limits

Field = tuple[bytes, bytes]

_STATIC: tuple[Field, ...] = HeaderTable.STATIC_TABLE
_FIELD_OVERHEAD_BYTES = 32
_HARD_LIMIT_FACTOR = 4

_REQUIRED_PSEUDO = (b":method", b":scheme", b":path")
_PSEUDO = frozenset((*_REQUIRED_PSEUDO, b":authority"))
_CONNECTION_SPECIFIC = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_NAMES = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9a-z]+\n)*")
_STATUS = re.compile(rb"[1-5][0-9][0-9]")
_BAD_IN_VALUE = re.compile(rb"[\0\r\n]")


TABLE_SIZE_ZERO = b"\x20"
"""At the start of a header block: the sender will not use the dynamic table (RFC 7541 §6.3)."""


class HeaderReader(Generic[H]):
    """Reads the header blocks of one connection, in order.

    Args:
        limits: of lists, and of what is remembered.
        parse_head: makes of a valid header list what it means to the owner.
        check: raises StreamFault if a header list is not valid.

    Attributes:
        heads: what blocks mean, as long as the table stays as it is. Look here first, then `read`.
    """

    def __init__(
        self,
        limits: Http2Limits,
        parse_head: Callable[[Sequence[Field]], H],
        check: Callable[[Sequence[Field]], object] | None = None,
    ) -> None:
        self._limits = limits
        self._check = check or check_request
        self._parse_head = parse_head
        self._decoder = Decoder(limits.header_list_bytes * _HARD_LIMIT_FACTOR)
        self._table = self._decoder.header_table
        self._table_changed = False
        self.heads: Memo[H] = Memo(limits.cached_heads, limits.cached_block_bytes)

    def read(self, block: bytes) -> H:
        """What the block means.

        Raises:
            ConnectionFault: the block cannot be decoded, or its list is far too large.
            StreamFault: the list is too large, or not valid.
        """
        fields = self.decode(block)
        self._check(fields)
        head = self._parse_head(fields)
        if not self._table_changed:
            self.heads.remember(block, head)
        return head

    def decode(self, block: bytes) -> list[Field]:
        """The fields of the block.

        Raises:
            ConnectionFault: the block cannot be decoded, or its list is far too large.
            StreamFault: the list is too large.
        """
        self._table_changed = False
        try:
            fields = self._decode(block)
        except OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header list is far too large") from error
        except (HPACKError, IndexError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "header block cannot be decoded") from error
        if self._table_changed:
            self.heads.clear()
        size = sum([len(name) + len(value) for name, value in fields]) + _FIELD_OVERHEAD_BYTES * len(fields)
        if size > self._limits.header_list_bytes:
            raise StreamFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"header list exceeds {self._limits.header_list_bytes} bytes"
            )
        return fields

    def _decode(self, block: bytes) -> list[Field]:
        if block and block[0] & 0xE0 == 0x20:  # the table's size changes: seldom, and hpack knows how
            self._table_changed = True
            return [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        dynamic = self._table.dynamic_entries
        hard_limit = self._decoder.max_header_list_size
        fields: list[Field] = []
        inflated = 0
        at = 0
        size = len(block)
        while at < size:
            first = block[at]
            if first & 0x80:  # an indexed field
                index = first & 0x7F
                if index == 0x7F:
                    index, at = _read_integer(block, at, 7)
                else:
                    at += 1
                field = _STATIC[index - 1] if 0 < index <= 61 else dynamic[index - 62] if index else _no_field()
            elif first & 0x40:  # a literal that enters the table
                field, at = self._read_literal(block, at, 6)
                self._table.add(*field)
                self._table_changed = True
            elif first & 0x20:
                raise HPACKError("table size update after a field")
            else:
                field, at = self._read_literal(block, at, 4)
            fields.append(field)
            inflated += len(field[0]) + len(field[1]) + _FIELD_OVERHEAD_BYTES
            if inflated > hard_limit:
                raise OversizedHeaderListError
        return fields

    def _read_literal(self, block: bytes, at: int, prefix_bits: int) -> tuple[Field, int]:
        index, at = _read_integer(block, at, prefix_bits)
        if index:
            name = _STATIC[index - 1][0] if index <= 61 else self._table.dynamic_entries[index - 62][0]
        else:
            name, at = _read_string(block, at)
        value, at = _read_string(block, at)
        return (name, value), at


def _no_field() -> Field:
    raise HPACKError("index 0 is no field")


def _read_integer(block: bytes, at: int, prefix_bits: int) -> tuple[int, int]:
    """An integer (RFC 7541 §5.1) and where it ends."""
    mask = (1 << prefix_bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in (0, 7, 14, 21):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise HPACKError("integer is too long")


def _read_string(block: bytes, at: int) -> tuple[bytes, int]:
    """A string (RFC 7541 §5.2) and where it ends."""
    is_huffman = block[at] & 0x80
    length, at = _read_integer(block, at, 7)
    end = at + length
    text = block[at:end]
    if len(text) != length:
        raise HPACKError("string is cut off")
    return decode_huffman(text) if is_huffman else text, end


def check_request(fields: Sequence[Field]) -> None:
    """Whether a header list may open a request (RFC 9113 §8.2, §8.3).

    White space at the ends of values is let through: gRPC clients send it, and gRPC servers take it.

    Raises:
        StreamFault: PROTOCOL_ERROR, it may not.
    """
    names = [name for name, _ in fields]
    count = 0
    for name in names:
        if name[:1] != b":":
            break
        count += 1
    pseudo = names[:count]
    if len(set(pseudo)) != count or not _PSEUDO.issuperset(pseudo):
        raise _malformed("unknown or repeated pseudo-header")
    for name in _REQUIRED_PSEUDO:
        if name not in pseudo:
            raise _malformed(f"{name.decode()} is missing")
    check_fields(fields[count:])
    if _BAD_IN_VALUE.search(b"".join([value for _, value in fields[:count]])) or (b":path", b"") in fields[:count]:
        raise _malformed("illegal pseudo-header value")


def check_answer(fields: Sequence[Field]) -> None:
    """Whether a header list may be response headers, or trailers.

    Raises:
        StreamFault: PROTOCOL_ERROR, it may not.
    """
    has_status = bool(fields) and fields[0][0] == b":status"
    if has_status and not _STATUS.fullmatch(fields[0][1]):
        raise _malformed("illegal :status")
    check_fields(fields[has_status:])


def check_fields(fields: Sequence[Field]) -> None:
    """Whether these may be ordinary fields, in a request or in trailers.

    Raises:
        StreamFault: PROTOCOL_ERROR, they may not.
    """
    names = [name for name, _ in fields]
    joined = b"\n".join([*names, b""])
    if not _NAMES.fullmatch(joined) or joined.count(b"\n") != len(names):
        raise _malformed("illegal field name")
    if _BAD_IN_VALUE.search(b"".join([value for _, value in fields])):
        raise _malformed("illegal field value")
    if not _CONNECTION_SPECIFIC.isdisjoint(names):
        raise _malformed("connection-specific field")
    if b"te" in names and any(name == b"te" and value != b"trailers" for name, value in fields):
        raise _malformed("te is not trailers")


def _malformed(debug: str) -> StreamFault:
    return StreamFault(ErrorCode.PROTOCOL_ERROR, debug)


def encode_block(headers: Iterable[Field]) -> bytes:
    """A header block that uses no dynamic table, so that it means the same at any time, on any connection."""
    out = bytearray()
    for name, value in headers:
        index, values = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))
        if value in values:
            out += bytes((0x80 | values[value],))
            continue
        out += encode_integer(index, 4)  # a literal without indexing
        if not index:
            out += encode_integer(len(name), 7)
            out += name
        out += encode_integer(len(value), 7)
        out += value
    return bytes(out)
