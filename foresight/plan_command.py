"""`trireme plan`: choose settings of a repository's models for a request log (docs/planning.md)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .profile_command import positive_number
from .replay_command import add_host_arguments, foreseen_host, without_unknown_front_ends

if TYPE_CHECKING:
    from .search.players import PlanInputs
    from .search.proof import ProvenSetting
    from .search.searching import PlanSearch
    from .search.trials import Trial, TrialGround

_KEPT, _MISSED = 0, 3


def add_plan_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser("plan", help="choose settings of models for a request log, in virtual time")
    parser.add_argument("repository", type=Path, nargs="+", metavar="REPOSITORY")
    add_plan_inputs(parser)
    parser.add_argument("--settings", type=positive_count, default=200, help="how many are tried; default %(default)s")
    parser.add_argument("--instances", type=positive_count, default=8, help="of a model, at most; default %(default)s")
    parser.add_argument("--replicas", type=positive_count, default=1, help=_REPLICAS)
    parser.add_argument("--plays", type=positive_count, default=5, help="of what is compared; default %(default)s")
    parser.add_argument("--processes", type=positive_count, help="that play; default one a core")
    parser.add_argument("--write", action="store_true", help="write the chosen settings into the repository")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write report, pictures, diff and figures there")
    parser.add_argument("--prove", action="store_true", help=_PROVE)
    seconds = positive_number("seconds")
    parser.add_argument("--prove-secs", type=seconds, default=30.0, help="of the log; default %(default)g")
    parser.set_defaults(run=run_plan_command)


def add_plan_inputs(parser: argparse.ArgumentParser) -> None:
    """What is planned for."""
    parser.add_argument("--log", type=Path, required=True, metavar="LOG", help="as --request-log writes it")
    parser.add_argument("--profiles", type=Path, help="a folder for all profiles; by default each is beside its model")
    parser.add_argument("--objective", default="", metavar="BOUNDS", help=_OBJECTIVE)
    aim = parser.add_mutually_exclusive_group()
    aim.add_argument("--minimise", "--minimize", choices=["instances"], help="what is to be least; the default")
    aim.add_argument("--maximise", "--maximize", choices=["throughput", "goodput"], help="what is to be most")
    add_host_arguments(parser)
    parser.add_argument("--speed", type=positive_number("a factor"), default=1.0, help=_SPEED)
    parser.add_argument("--requests", type=positive_count, default=0, help="of the log, at most; default all")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")


_OBJECTIVE = "what must hold, as 'p99<50ms' or 'digits:p99<50ms,refused<0.1%%'"
_REPLICAS = "servers behind a gateway, each on a machine like this one, at most; default %(default)s"
_PROVE = "start the real server with the chosen settings, the present ones and two like them, and play the log"
_SPEED = "play the log so many times as fast; default %(default)g"


def plan_inputs(given: argparse.Namespace) -> PlanInputs:
    """What the arguments of `add_plan_inputs` name.

    Raises:
        TriremeError: the objective or the log is none.
    """
    from .search.objective import Aim, read_objective
    from .search.players import PlanInputs, read_plan_log

    objective = read_objective(given.objective, Aim(given.maximise or "instances"))
    host = foreseen_host(given, read_plan_log(given.log))
    repositories = tuple(given.repository)
    return PlanInputs(repositories, given.profiles, given.log, host, objective, given.seed, given.speed, given.requests)


def run_plan_command(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code: 0 if a setting keeps the objective, 3 if none does."""
    from ..engine.errors import TriremeError

    try:
        return _run(given)
    except TriremeError as error:
        sys.stderr.write(f"trireme plan: {error}\n")
        return 1


