"""Steps of texts, settled by what texts that came at random times took on a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from generating_profiles import STEP_S, steps_of, text, write_generating

from trireme.engine.logs.request_log import LoggedRequest, LoggedResult
from trireme.engine.profiles import ExecutorKind, HostPoint, ModelProfile, TimeDistribution, Way
from trireme.engine.profiles.generation import GenerationProfile, RestedSteps
from trireme.foresight import profiling
from trireme.foresight.busy_texts import SHARE, MeasuredTexts, random_texts, scaled, settled_texts
from trireme.foresight.models import ForeseenModel, ForeseenModels
from trireme.foresight.planned_models import ProfiledCosts, planned_model, served_factor
from trireme.foresight.service_times import MeasuredModel, MeasuringPlan
from trireme.simulations.planning import PlayedRun, play

POINT = HostPoint(Way.HTTP, 8, 0, 0.0002, 0.0, TimeDistribution.constant(0.0001), answer_s=0.00002)
RESTED = (RestedSteps(0.01, (0.002, 0.001)), RestedSteps(0.1, (0.008, 0.002)))


class Server:
    """A model, and a server whose steps are those of any profile that a test says."""

    def __init__(self, repository: Path) -> None:
        generation = replace(steps_of(token_s=0.0001), rested=RESTED)
        self.models: ForeseenModels = write_generating(repository, generation, host=(POINT,), max_running=4)
        self.model = self.models.foreseen("letters")
        assert self.model.profile is not None
        self.profile: ModelProfile = self.model.profile

    def log(self, asked: list[LoggedRequest], profile: ModelProfile) -> list[LoggedRequest]:
        """What it writes of these requests."""
        model = planned_model(ForeseenModel(self.model.config, profile), served_factor(profile, Way.HTTP))
        costs = ProfiledCosts({"letters": profile}, 2.0, Way.HTTP, Random(3))
        run = play([model], asked, self.models.options, 7, costs=costs)
        return [replace(each, result=result) for each, result in zip(asked, results_of(run), strict=True)]

    def settled(self, *found: MeasuredTexts) -> ModelProfile:
        return settled_texts(self.profile, self.model.config, found, self.models.options)


def results_of(run: PlayedRun) -> list[LoggedResult]:
    texts = run.generated
    assert texts is not None
    found = {}
    for at, request in enumerate(texts.request.tolist()):
        its = texts.between_request == request
        pairs = zip(texts.between_s[its].tolist(), texts.between_count[its].tolist(), strict=True)
        between = ",".join(f"{1e6 * each:.3f}x{int(times)}" for each, times in pairs)
        first_us = 1e6 * float(texts.first_s[at] - texts.received_s[at])
        found[request] = LoggedResult(1e6, first_token_us=first_us, between_us=between)
    return [found[number] for number in range(len(run))]


def some_texts() -> list[LoggedRequest]:
    """Short ones, between which there are rests."""
    chance, at_s = Random(2), 0.0
    asked: list[LoggedRequest] = []
    for _ in range(30):
        at_s += chance.expovariate(1 / 0.15)
        asked.append(text(at_s, chance.randint(8, 40), 4))
    return asked


def more_s(profile: ModelProfile) -> list[float]:
    assert profile.generation is not None
    return [each for rested in profile.generation.rested for each in rested.more_s]


@pytest.fixture(name="server")
def server_fixture(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.mark.parametrize(("steps", "rests"), [(1.3, 1.8), (0.8, 0.6), (1.0, 1.0)])
def test_the_scales_are_found_by_which_a_play_takes_as_long(server: Server, steps: float, rests: float) -> None:
    """Of a server that is known to be so."""
    log = server.log(some_texts(), scaled(server.profile, steps, rests))
    found = server.settled(MeasuredTexts(POINT, log))
    assert [each.slowed for each in found.host] == [pytest.approx(steps, rel=0.03)]
    assert more_s(found) == pytest.approx([rests * each for each in more_s(server.profile)], rel=0.12)


def test_rests_are_scaled_by_the_first_way_and_steps_by_each(server: Server) -> None:
    asked = some_texts()
    log = server.log(asked, scaled(server.profile, 1.2, 1.0))
    slower = server.log(asked, scaled(server.profile, 1.5, 2.0))
    found = server.settled(MeasuredTexts(POINT, log), MeasuredTexts(replace(POINT, way=Way.STREAM), slower))
    assert [(each.way, each.slowed) for each in found.host] == [
        (Way.HTTP, pytest.approx(1.2, rel=0.03)),
        (Way.STREAM, pytest.approx(1.5, rel=0.03)),
    ]
    assert more_s(found) == pytest.approx(more_s(server.profile), rel=0.12)


def test_nothing_is_scaled_by_what_was_not_measured(server: Server) -> None:
    """No texts at random times, or none of more than a token; no rests."""
    assert server.settled(MeasuredTexts(POINT, [])) == server.profile
    asked = [text(at, 4, 1) for at in range(8)]
    assert [each.slowed for each in server.settled(MeasuredTexts(POINT, server.log(asked, server.profile))).host] == [1]
    assert server.profile.generation is not None
    server.profile = replace(server.profile, generation=replace(server.profile.generation, rested=()))
    log = server.log(some_texts(), scaled(server.profile, 1.4, 1.0))
    assert [each.slowed for each in server.settled(MeasuredTexts(POINT, log)).host] == [pytest.approx(1.4, rel=0.03)]


def test_texts_at_random_times_are_a_part_of_what_the_steps_can_do(server: Server) -> None:
    assert server.profile.generation is not None
    asked = random_texts("letters", server.profile.generation, server.model.config, 100.0)
    seconds = asked[-1].offset_s
    tokens = sum(each.generated_tokens for each in asked) / seconds
    assert tokens / (4 / STEP_S) == pytest.approx(SHARE, rel=0.4)
    assert 60 < seconds < 140
    assert all(each.prompt_tokens + each.generated_tokens <= 1_000 for each in asked)


@pytest.mark.parametrize("context", [2, 5, 40])
def test_texts_have_room_in_a_short_context(server: Server, context: int) -> None:
    generation = replace(steps_of(), context=context)
    asked = random_texts("letters", generation, server.model.config, 1.0)
    assert len(asked) > 10
    assert all(min(each.prompt_tokens, each.generated_tokens) >= 1 for each in asked)
    assert all(each.prompt_tokens + each.generated_tokens <= context for each in asked)


def test_a_profile_is_scaled_by_what_a_server_was_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    log = server.log(some_texts(), scaled(server.profile, 1.4, 1.0))

    async def steps(*_given: object) -> tuple[MeasuredModel, GenerationProfile | None]:
        service = list(server.profile.service)
        return MeasuredModel(server.model.config, 1, ExecutorKind.THREAD, service), server.profile.generation

    monkeypatch.setattr(profiling, "measure_steps", steps)
    monkeypatch.setattr(profiling, "measure_step_costs", lambda *_given: [MeasuredTexts(POINT, log)])
    profiler = profiling.Profiler(server.models, MeasuringPlan(), ways=("http",))
    found = profiler.profile("letters", lambda _text, _part: None)
    assert [each.slowed for each in found.host] == [pytest.approx(1.4, rel=0.03)]
