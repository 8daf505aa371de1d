"""Bodies are compressed and decompressed by Triton's rules (docs/reference/http-inference.md#compression)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http.compression import RATIO_FREE_BYTES, Expansion, choose_encoding, compress, needs_expansion
from trireme.engine.errors import InvalidArgumentError, UnsupportedError

LIMIT = 1 << 20
TEXT = b"hello world " * 20


def decompress(body: bytes, encoding: str | None, limit_bytes: int, ratio: float = 0.0, step: int = 1 << 16) -> bytes:
    """The body as the front end unpacks it."""
    if not needs_expansion(encoding, len(body)):
        return body
    expansion = Expansion(memoryview(body), limit_bytes, ratio)
    while not expansion.over:
        expansion.step(step)
    return bytes(expansion.plain)


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate"]))
def test_what_was_compressed_comes_back(body: bytes, encoding: str) -> None:
    packed = compress(body, encoding)
    assert decompress(packed, encoding, LIMIT) == body
    standard = gzip.decompress if encoding == "gzip" else zlib.decompress
    assert standard(packed) == body


@pytest.mark.parametrize("label", ["gzip", "deflate"])
def test_the_codec_is_told_by_the_data_not_the_label(label: str) -> None:
    assert decompress(gzip.compress(TEXT), label, LIMIT) == TEXT
    assert decompress(zlib.compress(TEXT), label, LIMIT) == TEXT


@pytest.mark.parametrize("label", [None, "", "identity"])
def test_no_compression_leaves_the_body_alone(label: str | None) -> None:
    packed = gzip.compress(b"x")
    assert decompress(packed, label, 1) == packed
    assert decompress(b"", label, 1) == b""


@pytest.mark.parametrize("label", ["GZIP", "br", "gzip, deflate", "x-gzip", "gzip "])
def test_other_labels_are_unsupported(label: str) -> None:
    with pytest.raises(UnsupportedError, match=r"^Unsupported compression type$"):
        decompress(gzip.compress(TEXT), label, LIMIT)


def test_an_empty_body_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^nothing to be decompressed$"):
        decompress(b"", "gzip", LIMIT)


def test_undecodable_data_is_an_empty_body() -> None:
    raw = zlib.compressobj(wbits=-15)
    assert decompress(raw.compress(TEXT) + raw.flush(), "deflate", LIMIT) == b""
    assert decompress(b"junkjunk", "gzip", LIMIT) == b""


def test_data_that_ends_early_gives_what_came_before() -> None:
    packed = gzip.compress(bytes(range(256)) * 40, compresslevel=0)
    plain = decompress(packed[:5000], "gzip", LIMIT)
    assert len(plain) > 4000
    assert (bytes(range(256)) * 40).startswith(plain)


def test_what_follows_the_end_is_ignored() -> None:
    assert decompress(gzip.compress(TEXT) + b"xyz", "gzip", LIMIT) == TEXT
    assert decompress(gzip.compress(TEXT) + gzip.compress(b"more"), "gzip", LIMIT) == TEXT


# What the real Triton answered to these.
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_checksums_do_not_matter_nor_what_comes_before_data(pack: Callable[[bytes], bytes]) -> None:
    packed = bytearray(pack(TEXT))
    packed[-1] ^= 0xFF
    assert decompress(bytes(packed), "gzip", LIMIT) == TEXT
    assert decompress(bytes(packed[:-1]), "gzip", LIMIT) == TEXT
    for first in (b"xyz", pack(b"")):
        assert decompress(first + pack(TEXT), "gzip", LIMIT) == b""
    assert decompress(pack(TEXT[:9]) + pack(TEXT[9:]), "gzip", LIMIT) == TEXT[:9]


@settings(deadline=None)
@given(
    st.binary(max_size=400),
    st.sampled_from([lambda body: gzip.compress(body, 0), gzip.compress, zlib.compress]),
    st.integers(0, 1 << 20),
    st.integers(0, 7),
    st.sampled_from([1, 7, 1 << 16]),
)
def test_data_with_an_error_gives_what_comes_before_it(
    body: bytes, pack: Callable[[bytes], bytes], at: int, bit: int, step: int
) -> None:
    """As Triton has it; zlib may keep to itself what it made in the very call that met the error."""
    packed = bytearray(pack(body * 5))
    packed[at % len(packed)] ^= 1 << bit
    expected = bytearray()
    byte_by_byte = zlib.decompressobj(32 + zlib.MAX_WBITS)
    rest = bytes(packed)
    with suppress(zlib.error):
        while not byte_by_byte.eof:
            piece = byte_by_byte.decompress(rest, 1)
            rest = byte_by_byte.unconsumed_tail
            expected += piece
            if not rest and not piece:
                break
    found = decompress(bytes(packed), "gzip", LIMIT, step=step)
    assert found.startswith(expected)
    assert len(found) - len(expected) < 8 * 258, "more than one byte of deflated data can mean"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_the_limit_is_exact(encoding: str) -> None:
    assert len(decompress(compress(bytes(1000), encoding), encoding, 1000)) == 1000
    with pytest.raises(InvalidArgumentError) as caught:
        decompress(compress(bytes(1001), encoding), encoding, 1000)
    assert caught.value.message == (
        "Decompressed data size exceeds the maximum allowed value of 1000 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize("step", [1_000, 1 << 16])
def test_a_bomb_is_not_inflated(step: int) -> None:
    """One byte more than the limit comes out, however large the steps are."""
    expansion = Expansion(memoryview(zlib.compress(bytes(20_000_000))), 5000)
    for _ in range(5000 // step):
        expansion.step(step)
    with pytest.raises(InvalidArgumentError):
        expansion.step(step)
    assert len(expansion.plain) == 5001


def test_much_from_little_is_refused_beyond_the_first_megabytes() -> None:
    """Honest zeros are packed about a thousand to one."""
    free = Expansion(memoryview(zlib.compress(bytes(RATIO_FREE_BYTES))), 1 << 30, 100)
    free.step(1 << 30)
    assert (free.over, len(free.plain)) == (True, RATIO_FREE_BYTES)
    packed = zlib.compress(bytes(RATIO_FREE_BYTES + (1 << 20)))
    with pytest.raises(InvalidArgumentError) as caught:
        Expansion(memoryview(packed), 1 << 30, 100).step(1 << 30)
    assert "expected at most 100 bytes for each, which --http-max-compression-ratio sets" in caught.value.message
    for ratio in (0, 1_100):
        Expansion(memoryview(packed), 1 << 30, ratio).step(1 << 30)


@given(st.binary(max_size=300), st.integers(1, 40), st.booleans())
def test_steps_make_no_difference(body: bytes, step: int, junk: bool) -> None:
    packed = gzip.compress(body * 9) + b"junk" * junk
    assert decompress(packed, "gzip", LIMIT, step=step) == body * 9
    assert decompress(packed[:-9], "gzip", LIMIT, step=step) == decompress(packed[:-9], "gzip", LIMIT)


# What the real Triton chose.
@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, None),
        ("", None),
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip, deflate", "gzip"),
        ("br, gzip", "gzip"),
        ("*", None),
        ("identity", None),
        ("identity, gzip", None),
        ("gzip, identity", "gzip"),
        ("identity;q=0.5, gzip", "gzip"),
        ("identity;q=0", None),
        ("gzip;q=0", None),
        ("gzip;q=0,deflate;q=0", None),
        ("gzip;q=0.5, deflate;q=0.9", "deflate"),
        ("gzip;q=0.5,deflate", "deflate"),
        ("gzip;q=1.0,deflate;q=1.0", "gzip"),
        ("gzip;q=1e-3,deflate;q=0.002", "deflate"),
        ("gzip;q=2", "gzip"),
        ("gzip;q=0.0001", "gzip"),
        ("gzip; q=0.1, deflate;q=0.2", "deflate"),
        ("gzip ;q=0.2,deflate;q=0.1", "deflate"),
        ("gzip;foo=1;q=0.5,deflate;q=0.6", "deflate"),
        ("gzip;q=0.5;x=1,deflate;q=0.4", "gzip"),
        ("gzip;q=1;q=0", "gzip"),
        ("deflate;q= 0.5,gzip;q=0.4", "deflate"),
        ("gzip,,deflate;q=0", "gzip"),
        ("gzip;q=abc", None),
        ("gzip;q=", None),
        ("gzip;q=-1", None),
        ("gzip;q=nan,deflate;q=0.1", "deflate"),
        ("GZIP", None),
        ("gzip;Q=0", None),
        ("x-gzip", None),
        ("deflate gzip", None),
        ("\tgzip", None),
    ],
)
def test_the_best_known_encoding_is_chosen(accept: str | None, chosen: str | None) -> None:
    assert choose_encoding(accept) == chosen


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["gzip", "deflate", "identity", "br"]), st.integers(0, 100)), max_size=5))
def test_the_highest_weight_wins_and_the_first_on_ties(entries: list[tuple[str, int]]) -> None:
    header = ",".join(f"{name};q={weight / 100}" for name, weight in entries)
    known = [entry for entry in entries if entry[0] != "br" and entry[1]]
    best = max(known, key=lambda entry: entry[1])[0] if known else "identity"
    assert choose_encoding(header) == (None if best == "identity" else best)


@settings(deadline=None)
@given(st.text(alphabet="gzipdeflat;q=01.,- e+x", max_size=20))
def test_no_header_is_an_error(header: str) -> None:
    assert choose_encoding(header) in (None, "gzip", "deflate")
