"""All mistakes of a configuration at once, with their places."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config.mistakes import Mistake, parse_all, value_mistakes
from trireme.engine.config.places import FieldPlaces

BROKEN = """\
# a model
name: "broken"
max_batchsize: 4
backend: "onnxruntime"
input [
  { name: "X" data_type: TYPE_FP31 dims: [ 4 ] },
  { name: "Y" data_type: TYPE_FP32 dims: [ 0, 3 ] }
]
output { name: "Z" data_type: TYPE_FP32 dim: [ 4 ] }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: fast }
instance_group [ { kind: KIND_CPU gpus: [ 0 ] } ]
"""


def mistakes(text: str, name: str = "broken", *, complete: bool = False) -> list[Mistake]:
    parsed = parse_all(text)
    return [*parsed.mistakes, *value_mistakes(parsed, Path("models") / name, name, complete=complete)]


def test_every_mistake_is_told_with_its_place_and_what_may_have_been_meant() -> None:
    found = mistakes(BROKEN, "brken")
    assert [(each.line, each.column, each.nearest) for each in found] == [
        (3, 1, ("max_batch_size",)),
        (6, 26, ("TYPE_FP32", "TYPE_FP16")),
        (9, 41, ("dims",)),
        (10, 81, ()),
        (10, 20, ()),  # a preferred size that is larger than the maximum
        (2, 1, ()),  # the name
        (7, 36, ()),  # a dimension of 0
        (11, 1, ()),  # GPUs of a group on CPUs
    ]
    assert found[0].found == "max_batchsize: 4"
    assert "TYPE_BF16" in found[1].allowed
    assert "preferred size must be <= max batch size" in found[4].text


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('input { name: "a"\n dims: 1', 2, 8),
        ("dynamic_batching { preferred_batch_size: [ 4, 8 }", 1, 49),
        ('name: "broken"\n}\nmax_batchsize: 3', 2, 1),
        ('name: "broken', 1, 7),
    ],
)
def test_reading_ends_where_braces_or_quotes_do_not_match(text: str, line: int, column: int) -> None:
    (found,) = mistakes(text)
    assert (found.line, found.column) == (line, column)


def test_what_is_missing_because_it_was_taken_out_is_not_told_again() -> None:
    text = 'backend: "onnxruntime" input { name: "a" data_type: 1.5 dims: 1 }'
    assert len(mistakes(text)) == 1
    assert len(mistakes(text.replace("data_type: 1.5", ""))) == 1


def test_several_unknown_names_in_a_line_keep_their_columns() -> None:
    text = 'backend: "onnxruntime" max_batchsize: 4 platfrm: "onnxruntime_onnx" input { nam: "a" }'
    found = mistakes(text)[:3]
    assert [each.column for each in found] == [text.index(word) + 1 for word in ("max_b", "platfrm", "nam:")]


def test_a_good_configuration_has_none(repository_root: Path) -> None:
    for path in (repository_root / "model_repository").glob("*/config.pbtxt"):
        parsed = parse_all(path.read_text())
        assert not parsed.mistakes
        assert list(value_mistakes(parsed, path.parent, path.parent.name, complete=False)) == []


@given(st.text(alphabet='abinpu{}[]<>:,;"# \n_0123.-', max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    parsed = parse_all(text)
    assert parsed.message is not None or parsed.mistakes


@given(st.integers(0, len(BROKEN)), st.integers(0, 30), st.text(alphabet='{}[]:"x \n', max_size=3))
def test_a_damaged_configuration_is_told_without_an_end(at: int, length: int, put: str) -> None:
    """Wherever it is damaged: there are few mistakes, in lines that there are."""
    text = f"{BROKEN[:at]}{put}{BROKEN[at + length :]}"
    found = mistakes(text)
    assert len(found) < 30
    assert all(0 <= each.line <= text.count("\n") + 1 for each in found)


def test_places_of_a_text() -> None:
    places = FieldPlaces("a: 1\nb { c: \"x\" 'y' d < e: [ 2, 3 ] > }")
    field = places.innermost(places.position(2, 24))
    assert field is not None
    assert (field.path, field.values) == (("b", "d", "e"), ["2", "3"])
    assert places.line_and_column(field.begin) == (2, 20)
    inner = places.innermost(places.position(2, 6))
    assert inner is not None
    assert inner.values == ["xy"]


def test_brackets_without_end_are_no_end_of_the_command() -> None:
    """There are no lists of lists, and so no depth of them to read."""
    (mistake,) = parse_all(f"max_batch_size: {'[' * 5000}").mistakes
    assert (mistake.line, mistake.nearest) == (1, ())
