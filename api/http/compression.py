"""Compressed request and response bodies (http.md §4.10)."""

from __future__ import annotations

import re
import zlib

from ...engine.errors import InvalidArgumentError, UnsupportedError

SUPPORTED = "gzip, deflate"
"""What the ``Accept-Encoding`` header of an answer to an unknown compression says."""

_AUTO_DETECT = 32 + zlib.MAX_WBITS  # gzip or zlib, by the first bytes
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_QUALITY = re.compile(r"\s*\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def decompress(body: bytes | memoryview, encoding: str | None, limit_bytes: int) -> bytes | memoryview:
    """The body as it was before ``Content-Encoding``; itself when there was none.

    The label only says that the body is compressed; gzip or zlib is told by its first bytes. Data that neither can
    decode gives an empty body, data that ends early gives what came before the end, and what follows the end is
    ignored. No more than `limit_bytes` + 1 bytes are ever inflated.

    Raises:
        UnsupportedError: an unknown encoding (exact lower case counts).
        InvalidArgumentError: nothing to decompress, or more than `limit_bytes` come out.
    """
    if not encoding or encoding == "identity":
        return body
    if encoding not in _WINDOW_BITS:
        raise UnsupportedError("Unsupported compression type")
    if not body:
        raise InvalidArgumentError("nothing to be decompressed")
    try:
        plain = zlib.decompressobj(_AUTO_DETECT).decompress(body, limit_bytes + 1)
    except zlib.error:
        return b""
    if len(plain) > limit_bytes:
        raise InvalidArgumentError(
            f"Decompressed data size exceeds the maximum allowed value of {limit_bytes} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    return plain


def choose_encoding(accept_encoding: str | None) -> str | None:
    """``gzip``, ``deflate``, or None for no compression, by an ``Accept-Encoding`` list.

    The highest ``;q=`` wins (1 if not given), the first on ties; ``identity`` takes part. Names are matched exactly,
    so whatever else stands before ``;q=`` makes an entry unknown, and unknown entries are ignored.
    """
    if not accept_encoding:
        return None
    chosen, best = "identity", 0.0
    for entry in accept_encoding.split(","):
        name, _, weight = entry.strip(" ").partition(";q=")
        if name != "identity" and name not in _WINDOW_BITS:
            continue
        quality = 1.0
        if ";q=" in entry:
            number = _QUALITY.match(weight)
            quality = float(number[0]) if number else 0.0
        if quality > best:
            chosen, best = name, quality
    return None if chosen == "identity" else chosen


def compress(body: bytes | memoryview, encoding: str) -> bytes:
    """`body` as ``gzip`` or ``deflate`` (zlib format)."""
    compressor = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    return compressor.compress(body) + compressor.flush()