def _run(given: argparse.Namespace) -> int:
    from .search.changes import config_changes, write_changes
    from .search.players import read_ground
    from .search.report import PlanReport
    from .search.settings import server_flags
    from .search.tables import missed_bounds, plan_table

    inputs = plan_inputs(given)
    ground = read_ground(inputs)
    tell_of_profiles(ground)
    search = _searched(given, inputs, ground)
    chosen, present = _chosen(search)
    for line in plan_table(search.final, chosen, present, inputs.objective):
        sys.stdout.write(f"{line}\n")
    kept = chosen.keeps(inputs.objective)
    if not kept:
        sys.stdout.write(f"no setting of {len(search.seen)} keeps the objective; the nearest one misses:\n")
        sys.stdout.writelines(f"  {line}\n" for line in missed_bounds(chosen, inputs.objective))
    changes = config_changes(inputs, ground, chosen.setting)
    sys.stdout.write("".join(change.diff for change in changes) or "the configurations stay as they are\n")
    for flag in server_flags(chosen.setting, search.present):
        sys.stdout.write(f"start the server with {flag}\n")
    if chosen.setting.replicas > 1:
        sys.stdout.write(f"start {chosen.setting.replicas} servers so, and `trireme gateway` in front of them\n")
    if given.output is not None:
        report = PlanReport(
            inputs.objective, chosen, search.present, search.final, list(search.whole.values()), changes
        )
        for path in report.write(given.output):
            sys.stdout.write(f"written: {path}\n")
    if given.prove:
        _prove(given, inputs, ground, search)
    if given.write and not kept:
        sys.stderr.write("trireme plan: nothing is written, since the objective is not kept\n")
    elif given.write:
        for path in write_changes(changes):
            sys.stdout.write(f"written: {path}\n")
    return _KEPT if kept else _MISSED


def _prove(given: argparse.Namespace, inputs: PlanInputs, ground: TrialGround, search: PlanSearch) -> None:
    from datetime import UTC, datetime

    from .search.proof import keep_residuals, proof_lines, prove, settings_to_prove

    found: list[ProvenSetting] = []
    for label, setting in settings_to_prove(search.final, search.present):
        proven = prove(inputs, ground, label, setting, seconds=given.prove_secs, plays=given.plays)
        for line in proof_lines(proven, inputs.objective, colours=sys.stdout.isatty()):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        found.append(proven)
    if given.output is not None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        for path in keep_residuals(given.output, found, inputs.objective, when):
            sys.stdout.write(f"written: {path}\n")


def tell_of_profiles(ground: TrialGround) -> None:
    """Says on standard error what is wrong with profiles."""
    for each in ground.models:
        if each.stale:
            sys.stderr.write(f"the profile of '{each.config.name}' is out of date: {'; '.join(each.stale)}\n")
    if not any(each.profile is not None and each.profile.host for each in ground.models):
        sys.stderr.write("no profile knows what requests cost the server: they are taken to cost nothing\n")


def _searched(given: argparse.Namespace, inputs: PlanInputs, ground: TrialGround) -> PlanSearch:
    from .progress import shown_progress
    from .search.players import trial_players
    from .search.searching import PlanSearch
    from .search.space import plan_space

    host = without_unknown_front_ends(given, inputs.host, ground.models)
    most = given.instances, given.replicas
    space = plan_space(ground.models, inputs.objective, host.cores, *most, front_ends=host.front_ends)
    search = PlanSearch(
        space, inputs.objective, len(ground.log), count=given.settings, plays=given.plays, seed=inputs.seed
    )
    processes = given.processes or len(os.sched_getaffinity(0))
    began_s = time.monotonic()
    with trial_players(inputs, ground, processes) as players, shown_progress("plan") as progress:
        while (asked := search.next()) is not None:
            told = f"{len(asked.settings)} settings, {asked.requests} requests"
            progress(f"{search.state.value}: {told}", search.progress)
            search.told(players.play(asked))
    sys.stdout.write(
        f"{inputs.objective}: {len(search.seen)} of {len(space)} settings on {len(ground.log)} requests "
        f"in {time.monotonic() - began_s:.1f} s\n"
    )
    if players.failures:
        why = next(iter(players.failures.values()))
        sys.stderr.write(f"{len(players.failures)} settings cannot be served; the first: {why}\n")
    return search


def _chosen(search: PlanSearch) -> tuple[Trial, Trial | None]:
    """The best of all, and the present one, unless it cannot be served."""
    from ..engine.errors import InvalidArgumentError

    if not search.final:
        raise InvalidArgumentError("no setting could be played")
    present = next((trial for trial in search.final if trial.setting == search.present), None)
    return search.final[0], present


def positive_count(text: str) -> int:
    """Reads a number of an argument: whole, from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, not '{text}'")
    return int(text)
