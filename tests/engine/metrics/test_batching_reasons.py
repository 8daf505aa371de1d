"""Sentences about batches and refusals, by what was counted and how the model is configured."""

from __future__ import annotations

import pytest

from trireme.engine.errors import RefusalReason
from trireme.engine.job import SealReason
from trireme.engine.metrics.batching_reasons import BatchingCounts, BatchingSettings, explain_batching, settings_of

WHEN = "in the last minute"
DYNAMIC = BatchingSettings("dynamic", 8)


def counted(total: int, rows: int, alone: dict[str, int] | None = None, **sealed: int) -> BatchingCounts:
    return BatchingCounts(total, rows, sealed, alone or {}, {})


CASES: list[tuple[BatchingCounts, BatchingSettings, list[str]]] = [
    (
        counted(40, 96, {"idle": 12}, idle=40),
        DYNAMIC,
        [
            "40 batches ran in the last minute, with 2.4 of at most 8 rows on average.",
            (
                "12 of 40 batches in the last minute ran with 1 row because the queue delay is 0, "
                "and 28 with several rows: an idle instance takes at once what is there. With "
                "max_queue_delay_microseconds a batch waits for more."
            ),
        ],
    ),
    (
        counted(5, 5, {"idle": 5}, idle=5),
        BatchingSettings("dynamic", 8, delay_us=100, instances=2),
        [
            "5 batches ran in the last minute, with 1 of at most 8 rows on average.",
            (
                "5 of 5 batches in the last minute ran with 1 row because an instance was idle: an "
                "idle instance takes at once what is there. Of 2 instances one is idle more often "
                "than a single one."
            ),
        ],
    ),
    (
        counted(2, 16, full=1, idle=1),
        DYNAMIC,
        [
            "2 batches ran in the last minute, with 8 of at most 8 rows on average.",
            (
                "1 of 2 batches were full: they had 8 rows, or the next request would not have fit. "
                "If requests wait long all the same, more instances help, or a larger max_batch_size."
            ),
            "1 of 2 batches were closed because the queue delay is 0: an idle instance takes at once what is there.",
        ],
    ),
    (
        counted(3, 4, {"delay": 2}, delay=3),
        BatchingSettings("dynamic", 8, delay_us=500),
        [
            "3 batches ran in the last minute, with 1.33 of at most 8 rows on average.",
            (
                "3 of 3 batches were closed because their oldest request had waited for the queue "
                "delay of 500 µs, 2 of them with 1 row: requests come too seldom to fill a batch in "
                "that time. A longer max_queue_delay_microseconds makes batches larger, and requests "
                "wait longer."
            ),
        ],
    ),
    (
        counted(4, 4, {"unbatched": 4}, unbatched=4),
        BatchingSettings("default", 16),
        [
            "4 batches ran in the last minute, with 1 of at most 16 rows on average.",
            (
                "4 of 4 batches held one request because the model has no dynamic_batching: each "
                "request runs alone. `dynamic_batching { }` in its config.pbtxt lets up to 16 rows "
                "run together."
            ),
        ],
    ),
    (
        counted(1, 1, {"unbatched": 1}, unbatched=1),
        BatchingSettings("default", 0),
        [
            "1 batch ran in the last minute.",
            (
                "Each request ran alone because the model has no batch dimension: max_batch_size is "
                "0. If its network takes several rows, set max_batch_size."
            ),
        ],
    ),
    (
        counted(2, 6, shape=1, preferred=1),
        BatchingSettings("dynamic", 8, 100, (4, 8)),
        [
            "2 batches ran in the last minute, with 3 of at most 8 rows on average.",
            (
                "1 of 2 batches were closed because the next request did not fit beside them: its "
                "shapes, its inputs or its priority differ. Send equal shapes, or allow_ragged_batch "
                "for inputs that may differ."
            ),
            "1 of 2 batches were closed at a preferred size (4, 8).",
        ],
    ),
    (
        counted(3, 3, {"strategy": 1, "idle": 1}, drain=1, strategy=1, idle=1),
        BatchingSettings("sequence", 4),
        [
            "3 batches ran in the last minute, with 1 of at most 4 rows on average.",
            "1 of 3 batches ran with what was left because the model was being unloaded.",
            "1 of 3 batches were closed by the model's own batching strategy, 1 of them with 1 row.",
            "1 of 3 batches took what was there when an instance was idle, 1 of them with 1 row.",
        ],
    ),
    (BatchingCounts(), DYNAMIC, ["No batch was executed in the last minute."]),
    (
        BatchingCounts(),
        BatchingSettings("ensemble", members=("a", "b", "a")),
        ["An ensemble forms no batches of its own: see its members a, b."],
    ),
    (
        BatchingCounts(refused={"queue_full": 3, "unheard_of": 1}),
        BatchingSettings("dynamic", 8, queue_size=2),
        [
            "No batch was executed in the last minute.",
            "3 requests were refused in the last minute because its queue was full (max_queue_size 2).",
            "1 request was refused in the last minute for the reason 'unheard_of'.",
        ],
    ),
]


@pytest.mark.parametrize(("counts", "settings", "expected"), CASES)
def test_sentences(counts: BatchingCounts, settings: BatchingSettings, expected: list[str]) -> None:
    assert explain_batching(counts, settings, WHEN) == expected


def test_what_is_rare_is_left_out() -> None:
    told = explain_batching(counted(1000, 7900, full=995, shape=5), DYNAMIC, WHEN)
    assert len(told) == 2


def test_every_reason_has_a_sentence_of_its_own() -> None:
    for reason in SealReason:
        told = explain_batching(BatchingCounts(1, 1, {reason.name.lower(): 1}), DYNAMIC, WHEN)
        assert "for the reason" not in told[1]


def test_a_refusal_of_any_reason_is_told() -> None:
    for reason in RefusalReason:
        assert "1 request was refused" in explain_batching(BatchingCounts(refused={reason.value: 1}), DYNAMIC, WHEN)[1]


def test_what_was_counted_since() -> None:
    before, now = counted(3, 5, {"idle": 1}, idle=3), counted(10, 20, {"idle": 4, "full": 0}, idle=9, full=1)
    assert now.since(before) == counted(7, 15, {"idle": 3, "full": 0}, idle=6, full=1)
    assert before.since(now) == before, "the model was loaded anew"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, BatchingSettings()),
        (
            {
                "max_batch_size": 4,
                "dynamic_batching": {
                    "preferred_batch_size": [2, 4],
                    "max_queue_delay_microseconds": 100,
                    "default_queue_policy": {"max_queue_size": 9},
                },
                "instance_group": [{"count": 2}, {"count": 1}],
            },
            BatchingSettings("dynamic", 4, 100, (2, 4), 9, (), 3),
        ),
        (
            {"max_batch_size": 2, "sequence_batching": {"oldest": {"max_queue_delay_microseconds": 7}}},
            BatchingSettings("sequence", 2, 7),
        ),
        ({"sequence_batching": {}}, BatchingSettings("sequence", slots=True)),
        (
            {"ensemble_scheduling": {"step": [{"model_name": "a"}, {"model_name": "b"}]}},
            BatchingSettings("ensemble", members=("a", "b")),
        ),
    ],
)
def test_settings_are_read_from_a_configuration(config: dict[str, object], expected: BatchingSettings) -> None:
    assert settings_of(config) == expected
