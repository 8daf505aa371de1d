"""Compressed request and response bodies (docs/reference/http-inference.md#compression)."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

from ...engine.errors import InvalidArgumentError, UnsupportedError
from ...engine.tensor import Buffer

SUPPORTED = "gzip, deflate"
"""What the ``Accept-Encoding`` header of an answer to an unknown compression says."""

_AUTO_DETECT = 32 + zlib.MAX_WBITS  # gzip or zlib, by the first bytes
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_QUALITY = re.compile(r"\s*\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


RATIO_FREE_BYTES = 16 << 20
"""What comes out before the ratio of compression is looked at: zeros are packed 1,029 to 1 by honest clients, too."""

_INPUT_BYTES = 65_536


def needs_expansion(encoding: str | None, nbytes: int) -> bool:
    """Whether a body of `nbytes` with this ``Content-Encoding`` is compressed (exact lower case counts).

    Raises:
        UnsupportedError: an unknown encoding.
        InvalidArgumentError: there is nothing to decompress.
    """
    if not encoding or encoding == "identity":
        return False
    if encoding not in _WINDOW_BITS:
        raise UnsupportedError("Unsupported compression type")
    if not nbytes:
        raise InvalidArgumentError("nothing to be decompressed")
    return True


@dataclass(slots=True, eq=False)
class Expansion:
    """A compressed body on its way back to what it was, step by step.

    Gzip or zlib is told by the first bytes, whatever the label says. Data that ends early, or cannot be decoded from
    some place on, gives what came before; checksums do not matter; what follows the end is ignored, be it another
    member. All of that is Triton's.

    Args:
        max_ratio: most bytes out for one in, once more than `RATIO_FREE_BYTES` have come out; 0 for any number.

    Attributes:
        over: all has come out.
    """

    body: memoryview
    limit_bytes: int
    max_ratio: float = 0.0
    over: bool = field(default=False, init=False)
    _decompressor: zlib._Decompress = field(default_factory=lambda: zlib.decompressobj(_AUTO_DETECT), init=False)
    _rest: Buffer = field(default=b"", init=False)
    _at: int = field(default=0, init=False)
    _plain: bytearray = field(default_factory=bytearray, init=False)

    @property
    def plain(self) -> memoryview:
        """What has come out so far."""
        return memoryview(self._plain).toreadonly()

    def step(self, nbytes: int) -> None:
        """Let up to `nbytes` more come out.

        Raises:
            InvalidArgumentError: too much has come out.
        """
        wanted = len(self._plain) + nbytes
        while not self.over and len(self._plain) < wanted:
            self._inflate(wanted - len(self._plain))

    def _inflate(self, nbytes: int) -> None:
        if not self._rest:
            self._rest = self.body[self._at : self._at + _INPUT_BYTES]
            self._at += len(self._rest)
        ended = not self._rest
        nbytes = min(nbytes, self.limit_bytes + 1 - len(self._plain))
        before = self._decompressor.copy()
        try:
            piece = self._decompressor.decompress(self._rest, nbytes)
            self._rest = self._decompressor.unconsumed_tail
            self._plain += piece
            self.over = self._decompressor.eof or (ended and not piece)
        except zlib.error:
            self._plain += _until_error(before, self._rest, nbytes)
            self.over = True
        out = len(self._plain)
        if out > self.limit_bytes:
            raise InvalidArgumentError(
                f"Decompressed data size exceeds the maximum allowed value of {self.limit_bytes} bytes. "
                "Use --http-max-input-size to increase the limit."
            )
        consumed = self._at - len(self._rest)
        if self.max_ratio and out > max(RATIO_FREE_BYTES, self.max_ratio * consumed):
            raise InvalidArgumentError(
                f"{consumed} bytes of the request's compressed body unpack to more than {out}, expected at most "
                f"{self.max_ratio:g} bytes for each, which --http-max-compression-ratio sets"
            )


def _until_error(decompressor: zlib._Decompress, data: Buffer, nbytes: int) -> bytes:
    """What comes out of data with an error before it, at most `nbytes`. A call that fails gives nothing, so this looks
    for the last one that does not; what the very byte with the error gives is lost. The decompressor is as it was
    before the data.
    """
    out = bytearray()
    size = len(data)
    while data:
        attempt = decompressor.copy()
        try:
            out += attempt.decompress(data[:size], nbytes - len(out) if size > 1 else 1)
        except zlib.error:
            if size == 1:
                break
            size = (size + 1) // 2
            continue
        decompressor = attempt
        data = bytes(attempt.unconsumed_tail) + bytes(data[size:])
        if len(out) == nbytes:
            break
    return bytes(out)


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


def compress(body: Buffer, encoding: str, tail: Buffer = b"") -> bytes:
    """`body`, and `tail` behind it, as ``gzip`` or ``deflate`` (zlib format)."""
    compressor = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    return b"".join((compressor.compress(body), compressor.compress(tail), compressor.flush()))
