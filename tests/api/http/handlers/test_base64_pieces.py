"""Base64 is decoded in pieces to what the standard library makes of it at once."""

from __future__ import annotations

import base64
import binascii

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trireme.api.http.handlers.management import decode_pieces


def in_pieces(text: bytes, nbytes: int) -> bytes | str:
    """Or why it is none."""
    try:
        return bytes(decode_pieces([text[at : at + nbytes] for at in range(0, len(text), nbytes)], len(text)))
    except ValueError as error:
        return str(error)


def at_once(text: bytes) -> bytes | str:
    try:
        return binascii.a2b_base64(text.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        return str(error)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(b"AQg/+==\n *"), max_size=20).map(bytes), st.integers(1, 7))
@example(b"QUI=QUJD", 3)
@example(b"Q=Q==", 2)
@example(b"=QUJD", 1)
def test_any_text_is_decoded_or_refused_as_at_once(text: bytes, nbytes: int) -> None:
    assert in_pieces(text, nbytes) == at_once(text)


@given(st.binary(max_size=200), st.integers(1, 50), st.sampled_from([b"", b"\n", b"\r\n"]))
def test_what_was_encoded_comes_back(content: bytes, nbytes: int, end: bytes) -> None:
    lines = base64.encodebytes(content).replace(b"\n", end)
    assert in_pieces(lines, nbytes) == content


@pytest.mark.parametrize("text", ["\u00e9QUI=".encode(), b"QUI\xff"])
def test_other_characters_are_refused(text: bytes) -> None:
    assert in_pieces(text, 100) == at_once(text) == "string argument should contain only ASCII characters"
