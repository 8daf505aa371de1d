"""`trireme key new`."""

from __future__ import annotations

import pytest

from trireme.api.cli.main import main
from trireme.engine.access.control import AccessControl
from trireme.engine.access.credentials import Credential, CredentialKind
from trireme.engine.access.rules import read_rules


@pytest.mark.parametrize(
    ("words", "expires"),
    [
        ([], None),
        (["--id", "team1", "--expires", "1970-01-02"], 86_400.0),
        (["--expires", "1970-01-01T01:00:00+00:00"], 3_600.0),
    ],
)
def test_a_new_key_is_one_that_its_table_knows(
    words: list[str], expires: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["key", "new", *words]) == 0
    printed = capsys.readouterr()
    key = printed.out.strip()
    table = printed.err  # all of it may be added to the file
    assert key.split("_")[2] not in table
    control = AccessControl(read_rules(f'[[callers]]\nname = "a"\n{table}', "f"), bytes(32), 0.0)
    caller = control.identify(Credential(CredentialKind.API_KEY, key.encode()), 0.0, 0.0)
    assert (caller.name, caller.expires_s) == ("a", expires)


def test_keys_differ(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        main(["key", "new"])
    assert len(set(capsys.readouterr().out.split())) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--id", "A"], "--id takes 4 to 32 characters of a-z and 0-9. Got A\n"),
        (["--expires", "soon"], "--expires takes a date, or a time with an offset, such as 2030-01-31T00:00:00+00:00."),
        (["--expires", "2030-01-01T00:00:00"], "Got 2030-01-01T00:00:00\n"),
    ],
)
def test_wrong_words(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "new", *words]) == 1
    assert message in capsys.readouterr().err
