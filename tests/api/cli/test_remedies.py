"""What to do about errors: the table, and docs/errors.md, which shows it at work."""

from __future__ import annotations

import re

import pytest
from error_page import CASES, PAGE, write_page

from trireme.api.cli.remedies import all_remedies, remedy


def test_the_page_of_errors_is_what_the_cases_print() -> None:
    """If it is not: python tests/support/error_page.py."""
    assert len(CASES) >= 30
    assert write_page() == PAGE.read_text(encoding="utf-8")


def test_every_case_of_the_page_says_what_to_do() -> None:
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(sections) == len(CASES)
    told = re.compile(r"to do: |; correct |did you mean: |nearest: |\n    see: |\n      \w|takes an address")
    assert [each.splitlines()[0] for each in sections if not told.search(each)] == []
    checks = [each for each in sections if "$ trireme check models" in each]
    assert [each.splitlines()[0] for each in checks if not re.search(r"\n    models/\w+", each)] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("failed to stat file /models", "trireme init /models"),
        ("onnxruntime needs the package onnxruntime: pip install trireme-server[cpu]", "run that pip command"),
        ("something that is not known", "what a configuration may say"),
        ("ensemble 'a' depends on 'b' which is not valid. Model 'b' failed", "mend 'b' first"),
    ],
)
def test_the_first_row_that_fits_counts(text: str, told: str) -> None:
    assert told in remedy(text)


def test_every_row_is_a_pattern_and_has_the_groups_that_it_uses() -> None:
    for row in all_remedies():
        groups = re.compile(row["text"]).groups
        used = {int(each) for each in re.findall(r"\{(\d)\}", row["do"])}
        assert not used or max(used) <= groups, row
