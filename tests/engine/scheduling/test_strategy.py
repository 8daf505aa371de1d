"""Batching strategies of installed packages: what they decide, and what their mistakes cost."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine import plugins
from trireme.engine.backends.interface import ModelFiles
from trireme.engine.config import model_config
from trireme.engine.config.model import DynamicBatching, ModelConfig, ModelConfigMessage
from trireme.engine.errors import FailureReason, InvalidArgumentError, TriremeError, UnavailableError
from trireme.engine.job import Job, SealReason
from trireme.engine.repository.loading import warn_of_library
from trireme.engine.scheduling.factory import make_scheduler
from trireme.engine.scheduling.queueing import DynamicBatcher
from trireme.engine.scheduling.strategy import BatchStrategy, StrategicBatcher, batch_strategy

ROOT = Path(__file__).parents[3]
NAMED = 'parameters { key: "BATCH_STRATEGY" value { string_value: "rows" } }'
LIMITED = NAMED + 'parameters { key: "MOST" value { string_value: "4" } }'


def config_of(more: str = LIMITED, batching: str = "dynamic_batching { }", most: int = 8) -> ModelConfig:
    text = f'name: "m" max_batch_size: {most} {batching} {more}'
    return model_config(text_format.Parse(text, ModelConfigMessage()))


class Rows(BatchStrategy):
    """So many rows a batch as a parameter says; what it was told of is noted."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.most = int(config.parameters["MOST"])
        self.finished: list[tuple[int, list[str]]] = []

    def begin(self) -> list[int]:
        return [0]

    def include(self, batch: list[int], job: Job) -> bool:
        if batch[0] + job.rows > self.most:
            return False
        batch[0] += job.rows
        return True

    def finish(self, batch: list[int], jobs: Sequence[Job]) -> None:
        self.finished.append((batch[0], [job.id for job in jobs]))


