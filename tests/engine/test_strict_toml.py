"""Where in a TOML text something stands (`engine.strict_toml`); the rest is tested with the files that are read."""

from __future__ import annotations

import pytest

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.strict_toml import FileTable, key_lines, read_strictly


def test_lines_of_quoted_keys() -> None:
    lines = key_lines('[routes."a.b"]\nx = 1\n"model:2" = 3\n[routes.\'c d\'.e]  # of\nf . "g.h" = 4\n')
    assert lines == {
        ("routes",): 1,
        ("routes", "a.b"): 1,
        ("routes", "a.b", "x"): 2,
        ("routes", "a.b", "model:2"): 3,
        ("routes", "c d"): 4,
        ("routes", "c d", "e"): 4,
        ("routes", "c d", "e", "f"): 5,
        ("routes", "c d", "e", "f", "g.h"): 5,
    }


def test_what_is_not_expected_is_named_before_what_is_missing() -> None:
    def read(root: FileTable) -> str:
        root.expect("name")
        return root.need("name", str, "a text")

    with pytest.raises(InvalidArgumentError, match=r"^f:1: nam: found an unknown key, .*did you mean name\?"):
        read_strictly('nam = "a"', "f", read)
    with pytest.raises(InvalidArgumentError, match=r"^f: found no name, expected name = a text"):
        read_strictly("", "f", read)
    assert read_strictly('name = "a"', "f", read) == "a"
