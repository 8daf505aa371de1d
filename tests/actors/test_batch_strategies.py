"""A batching strategy in a server: what it closes is counted, and its mistakes cost no more than a batch."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import trio
from python_models import CONFIG, ask, open_repository, write_model

from trireme.engine import plugins
from trireme.engine.errors import FailureReason, InternalError
from trireme.engine.job import Job, SealReason
from trireme.engine.request import InferenceRequest
from trireme.engine.scheduling.strategy import BatchStrategy

MODEL_CONFIG = f"""{CONFIG}
    instance_group [{{ kind: KIND_CPU count: 1 }}]
    dynamic_batching {{ max_queue_delay_microseconds: 50000 }}
    parameters {{ key: "EXECUTION" value {{ string_value: "in_process" }} }}
    parameters {{ key: "BATCH_STRATEGY" value {{ string_value: "pairs" }} }}
"""


class Pairs(BatchStrategy):
    """Two requests a batch; knows nothing of those that are called bad."""

    def begin(self) -> list[Job]:
        return []

    def include(self, batch: list[Job], job: Job) -> bool:
        if job.id == "bad":
            raise LookupError("no such request")
        batch.append(job)
        return len(batch) <= 2


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("pairs", f"{__name__}:Pairs", "trireme.batch_strategies")
    found = plugins.entry_points
    monkeypatch.setattr(
        plugins, "entry_points", lambda group, name=None: [point] if name == "pairs" else found(group, name)
    )


async def test_it_is_asked_and_its_mistakes_are_answered(tmp_path: Path) -> None:
    write_model(tmp_path, "m", config=MODEL_CONFIG)
    failed: list[InternalError] = []
    answered: list[str] = []

    async with open_repository(tmp_path) as server:

        async def infer(request: InferenceRequest) -> None:
            try:
                answered.append((await server.infer(request)).id)
            except InternalError as error:
                failed.append(error)

        for names in (["1", "2", "3", "4", "5"], ["bad"], ["6"]):
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(infer, ask("m", 1.0, id=name))
        assert sorted(answered) == ["1", "2", "3", "4", "5", "6"]
        text = "batch strategy 'pairs' of model 'm' failed: LookupError: no such request"
        assert [(error.message, error.reason) for error in failed] == [(text, FailureReason.BACKEND)]
        assert server.ready()
        (entry,) = server.statistics("m")
        sealed = entry.statistics.sealed
        assert (sealed[SealReason.STRATEGY], sealed[SealReason.DELAY]) == (2, 2)
