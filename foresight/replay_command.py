"""`trireme replay`: play a request log in virtual time, and say what would have come of it (docs/foresight.md)."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.front_end_count import MOST_FRONT_ENDS, front_end_count
from ..engine.host_policies import usable_cores
from .profile_command import add_repository_arguments, positive_number, repository_models

if TYPE_CHECKING:
    from ..engine.logs.request_log import LoggedRequest
    from .models import ForeseenModel
    from .prediction import ForeseenHost
    from .summary import RunSummary


def add_replay_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser("replay", help="play a request log in virtual time, with profiles of the models")
    parser.add_argument("log", type=Path, metavar="LOG", help="as --request-log writes it")
    add_repository_arguments(parser)
    add_host_arguments(parser)
    parser.add_argument("--measured", type=Path, metavar="LOG", help="the same log with results of a real run")
    parser.add_argument("--plays", type=int, default=5, help="how often, with other chance; default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_replay_command)


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """The machine that is foreseen."""
    cores, share = positive_number("cores"), positive_number("cores", zero=True)
    parser.add_argument("--cores", type=cores, help="that the server has; default those of this process")
    parser.add_argument("--client-cores", type=share, default=0.0, help="of these, what clients take; default none")
    ways = ["http", "json", "grpc", "stream"]
    parser.add_argument("--way", choices=ways, help="how requests come; default as most of the log, else http")
    parser.add_argument("--front-ends", type=_front_ends, metavar="auto|N", help=_FRONT_ENDS)


_FRONT_ENDS = (
    "processes that read and write for the server; default auto: as many as it has on so many cores, or none if "
    "profiles do not tell of them"
)


def _front_ends(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) > MOST_FRONT_ENDS:
        raise argparse.ArgumentTypeError(f"expected auto, or a number from 0 to {MOST_FRONT_ENDS}, not '{text}'")
    return int(text)


def foreseen_host(given: argparse.Namespace, log: Sequence[LoggedRequest]) -> ForeseenHost:
    """What `add_host_arguments` read, and what a log says of how its requests came."""
    from ..engine.profiles import Way
    from .prediction import ForeseenHost

    cores = given.cores or usable_cores()
    ((usual, _),) = Counter(each.protocol or "http" for each in log).most_common(1) or (("http", 0),)
    front_ends = front_end_count(given.front_ends, int(cores))
    return ForeseenHost(cores, given.client_cores, Way(given.way or usual), front_ends=front_ends)


def without_unknown_front_ends(
    given: argparse.Namespace, host: ForeseenHost, models: Sequence[ForeseenModel]
) -> ForeseenHost:
    """What `foreseen_host` made, without front ends that were not asked for, if the profiles do not tell of them.
    Says so on standard error."""
    from .planned_models import front_ends_unknown

    if given.front_ends is not None or not host.front_ends:
        return host
    why = front_ends_unknown(each.profile for each in models if each.profile is not None)
    if not why:
        return host
    sys.stderr.write(f"predicted without front ends, of which a server with {host.cores:g} cores has some: {why}\n")
    return replace(host, front_ends=0)


def run_replay_command(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    from ..engine.errors import TriremeError

    try:
        return _run(given)
    except TriremeError as error:
        sys.stderr.write(f"trireme replay: {error}\n")
        return 1


def _run(given: argparse.Namespace) -> int:
    from ..engine.errors import InvalidArgumentError
    from .log_files import read_log
    from .prediction import predict
    from .real_runs import summary_of_log
    from .replay_report import as_json, report

    if given.plays < 1:
        raise InvalidArgumentError(f"--plays must be at least 1, not {given.plays}")
    log = read_log(given.log)
    models = foreseen_models(given, log)
    measured: RunSummary | None = summary_of_log(read_log(given.measured)) if given.measured else None
    host = without_unknown_front_ends(given, foreseen_host(given, log), models)
    options = repository_models(given).options
    prediction = predict(models, log, options, host, plays=given.plays, seed=given.seed)
    text = as_json(prediction, measured) if given.json else report(prediction, measured)
    sys.stdout.write(text)
    return 0


def foreseen_models(given: argparse.Namespace, log: Sequence[LoggedRequest]) -> list[ForeseenModel]:
    """All models that a log asks for, and the members of ensembles. Says on standard error which profiles are stale."""
    models = repository_models(given)
    found = [models.foreseen(name) for name in models.with_members(dict.fromkeys(each.model for each in log))]
    for each in found:
        if each.stale:
            sys.stderr.write(f"the profile of '{each.config.name}' is out of date: {'; '.join(each.stale)}\n")
    if not any(each.profile is not None and each.profile.host for each in found):
        sys.stderr.write("no profile knows what requests cost the server: they are taken to cost nothing\n")
    return found
