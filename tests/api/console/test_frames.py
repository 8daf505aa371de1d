"""What a frame says of what was counted."""

from __future__ import annotations

import json
import math

from trireme.api.console.frames import MOST_MODELS, Look, batching_counts, frame
from trireme.engine.admission.budget import BudgetStatistics
from trireme.engine.description import ActorNode, IndexEntry, ModelActorStatistics, ModelState
from trireme.engine.errors import FailureReason, RefusalReason
from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import IterationCounts, IterationLimits, Iterations
from trireme.engine.job import SealReason
from trireme.engine.metrics.batch_tap import TappedBatch, TappedRequest
from trireme.engine.metrics.batching_reasons import BatchingSettings
from trireme.engine.metrics.statistics import GenerationStatistics, ModelStatistics, ModelStatisticsEntry

EVIL = "</script><img src=x onerror=alert(1)>\n\ndata: x"
US = 1000


def entry(name: str = "m", executions: int = 1) -> ModelStatisticsEntry:
    counted = ModelStatistics(pending=2)
    marks = (10 * US, 20 * US, 50 * US, 60 * US)
    for _ in range(executions):
        counted.record_execution(3, marks, 1, SealReason.FULL)
        counted.record_successes([(0, 5 * US, 1), (0, 6 * US, 2)], marks, 70 * US)
    counted.record_execution(1, marks, 1, SealReason.IDLE)
    counted.record_failure(0, 5, FailureReason.BACKEND)
    counted.refused[RefusalReason.QUEUE_FULL] = 4
    counted.tap.unanswered = 3
    return ModelStatisticsEntry(name, 1, counted)


def look(*entries: ModelStatisticsEntry, tree: ActorNode | None = None, slots: bool = False) -> Look:
    return Look(
        1_000,
        entries,
        [IndexEntry("m", "1", ModelState.READY), IndexEntry("n"), IndexEntry("o", "2", ModelState.UNAVAILABLE, "why")],
        [ModelActorStatistics("m", 1, ModelState.READY, "", 1, 2, 5, 0, 3)],
        tree or ActorNode("server", "triton", "serving"),
        BudgetStatistics(3, 99, 0, 0, 0),
        {RefusalReason.INVALID: 2, RefusalReason.TOO_LARGE: 0},
        {("", "m", 1): BatchingSettings("dynamic", 4, 100, (2,), 0, (), 1, slots)},
        {("", "m", 1): ["because"]},
    )


def test_a_model() -> None:
    (model,) = frame(look(entry()), 0, {})["models"]
    assert model == {
        "name": "m",
        "version": 1,
        "namespace": "",
        "success": 2,
        "fail": 1,
        "rows": 3,
        "executions": 2,
        "ended": 5,
        "pending": 2,
        "executing": 1,
        "cacheHits": 0,
        "ns": {"total": 140_000, "queue": 9_000, "input": 20_000, "compute": 60_000, "output": 20_000},
        "sealed": {"full": 1, "instance idle": 1},
        "alone": {"instance idle": 1},
        "refused": {"queue_full": 4},
        "sizes": [[1, 1], [3, 1]],
        "instances": [1, 2],
        "restarts": 5,
        "batching": {
            "scheduler": "dynamic",
            "maxBatchSize": 4,
            "delayUs": 100,
            "preferred": [2],
            "members": [],
            "decoupled": False,
        },
        "why": ["because"],
        "batches": [],
        "requests": [],
    }


def test_a_model_that_generates_text() -> None:
    generating = entry()
    generating.statistics.generated = GenerationStatistics(IterationCounts(drawn=7))
    limits = IterationLimits(context=9)
    iterations = Iterations(BlockMemory(5, 2), limits, lambda _generation: None)
    generating.statistics.generated.instances["m_0"] = iterations
    (model,) = frame(look(generating), 0, {})["models"]
    assert (model["tokens"], model["blocks"]) == (7, (0, 5))


def test_the_server() -> None:
    tree = ActorNode("server", "t", "serving", children=(ActorNode("instance", "i", "dead", "x", 2, 1, 5),))
    made = frame(look(entry(), tree=tree), 400, {})
    assert made["t"] == 600
    assert made["inflight"] == {"requests": 3, "bytes": 99}
    assert made["refused"] == {"invalid": 2}
    assert made["index"] == [["m", "1", "READY", ""], ["n", "", "UNAVAILABLE", ""], ["o", "2", "UNAVAILABLE", "why"]]
    assert made["tree"]["room"] is None, "JSON has no infinity"
    assert made["tree"]["children"] == [
        {
            "kind": "instance",
            "name": "i",
            "state": "dead",
            "detail": "x",
            "restarts": 2,
            "mail": 1,
            "room": 5,
            "children": [],
        }
    ]


def test_batches_are_relative_to_the_begin_of_the_stream() -> None:
    tapped = TappedBatch(7, "m_0_0", 1, 3, "full", (10_000, 20_000, 50_000, 60_000), 70_000, [(3_000, 4_000)], 2, 1)
    (model,) = frame(look(entry()), 1_000, {("", "m", 1): [tapped]})["models"]
    times = [9_000, 19_000, 49_000, 59_000, 69_000]
    assert model["batches"] == [[7, "m_0_0", 1, 3, 0, *times, 2, 1, [6], [67], []]]
    (model,) = frame(look(entry(), slots=True), 1_000, {("", "m", 1): [tapped, tapped._replace(slots=(0, 3))]})[
        "models"
    ]
    assert [each[-1] for each in model["batches"]] == [[0, 1], [0, 3]]


def test_requests_are_relative_to_the_begin_of_the_stream_of_frames() -> None:
    ended = TappedRequest(2_000, 3_000, 9_000, "failed: backend", "m_0_0")
    still_open = TappedRequest(500, -1, -1)
    (model,) = frame(look(entry()), 1_000, {}, {("", "m", 1): [ended, still_open]})["models"]
    assert model["requests"] == [[1_000, 2_000, 8_000, "failed: backend", "m_0_0"], [-500, None, None, "", ""]]


def test_of_many_models_the_busiest_are_told_of() -> None:
    entries = [entry(f"m{at}", executions=at % 3) for at in range(MOST_MODELS + 5)]
    made = frame(look(*entries), 0, {})
    assert (len(made["models"]), made["more"]) == (MOST_MODELS, 5)
    assert all(model["executions"] == 3 for model in made["models"][:60])


def test_hostile_names_stay_inside_json() -> None:
    text = json.dumps(frame(look(entry(EVIL)), 0, {}))
    assert "\n" not in text, "a line end would begin another field of the event"
    assert json.loads(text)["models"][0]["name"] == EVIL


def test_counts_have_the_reasons_of_the_metrics() -> None:
    counts = batching_counts(entry().statistics)
    assert (counts.sealed, counts.alone) == ({"full": 1, "idle": 1}, {"idle": 1})
    assert counts.refused == {"queue_full": 4}


def test_no_mailbox_bound_is_infinite_in_the_tree() -> None:
    assert ActorNode("a", "b", "c").room == math.inf
