"""What `trireme serve` prints about its options."""

from __future__ import annotations

import pytest

from trireme.api.cli.flag_table import FLAGS, GROUPS
from trireme.api.cli.flags import Flag, Group, UsageError, parse
from trireme.api.cli.usage import FIRST, ServerProgram, answer_as_triton, answer_usage_error, help_text, usage_text
from trireme.api.cli.values import BOOLEAN

PROGRAM = ServerProgram("trireme serve", GROUPS, "trireme serve --model-repository models")


def refused(*words: str) -> UsageError:
    with pytest.raises(UsageError) as raised:
        parse(words, FLAGS)
    return raised.value


def test_what_a_flag_for_something_missing_does_is_said() -> None:
    front = Flag("front", BOOLEAN, "Whether to serve it.", False, missing="it is not there", idle=False)
    tuning = Flag("tuning", BOOLEAN, "How.", False, missing="it is not there", tolerated=True)
    text = usage_text("c", [Group("G", front, tuning)])
    assert "Whether to serve it. Refused in this version: it is not there." in text
    assert "How. No effect in this version: it is not there." in text


def test_help_explains_ten_options_and_names_all_others_in_their_groups() -> None:
    text = help_text(PROGRAM, 80)
    first, others = text.split("All others")
    assert len(FIRST) == 10
    assert all(f"--{name} <" in first for name in FIRST)
    assert {word for word in text.split() if word.startswith("--")} >= {f"--{name}" for name in FLAGS if name != "help"}
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"  {group.title}:" in others for group in GROUPS if group.title)


def test_help_is_an_answer_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_usage_error(refused("--help"), PROGRAM) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (help_text(PROGRAM, 80), "")


@pytest.mark.parametrize("word", ["--help-all"])
def test_all_options_are_explained_where_that_is_asked_for(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_usage_error(refused(word), PROGRAM) == 0
    assert capsys.readouterr().out == usage_text("trireme serve", GROUPS)


def test_beginnings_of_help_ask_for_help_as_in_tritonserver() -> None:
    assert refused("--hel").help_wanted == "help"


def test_an_unknown_option_is_told_in_one_line_with_the_two_that_are_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert answer_usage_error(refused("--http-prot=1"), PROGRAM) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "trireme serve: unrecognized option '--http-prot=1'; nearest: '--http-port' '--http-root-cert'\n"
        "see: trireme serve --help\n"
    )


@pytest.mark.parametrize(("word", "complaint"), [("--help", ""), ("--bogus", "unrecognized option '--bogus'")])
def test_tritonserver_prints_its_usage_on_standard_error_and_exits_with_1(
    word: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer_as_triton(refused(word), "tritonserver", GROUPS) == 1
    said = capsys.readouterr()
    assert said.out == ""
    before = f"tritonserver: {complaint}\n" if complaint else ""
    assert said.err == f"{before}{usage_text('tritonserver', GROUPS)}\n{complaint}\n"