def batcher(strategy: BatchStrategy, most: int = 8, **batching: Any) -> StrategicBatcher:
    return StrategicBatcher(strategy, DynamicBatching(**batching), most)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a package offer the class at a place as ``rows``."""

    def offered(place: str) -> None:
        point = EntryPoint("rows", place, "trireme.batch_strategies")
        monkeypatch.setattr(plugins, "entry_points", lambda group, name: [point] if name == point.name else [])

    return offered


# ---- what it decides ----


def test_it_closes_a_batch_before_the_request_that_it_does_not_want(make_job, run):
    strategy = Rows(config_of())
    arrivals = [(0.0, make_job("first")), *((0.5, make_job(number, rows=2)) for number in range(5))]
    history = run(batcher(strategy), arrivals)
    assert history.ids == [["first"], ["0", "1"], ["2", "3"], ["4"]]
    assert history.reasons == [SealReason.IDLE, SealReason.STRATEGY, SealReason.STRATEGY, SealReason.IDLE]
    assert strategy.finished == [(1, ["first"]), (4, ["0", "1"]), (4, ["2", "3"]), (2, ["4"])]


def test_the_batchers_own_rules_come_first(make_job, run):
    """What would not fit, it is not asked about; preferred sizes are cut as ever."""
    strategy = Rows(config_of())
    strategy.most = 100
    history = run(batcher(strategy, preferred_batch_sizes=(2,)), [(0.0, make_job(number)) for number in range(5)])
    assert history.sizes == [1, 2, 2]
    assert history.reasons[1:] == [SealReason.PREFERRED] * 2
    assert [ids for _, ids in strategy.finished] == history.ids


def test_a_request_that_it_never_wants_is_executed_alone(make_job, run):
    strategy = Rows(config_of())
    history = run(
        batcher(strategy), [(0.0, make_job("small")), (0.1, make_job("big", rows=7)), (0.2, make_job("last"))]
    )
    assert history.ids == [["small"], ["big"], ["last"]]
    assert history.reasons[1] is SealReason.STRATEGY


def test_a_batch_that_is_closed_does_not_wait_for_its_delay(make_job, run):
    strategy = Rows(config_of())
    core = batcher(strategy, max_queue_delay_us=1_000_000)
    history = run(core, [(0.0, make_job(0, rows=3)), (0.25, make_job(1, rows=3))])
    assert history.starts == [0.25, 1.25]
    assert history.ids == [["0"], ["1"]]


def test_cancelling_begins_the_batch_anew(make_job):
    strategy = Rows(config_of())
    core = batcher(strategy)
    jobs = [make_job(number, rows=2) for number in range(3)]
    for job in jobs:
        core.enqueue(job, 0.0)
    core.cancel(jobs[0])
    core.instance_idle(0)
    rejected, dispatched = core.next_action(0.0), core.next_action(0.0)
    assert (rejected.job, [job.id for job in dispatched.jobs]) == (jobs[0], ["1", "2"])  # type: ignore[union-attr]
    assert strategy.finished == [(4, ["1", "2"])]


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 6)), max_size=30), st.integers(1, 3))
def test_every_request_leaves_once_and_no_batch_is_larger_than_it_wants(
    make_job, run, arrivals: list[tuple[float, int]], instances: int
) -> None:
    strategy = Rows(config_of())
    jobs = [make_job(number, rows=rows) for number, (_, rows) in enumerate(arrivals)]
    times = [at_s for at_s, _ in arrivals]
    history = run(batcher(strategy), list(zip(times, jobs, strict=True)), instances=instances)
    assert sorted(int(each) for ids in history.ids for each in ids) == list(range(len(jobs)))
    for ids in history.ids:
        assert len(ids) == 1 or sum(jobs[int(each)].rows for each in ids) <= strategy.most
    assert [ids for _, ids in strategy.finished] == history.ids


# ---- its mistakes ----


class Faulty(Rows):
    """Makes a mistake about the request that is called so."""

    def begin(self) -> list[int]:
        if self.config.parameters.get("WHERE") == "begin":
            raise ValueError("no beginning")
        return super().begin()

    def include(self, batch: list[int], job: Job) -> Any:
        if job.id == "raises":
            raise ValueError("not that one")
        return "perhaps" if job.id == "wrong" else super().include(batch, job)

    def finish(self, batch: list[int], jobs: Sequence[Job]) -> None:
        if any(job.id == "late" for job in jobs):
            raise ValueError("no end")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raises", "ValueError: not that one"),
        ("wrong", "TypeError: include has returned 'perhaps', expected True or False"),
        ("late", "ValueError: no end"),
    ],
)
@pytest.mark.parametrize("delay_us", [0, 500_000])
def test_its_mistake_fails_the_requests_of_the_batch_and_no_others(make_job, run, name, text, delay_us):
    names = ["first", "second", name, "third", "fourth", "fifth"]
    core = batcher(Faulty(config_of()), max_queue_delay_us=delay_us)
    history = run(core, [(0.0, make_job(each)) for each in names])
    failed = [each for _, each, _ in history.rejected]
    assert name in failed
    assert sorted(failed + [each for ids in history.ids for each in ids]) == sorted(names)
    assert "fifth" not in failed
    for _, _, error in history.rejected:
        assert error.message == f"batch strategy 'rows' of model 'm' failed: {text}"
        assert error.reason is FailureReason.BACKEND
    assert len({id(error) for _, _, error in history.rejected}) == len(history.rejected)
    assert core.queued == 0


def test_one_that_cannot_begin_fails_requests_one_by_one(make_job, run):
    where = 'parameters { key: "WHERE" value { string_value: "begin" } }'
    history = run(batcher(Faulty(config_of(LIMITED + where))), [(0.0, make_job(number)) for number in range(3)])
    assert [name for _, name, _ in history.rejected] == ["0", "1", "2"]
    assert history.batches == []


# ---- who gets one ----


def test_models_that_name_one_get_it(offer):
    offer(f"{__name__}:Rows")
    assert isinstance(make_scheduler(config_of()), StrategicBatcher)
    assert type(make_scheduler(config_of(""))) is DynamicBatcher
    strategy = batch_strategy(config_of())
    assert strategy is not None
    assert strategy.config.name == "m"


@pytest.mark.parametrize(
    ("place", "config", "kind", "text"),
    [
        (
            "none:None",
            config_of('parameters { key: "BATCH_STRATEGY" value { string_value: "other" } }'),
            InvalidArgumentError,
            (
                "parameter 'BATCH_STRATEGY' of model 'm' names 'other', which no installed package offers in the "
                "entry-point group 'trireme.batch_strategies'"
            ),
        ),
        (
            "nosuchmodule:Rows",
            config_of(),
            UnavailableError,
            "batch strategy 'rows' cannot be imported from 'nosuchmodule:Rows': No module named 'nosuchmodule'",
        ),
        (
            f"{__name__}:config_of",
            config_of(),
            UnavailableError,
            f"batch strategy 'rows': '{__name__}:config_of' is not a subclass of the interface's BatchStrategy",
        ),
        (
            f"{__name__}:Rows",
            config_of(NAMED),
            InvalidArgumentError,
            "parameter 'BATCH_STRATEGY' of model 'm': 'rows' cannot be made: KeyError: 'MOST'",
        ),
        (
            f"{__name__}:Rows",
            config_of(batching=""),
            InvalidArgumentError,
            "parameter 'BATCH_STRATEGY' of model 'm' needs 'dynamic_batching', and a 'max_batch_size' of at least 1",
        ),
        (
            f"{__name__}:Rows",
            config_of(most=0),
            InvalidArgumentError,
            "parameter 'BATCH_STRATEGY' of model 'm' needs 'dynamic_batching', and a 'max_batch_size' of at least 1",
        ),
        (
            f"{__name__}:Rows",
            config_of(LIMITED + 'parameters { key: "LATENCY_OBJECTIVE_MS" value { string_value: "5" } }'),
            InvalidArgumentError,
            "parameter 'BATCH_STRATEGY' of model 'm' cannot be combined with the parameter 'LATENCY_OBJECTIVE_MS'",
        ),
        (
            f"{__name__}:Rows",
            config_of('parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/x/batchstrategy.so" } }'),
            InvalidArgumentError,
            (
                "parameter 'TRITON_BATCH_STRATEGY_PATH' of model 'm' names a C++ library, which cannot be used here: "
                "install a package with a class in the entry-point group 'trireme.batch_strategies', and name that by "
                "the parameter 'BATCH_STRATEGY'"
            ),
        ),
    ],
)
def test_what_cannot_be_is_an_error_of_the_load(
    offer, place: str, config: ModelConfig, kind: type[TriremeError], text: str
) -> None:
    offer(place)
    with pytest.raises(kind) as raised:
        make_scheduler(config)
    assert raised.value.message == text


# ---- what is shown, and what is not used ----

EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_example_of_the_documentation(make_job, run):
    found = EXAMPLE.search((ROOT / "docs" / "batch_strategies.md").read_text())
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    config = config_of('parameters { key: "MOST_BYTES" value { string_value: "100" } }')
    jobs = [make_job(number) for number in range(5)]
    for job in jobs:
        job.nbytes = 40
    assert run(batcher(names["LimitedBytes"](config)), [(0.0, job) for job in jobs]).sizes == [1, 2, 2]


@pytest.mark.parametrize(
    ("where", "more", "told"),
    [("m/1", "", True), ("m", "", True), ("m/1", LIMITED, False), ("elsewhere", "", False)],
)
def test_a_library_that_is_not_used_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, more: str, told: bool
) -> None:
    (tmp_path / where).mkdir(parents=True)
    (tmp_path / where / "batchstrategy.so").touch()
    with caplog.at_level(logging.WARNING):
        warn_of_library(config_of(more), ModelFiles(tmp_path / "m", 1))
    text = "model 'm': batchstrategy.so has no effect: batching strategies are Python classes"
    assert caplog.messages == [f"{text} (parameter 'BATCH_STRATEGY')"] * told
