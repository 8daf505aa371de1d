"""Base64 in pieces: one call for all of a file would hold the interpreter's lock."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable

import numpy as np

_OTHERS = re.compile(rb"[^A-Za-z0-9+/=]+")


def decode_pieces(pieces: Iterable[bytes], nbytes: int) -> memoryview:
    """What `binascii.a2b_base64` makes of the pieces put together: characters outside of the alphabet are skipped, and
    what follows the padding is ignored.

    Args:
        nbytes: as many bytes as the pieces have, or more.

    Raises:
        ValueError: it is no base64.
    """
    decoder = _Decoder(nbytes)
    for piece in pieces:
        if not piece.isascii():
            raise ValueError("string argument should contain only ASCII characters")
        decoder.feed(piece)
    return decoder.end()


class _Decoder:
    """Decodes whole groups of four characters as they come.

    Attributes:
        padded: the padding has been found.
    """

    def __init__(self, nbytes: int) -> None:
        self._plain = np.empty(nbytes // 4 * 3 + 3, np.uint8).data
        self._filled = 0
        self._group = b""  # of fewer than four characters
        self._pads = 0
        self.padded = False

    def feed(self, piece: bytes) -> None:
        first, *others = _OTHERS.sub(b"", piece).split(b"=")
        self._add(first)
        for each in others:
            if self.padded:
                return
            self._pad()
            self._add(each)

    def end(self) -> memoryview:
        if self._group and not self.padded:
            if len(self._group) == 1:
                count = self._filled // 3 * 4 + 1
                raise ValueError(
                    f"Invalid base64-encoded string: number of data characters ({count}) cannot be 1 more than a "
                    "multiple of 4"
                )
            raise ValueError("Incorrect padding")
        return self._plain[: self._filled].toreadonly()

    def _add(self, characters: bytes) -> None:
        if characters and not self.padded:
            self._pads = 0
            characters = self._group + characters
            whole = len(characters) & ~3
            self._put(characters[:whole])
            self._group = characters[whole:]

    def _pad(self) -> None:
        if len(self._group) >= 2:
            self._pads += 1
            if len(self._group) + self._pads >= 4:
                self._put(self._group.ljust(4, b"="))
                self.padded = True

    def _put(self, characters: bytes) -> None:
        plain = binascii.a2b_base64(characters)
        self._plain[self._filled : self._filled + len(plain)] = plain
        self._filled += len(plain)
