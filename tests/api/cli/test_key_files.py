"""Keys of restrictions that are in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.api.cli.command import ServeCommand, build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import UsageError, parse
from trireme.api.request_parameters import Restriction


def command(*words: str) -> ServeCommand:
    return build_command(parse(words, FLAGS), {})


def test_a_key_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("se=cret\n")
    told = command(f"--http-restricted-api=health:key=@{file}", f"--grpc-restricted-protocol=health:key=@{file}")
    assert told.http is not None
    assert told.grpc is not None
    for restrictions in (told.http.options.restrictions, told.grpc.options.restrictions):
        assert restrictions == (Restriction(("health",), "key", "se=cret"),)


@pytest.mark.parametrize("content", [None, "", "\n", "two\nlines\n"])
def test_a_key_file_holds_one_line(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    wrong = "cannot read its value from" if content is None else "expects one line, the value, in"
    with pytest.raises(UsageError, match=f"--http-restricted-api {wrong} {file}"):
        command(f"--http-restricted-api=health:key=@{file}")
