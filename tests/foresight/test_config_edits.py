"""Configurations that are changed as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config.model import copy_message
from trireme.engine.errors import InvalidArgumentError
from trireme.foresight.search.config_edits import config_diff, edited_config, read_config_text

TEXT = """# of the team
backend: "python"   # ours
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4, -1 ] } ]
instance_group [
  {
    # two of them
    count: 2
    kind: KIND_CPU
  }
]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
parameters { key: "a" value { string_value: "# no \\"comment\\"" 'more' } }
"""


def test_what_is_not_changed_stays_as_it_was_written() -> None:
    message = read_config_text(TEXT)
    message.max_batch_size = 4
    message.instance_group[0].count = 3
    message.dynamic_batching.max_queue_delay_microseconds = 0
    message.dynamic_batching.preferred_batch_size[:] = [2]
    message.dynamic_batching.default_queue_policy.max_queue_size = 16
    after = edited_config(TEXT, message)
    assert read_config_text(after) == message
    assert after.splitlines()[:10] == [
        line.replace("batch_size: 8", "batch_size: 4").replace("count: 2", "count: 3")
        for line in TEXT.splitlines()[:10]
    ]
    assert after.splitlines()[-1] == TEXT.splitlines()[-1]
    diff = config_diff(TEXT, after, "m/config.pbtxt")
    assert diff.startswith("--- a/m/config.pbtxt\n+++ b/m/config.pbtxt\n")
    assert "-max_batch_size: 8\n+max_batch_size: 4\n" in diff
    assert "-    count: 2\n+    count: 3\n" in diff


def test_a_field_that_has_gone_is_taken_out_with_its_line() -> None:
    message = read_config_text(TEXT)
    message.ClearField("dynamic_batching")
    message.ClearField("max_batch_size")
    lines = TEXT.splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("dynamic_batching", "max_batch_size"))]
    assert edited_config(TEXT, message) == "".join(kept)


def test_a_new_parameter_leaves_the_others_alone() -> None:
    message = read_config_text(TEXT)
    message.parameters["b"].string_value = "2"
    added = 'parameters {\n  key: "b"\n  value {\n    string_value: "2"\n  }\n}\n'
    assert edited_config(TEXT, message) == TEXT + added


def test_an_empty_text_gets_what_is_new() -> None:
    message = read_config_text("")
    message.instance_group.add(count=2)
    assert edited_config("", message) == "instance_group {\n  count: 2\n}\n"


def test_a_text_without_an_end_of_line_gets_one() -> None:
    message = read_config_text("max_batch_size: 8")
    message.dynamic_batching.SetInParent()
    assert edited_config("max_batch_size: 8", message) == "max_batch_size: 8\ndynamic_batching {\n}\n"


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        edited_config("max_batch_size: eight", read_config_text(""))


@given(
    st.integers(0, 16),
    st.lists(st.integers(0, 4), max_size=3),
    st.one_of(st.none(), st.tuples(st.lists(st.integers(1, 9), max_size=2), st.integers(0, 5), st.integers(0, 3))),
    st.dictionaries(st.sampled_from(["a", "b"]), st.text("a#\"'\\\n", max_size=4), max_size=2),
    st.sampled_from(["\n", " ", "\n# a } comment {\n"]),
)
def test_the_text_says_what_was_meant(
    size: int,
    counts: list[int],
    batching: tuple[list[int], int, int] | None,
    parameters: dict[str, str],
    between: str,
) -> None:
    """Whatever is changed, and however the text is laid out."""
    text = TEXT.replace("\n", between) if between == "\n# a } comment {\n" else TEXT
    message = copy_message(read_config_text(text))
    message.max_batch_size = size
    del message.instance_group[:]
    for count in counts:
        message.instance_group.add(count=count)
    message.ClearField("dynamic_batching")
    if batching is not None:
        message.dynamic_batching.preferred_batch_size.extend(batching[0])
        message.dynamic_batching.max_queue_delay_microseconds = batching[1]
        if batching[2]:
            message.dynamic_batching.priority_queue_policy[1].max_queue_size = batching[2]
    message.ClearField("parameters")
    for key, value in parameters.items():
        message.parameters[key].string_value = value
    after = edited_config(text, message)
    assert read_config_text(after) == message
    assert after.startswith("# of the team")
