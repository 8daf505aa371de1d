"""Header blocks: read as hpack reads them, remembered only as long as that is right, written without a table."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple
from http2_held import held
from http2_peer import BLOCK, REQUEST, Head, RawPeer, headers
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http2.frames import ConnectionFault, ErrorCode, StreamFault
from trireme.api.http2.headers import HeaderReader, check_fields, check_request, encode_block
from trireme.api.http2.limits import Http2Limits

LIMITS = Http2Limits(header_list_bytes=1 << 20)

fields = st.lists(
    st.tuples(
        st.sampled_from([b":path", b"te", b"x", b"grpc-timeout", b"content-type", b"a-much-longer-name"]),
        st.sampled_from([b"", b"trailers", b"application/grpc", b"POST", b"z" * 200]) | st.binary(max_size=8),
        st.booleans(),
    ),
    max_size=8,
)


class Counting:
    """A parse_head that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, found: object) -> Head:
        self.calls += 1
        return tuple(found)  # type: ignore[arg-type]


def reader(limits: Http2Limits = LIMITS) -> HeaderReader[Head]:
    return HeaderReader(limits, Counting())


@settings(deadline=None)
@given(lists=st.lists(fields, max_size=12), huffman=st.booleans(), sizes=st.lists(st.sampled_from([0, 60, 200, 4096])))
def test_decodes_like_hpack(lists: list[list[tuple[bytes, bytes, bool]]], huffman: bool, sizes: list[int]) -> None:
    """The same fields and the same dynamic table, block after block, also when the table's size changes."""
    ours, theirs, encoder = reader(), Decoder(), Encoder()
    for number, listed in enumerate(lists):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        block = encoder.encode([NeverIndexedHeaderTuple(n, v) if never else (n, v) for n, v, never in listed], huffman)
        assert ours.decode(block) == [(n, v) for n, v, _ in listed] == list(theirs.decode(block, raw=True))
        assert list(ours._table.dynamic_entries) == list(theirs.header_table.dynamic_entries)


@settings(deadline=None, max_examples=100)
@given(blocks=st.lists(st.binary(max_size=40), max_size=4))
def test_decodes_rubbish_like_hpack(blocks: list[bytes]) -> None:
    """What hpack refuses is refused, and the rest means the same. (Integers that do not fit 28 bits are refused.)"""
    ours, theirs = reader(), Decoder()
    for block in blocks:
        try:
            expected = [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)]
        except HPACKError:
            with pytest.raises(ConnectionFault) as raised:
                ours.decode(block)
            assert raised.value.code is ErrorCode.COMPRESSION_ERROR
            return
        assert ours.decode(block) == expected


@pytest.mark.parametrize("text", [b"a", b"POST", b"x" * 126, b"x" * 127, b"x" * 128, b"x" * 20_000, bytes(range(256))])
def test_written_blocks_can_be_read(text: bytes) -> None:
    """By anybody, with any table, and the table stays as it is."""
    listed = [(b":status", b"200"), (b":status", b"299"), (b"content-type", text), (b"grpc-status", text), (b"te", b"")]
    decoder = Decoder()
    decoder.max_header_list_size = 100_000
    assert list(decoder.decode(encode_block(listed), raw=True)) == listed
    assert not decoder.header_table.dynamic_entries


def test_known_blocks_are_not_read_again() -> None:
    """Equal blocks give the very same head."""
    peer = RawPeer()
    (first,), (second,) = peer.say(headers(1)), peer.say(headers(3))
    assert first.head is second.head
    assert held(peer.server).cached_heads == 1


def test_table_change_makes_blocks_mean_something_else() -> None:
    """The cache must not outlive the table: the same bytes stand for other fields afterwards."""
    ours, encoder = reader(), Encoder()
    request = [*REQUEST, (b"x", b"first")]
    encoder.encode(request)
    opening = Encoder().encode(request)
    assert ours.read(opening) == tuple(request)
    indexed = encoder.encode(request)
    assert ours.read(indexed) == tuple(request)
    assert ours.heads[indexed] == tuple(request)
    ours.decode(b"\x40\x01x\x06second")
    assert ours.heads == {}
    assert ours.decode(indexed[-1:]) == [(b"x", b"second")]


@pytest.mark.parametrize("change", [b"\x40\x01x\x01y", b"\x20", b"\x5f\x01y"])
def test_blocks_that_change_the_table_are_not_remembered(change: bytes) -> None:
    ours = reader()
    ours.read(BLOCK)
    assert len(ours.heads) == 1
    block = change + BLOCK if change == b"\x20" else BLOCK + change
    ours.read(block)
    assert ours.heads == {}


def test_long_blocks_are_not_remembered() -> None:
    ours = reader(Http2Limits(cached_block_bytes=len(BLOCK)))
    ours.read(BLOCK)
    ours.read(BLOCK + encode_block([(b"x", b"y")]))
    assert list(ours.heads) == [BLOCK]


def test_list_too_large() -> None:
    """RFC 9113 counts 32 bytes for each field besides names and values."""
    ours = reader(Http2Limits(header_list_bytes=100))
    assert ours.decode(encode_block([(b"x", b"y" * 67)]))
    with pytest.raises(StreamFault) as raised:
        ours.decode(encode_block([(b"x", b"y" * 68)]))
    assert raised.value.code is ErrorCode.ENHANCE_YOUR_CALM
    with pytest.raises(ConnectionFault) as fatal:
        ours.decode(encode_block([(b"x", b"y" * 368)]))
    assert fatal.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_what_grpc_clients_send_is_legal() -> None:
    """All bytes that metadata may hold, spaces at the ends included; te only as trailers; any order of fields."""
    check_request(
        [*REQUEST, (b"key-bin", b"AAEC/w"), (b"k_.-1", b" spaces "), (b"tab", b"a\tb"), (b"utf8", b"\xc3\xa9")]
    )
    check_request([*REQUEST[::-1][2:], *REQUEST[::-1][:2]])
    check_fields([])
    check_fields([(b"te", b"trailers")])
