"""Plays the rounds of a search, in processes of its own or here.

A process reads repository, profiles and log itself, once: configurations cannot be sent from one to another.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

from ...engine.errors import InvalidArgumentError, TriremeError, UnavailableError
from ...engine.logs.request_log import LoggedRequest, read_traffic
from ..prediction import ForeseenHost
from ..profile_command import repository_models
from .objective import PlanObjective
from .searching import SearchRound
from .settings import PlanSetting
from .trials import Trial, TrialGround


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What a plan is made of, as a process reads it.

    Attributes:
        speed: so many times as fast as in the log.
        most: requests of the log that are used; 0 for all.
    """

    repositories: tuple[Path, ...]
    profiles: Path | None
    log: Path
    host: ForeseenHost
    objective: PlanObjective
    seed: int = 1
    speed: float = 1.0
    most: int = 0


def read_plan_log(path: Path, speed: float = 1.0, most: int = 0) -> list[LoggedRequest]:
    """The arrivals that are planned for.

    Raises:
        InvalidArgumentError: it cannot be read, has no requests, or is of a closed loop.
    """
    try:
        with path.open(encoding="utf-8") as file:
            traffic = read_traffic(file, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"request log '{path}' cannot be read: {error}") from error
    if traffic.loop is not None:
        raise InvalidArgumentError(f"request log '{path}' is of a closed loop; a plan needs the times of arrivals")
    log = list(traffic.requests[:most] if most else traffic.requests)
    if not log:
        raise InvalidArgumentError(f"request log '{path}' has no requests")
    return log if speed == 1 else [replace(each, offset_s=each.offset_s / speed) for each in log]


def read_ground(inputs: PlanInputs) -> TrialGround:
    """Everything that a plan is made of.

    Raises:
        TriremeError: something of it is missing or invalid.
    """
    log = read_plan_log(inputs.log, inputs.speed, inputs.most)
    models = repository_models(argparse.Namespace(repository=list(inputs.repositories), profiles=inputs.profiles))
    names = models.with_members(dict.fromkeys(each.model for each in log))
    found = [models.foreseen(name) for name in names]
    return TrialGround(found, log, models.options, inputs.host, inputs.objective, inputs.seed)


@functools.lru_cache(maxsize=1)
def _ground_of_process(inputs: PlanInputs) -> TrialGround:
    """A process that only plays reads everything once."""
    return read_ground(inputs)


def _play_in_process(inputs: PlanInputs, setting: PlanSetting, requests: int, plays: int) -> Trial | str:
    return _play(_ground_of_process(inputs), setting, requests, plays)


def _play(ground: TrialGround, setting: PlanSetting, requests: int, plays: int) -> Trial | str:
    """A trial, or why no server can serve the setting."""
    try:
        return ground.play(setting, requests, plays)
    except TriremeError as error:
        return str(error)


class TrialPlayers:
    """Plays rounds; made by `trial_players`.

    Attributes:
        failures: settings that no server can serve, and why.
    """

    def __init__(self, inputs: PlanInputs, ground: TrialGround, pool: ProcessPoolExecutor | None) -> None:
        self.failures: dict[PlanSetting, str] = {}
        self._inputs, self._ground, self._pool = inputs, ground, pool

    def play(self, asked: SearchRound, on_trial: Callable[[], object] = lambda: None) -> list[Trial]:
        """All trials of a round, in its order.

        Args:
            on_trial: called after each.

        Raises:
            UnavailableError: a process has died.
        """
        if self._pool is None:
            found: list[Trial | str] = []
            for setting in asked.settings:
                found.append(_play(self._ground, setting, asked.requests, asked.plays))
                on_trial()
        else:
            found = self._in_processes(self._pool, asked, on_trial)
        trials: list[Trial] = []
        for setting, each in zip(asked.settings, found, strict=True):
            if isinstance(each, str):
                self.failures[setting] = each
            else:
                trials.append(each)
        return trials

    def _in_processes(
        self, pool: ProcessPoolExecutor, asked: SearchRound, on_trial: Callable[[], object]
    ) -> list[Trial | str]:
        futures: list[Future[Trial | str]] = [
            pool.submit(_play_in_process, self._inputs, setting, asked.requests, asked.plays)
            for setting in asked.settings
        ]
        try:
            for _ in as_completed(futures):
                on_trial()
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise UnavailableError("a process that played settings has died; was there memory enough?") from error


@contextlib.contextmanager
def trial_players(inputs: PlanInputs, ground: TrialGround, processes: int) -> Iterator[TrialPlayers]:
    """Players in so many processes, which end with the block; with one, everything is played here."""
    if processes < 2:
        yield TrialPlayers(inputs, ground, None)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        try:
            yield TrialPlayers(inputs, ground, pool)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
