"""--poll-us: for how long the server's processes poll."""

from __future__ import annotations

import os

import pytest

from trireme.api.cli.command import build_command
from trireme.api.cli.cores import poll_us
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import UsageError, parse


def test_who_says_nothing_polls_where_others_have_as_many_cores() -> None:
    assert [poll_us(None, cores, 1) for cores in (1, 2, 3, 64)] == [0, 60, 60, 60]
    assert [poll_us(None, cores, 3) for cores in (2, 5, 6)] == [0, 0, 60]
    assert [poll_us(wanted, 1, 9) for wanted in (0, 7)] == [0, 7]


@pytest.mark.parametrize(
    ("words", "cores", "poll_s"),
    [
        ((), {0, 1}, 60e-6),
        (("--front-ends=1",), {0, 1}, 0.0),
        (("--poll-us=auto", "--front-ends=1"), {0, 1, 2, 3}, 60e-6),
        (("--poll-us=25",), {0}, 25e-6),
        (("--poll-us=0",), {0, 1}, 0.0),
    ],
)
def test_the_flag_becomes_an_option(
    words: tuple[str, ...], cores: set[int], poll_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    assert build_command(parse(words, FLAGS), {}).server.poll_s == pytest.approx(poll_s)


@pytest.mark.parametrize("wrong", ["-1", "1001", "soon"])
def test_what_is_no_number_of_microseconds_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="poll-us"):
        parse((f"--poll-us={wrong}",), FLAGS)
