"""Which CUDA graphs are captured, and which one serves a batch (docs/reference/backends.md#tensorrt)."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfig, ModelConfigMessage
from trireme.engine.config.platforms import normalize
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.gpu.graphs import GraphChoice, GraphShape, graph_shapes, input_shapes

FIXED = 'input { name: "X" data_type: TYPE_FP32 dims: [ 3, 4 ] }'
OPEN = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }'


def config(text: str = "", inputs: str = FIXED, graphs: str = "graphs: true") -> ModelConfig:
    full = f'name: "m" backend: "b" {inputs} optimization {{ cuda {{ {graphs} }} }} {text}'
    message = text_format.Parse(full, ModelConfigMessage())
    normalize(message)
    return model_config(message)


def captured(made: ModelConfig) -> tuple[GraphShape, ...]:
    return graph_shapes(made, input_shapes(made))


def rows(text: str) -> list[int]:
    return [graph.rows for graph in captured(config(text))]


def test_nothing_is_captured_unless_the_configuration_asks() -> None:
    assert captured(config("max_batch_size: 4", graphs="")) == ()
    assert captured(config("max_batch_size: 4", graphs="graphs: false graph_spec { batch_size: 1 }")) == ()


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("", [0]),
        ("max_batch_size: 5", [1, 2, 3, 4, 5]),
        ("max_batch_size: 32", [1, 2, 3, 4, 6, 8, 12, 16, 32]),
        ("max_batch_size: 32 dynamic_batching { preferred_batch_size: [ 4, 8 ] }", [1, 4, 8, 32]),
        ("max_batch_size: 32 dynamic_batching { }", [1, 32]),
        ("max_batch_size: 8 sequence_batching { oldest { preferred_batch_size: [ 2 ] } }", [1, 2, 8]),
        ("max_batch_size: 4 sequence_batching { direct { } }", [1, 2, 3, 4]),
    ],
)
def test_without_a_specification_sizes_follow_from_how_batches_come_about(text: str, sizes: list[int]) -> None:
    assert rows(text) == sizes


def test_a_graph_has_the_shapes_of_all_that_the_model_is_fed_with() -> None:
    made = config(
        "max_batch_size: 2 sequence_batching { "
        'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } '
        'state { input_name: "OLD" output_name: "NEW" data_type: TYPE_FP32 dims: [ 5 ] } }',
        'input { name: "X" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 2, 3 ] } }',
    )
    (graph, *_) = captured(made)
    assert graph.shapes == {"X": (2, 3), "START": (1,), "OLD": (5,)}
    assert [graph.shape(name) for name in graph.shapes] == [(1, 2, 3), (1, 1), (1, 5)]
    assert captured(config())[0].shape("X") == (3, 4), "a model that does not batch has no batch dimension"


def test_open_shapes_are_captured_only_where_a_specification_fixes_them(caplog: pytest.LogCaptureFixture) -> None:
    assert captured(config("max_batch_size: 2", OPEN)) == ()
    assert "not all shapes are fixed" in caplog.text
    spec = 'graphs: true graph_spec { batch_size: 2 input { key: "X" value { dim: [ 7 ] } } }'
    (graph,) = captured(config("max_batch_size: 2", OPEN, spec))
    assert (graph.rows, graph.shapes, graph.lower_rows, graph.lower_shapes) == (2, {"X": (7,)}, 2, {"X": (7,)})


def test_a_shape_is_captured_once() -> None:
    spec = "graph_spec { batch_size: 2 } "
    assert [graph.rows for graph in captured(config("max_batch_size: 2", graphs=f"graphs: true {spec} {spec}"))] == [2]


def test_inputs_without_a_shape_of_their_own_have_no_graphs(caplog: pytest.LogCaptureFixture) -> None:
    ragged = FIXED.replace("dims", "allow_ragged_batch: true dims")
    assert captured(config("max_batch_size: 2", ragged)) == ()
    assert "without a shape of their own" in caplog.text


def bounded(batch: int, dim: int, lower_batch: int, lower_dim: str) -> str:
    lower = f'input {{ key: "X" value {{ dim: [ {lower_dim} ] }} }}' if lower_dim else ""
    return (
        f'graphs: true graph_spec {{ batch_size: {batch} input {{ key: "X" value {{ dim: [ {dim} ] }} }} '
        f"graph_lower_bound {{ batch_size: {lower_batch} {lower} }} }}"
    )


@pytest.mark.parametrize(
    ("max_batch_size", "graphs", "text"),
    [
        (0, bounded(1, 4, 0, "4"), "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0"),
        (0, bounded(0, 4, 1, "4"), "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0"),
        (4, bounded(5, 4, 1, "4"), "graph spec expects 'batch_size' to be >= 1 and <= 4"),
        (4, bounded(2, 4, 0, "4"), "graph spec expects 'batch_size' to be >= 1 and <= 4"),
        (4, bounded(2, 4, 3, "4"), "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'"),
        (4, bounded(2, 4, 1, ""), "graph lower bound spec expects shape for input 'X'"),
        (4, bounded(2, 4, 1, "4, 4"), "graph lower bound spec expects to have '1' dimensions, got 2"),
        (4, bounded(2, 4, 1, "-1"), "graph spec expects input 'X' to have dimension >= 0"),
        (4, bounded(2, 4, 1, "5"), "graph lower bound spec expects input 'X' to have dimension <= 4"),
    ],
)
def test_specifications_are_checked_with_triton_s_words(max_batch_size: int, graphs: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        captured(config(f"max_batch_size: {max_batch_size}", OPEN, graphs))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("key", "dims", "text"),
    [
        ("Z", "3, 4", "graph spec names the input 'Z', but the inputs are X"),
        ("X", "3", "graph spec gives input 'X' the shape [3], but the configuration says [3, 4]"),
        ("X", "3, 5", "graph spec gives input 'X' the shape [3, 5], but the configuration says [3, 4]"),
    ],
)
def test_a_specification_that_contradicts_the_configuration_is_refused(key: str, dims: str, text: str) -> None:
    spec = f'graphs: true graph_spec {{ batch_size: 1 input {{ key: "{key}" value {{ dim: [ {dims} ] }} }} }}'
    with pytest.raises(InvalidArgumentError) as caught:
        captured(config("max_batch_size: 1", graphs=spec))
    assert str(caught.value) == text


def graph(most: tuple[int, int], least: tuple[int, int] | None = None) -> GraphShape:
    least = least or most
    return GraphShape(most[0], {"X": (most[1],)}, least[0], {"X": (least[1],)})


def test_the_exact_graph_comes_before_any_that_would_have_to_be_padded() -> None:
    exact, loose = graph((2, 4)), graph((2, 3), (1, 1))
    choice = GraphChoice([loose, exact])
    assert choice.find(2, {"X": (4,)}) is exact
    assert choice.find(2, {"X": (3,)}) is loose


def test_the_nearest_larger_one_is_the_one_with_the_smallest_batch() -> None:
    large, wide, small = graph((8, 4), (1, 1)), graph((4, 9), (1, 1)), graph((4, 5), (1, 1))
    choice = GraphChoice([large, wide, small])
    assert choice.find(3, {"X": (5,)}) is small
    assert choice.find(3, {"X": (6,)}) is wide
    assert choice.find(5, {"X": (4,)}) is large


def test_no_graph_serves_what_is_larger_or_below_its_lower_bound_or_of_other_inputs() -> None:
    choice = GraphChoice([graph((4, 4), (2, 2))])
    assert choice.find(1, {"X": (3,)}) is None
    assert choice.find(5, {"X": (3,)}) is None
    assert choice.find(3, {"X": (1,)}) is None
    assert choice.find(3, {"X": (3, 3)}) is None
    assert choice.find(3, {"X": (3,), "Y": (3,)}) is None
    assert choice.find(3, {}) is None


pairs = st.tuples(st.integers(1, 6), st.integers(0, 6))


@given(st.lists(st.tuples(pairs, pairs), max_size=6), pairs)
def test_whatever_is_chosen_has_room_for_the_batch_and_is_chosen_whenever_one_has(
    bounds: list[tuple[tuple[int, int], tuple[int, int]]], batch: tuple[int, int]
) -> None:
    graphs = [graph((max(a[0], b[0]), max(a[1], b[1])), (min(a[0], b[0]), min(a[1], b[1]))) for a, b in bounds]
    found = GraphChoice(graphs).find(batch[0], {"X": (batch[1],)})
    fitting = [
        each
        for each in graphs
        if each.lower_rows <= batch[0] <= each.rows and each.lower_shapes["X"][0] <= batch[1] <= each.shapes["X"][0]
    ]
    assert (found is None) == (not fitting)
    if found is not None:
        assert found in fitting
        assert found.rows == min(each.rows for each in fitting)
