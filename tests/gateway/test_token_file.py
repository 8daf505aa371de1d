"""A file with a token: what is read, and what is refused without showing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.gateway.token_file import read_token


def test_a_token_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc.DEF-1~/+=\n")
    assert read_token(path) == "abc.DEF-1~/+="


@pytest.mark.parametrize("content", [b"", b"\n", b"secret\nsecret", b"secret secret", b"secret\x7f", b"s\xc3\xa9cret"])
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="expected one token in ") as refused:
        read_token(path)
    assert str(refused.value) == f"expected one token in {path}, and no more"
