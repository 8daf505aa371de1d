"""API keys, and what the access file has of them."""

from __future__ import annotations

import pytest

from trireme.engine.access.keys import UNKNOWN_KEY, make_key, read_digest, split_key

SECRET = "f" * 64


def test_a_key_is_known_by_its_digest() -> None:
    key, digest = make_key("k1ab", SECRET, b"saltsalt")
    assert key == f"trk_k1ab_{SECRET}"
    assert SECRET not in str(digest)
    assert split_key(key.encode()) == ("k1ab", SECRET.encode())
    read = read_digest(str(digest))
    assert read is not None
    assert read == digest
    assert read.admits(SECRET.encode())
    assert not read.admits(SECRET.encode()[:-1])
    assert not UNKNOWN_KEY.admits(SECRET.encode())


def test_the_same_secret_has_another_digest_with_another_salt() -> None:
    assert make_key("k1ab", SECRET, b"saltsalt")[1] != make_key("k1ab", SECRET, b"pepperpe")[1]


@pytest.mark.parametrize("value", [b"", b"trk_", b"trk_k1ab_short", b"trk_K1AB_" + b"f" * 64, b"k1ab_" + b"f" * 64])
def test_what_is_no_key(value: bytes) -> None:
    assert split_key(value) is None


@pytest.mark.parametrize("text", ["", "sha256:aa:bb", f"sha512:{'a' * 16}:{'b' * 64}", f"sha256:{'a' * 17}:{'b' * 64}"])
def test_what_is_no_digest(text: str) -> None:
    assert read_digest(text) is None
