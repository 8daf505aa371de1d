"""`trireme explain`: where the time of a log's requests goes, and what a change would bring (docs/planning.md); or,
without a log, why the batches of a running server's model are as they are (docs/command-line.md#explain)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .plan_command import positive_count, tell_of_profiles
from .profile_command import positive_number
from .replay_command import add_host_arguments, foreseen_host, without_unknown_front_ends

if TYPE_CHECKING:
    from .explaining import TimeShares
    from .prediction import Prediction
    from .search.settings import PlanSetting
    from .search.trials import TrialGround


def add_explain_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser(
        "explain", help="say why a model of a server batches as it does, or where the time of a log's requests goes"
    )
    parser.add_argument(
        "subject", nargs="+", metavar="MODEL|REPOSITORY", help="models of a running server; with --log, repositories"
    )
    parser.add_argument("--url", default="http://localhost:8000", help="of the server; default %(default)s")
    parser.add_argument("--metrics-url", default="", help="of its metrics; default port 8002 of the same host")
    parser.add_argument(
        "--api-key", default=os.environ.get("TRIREME_API_KEY", ""), help="by default the variable TRIREME_API_KEY"
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=10.0, help="how long to look; 0: since the model was loaded; default 10"
    )
    parser.add_argument("--log", type=Path, metavar="LOG", help=_LOG)
    parser.add_argument("--profiles", type=Path, help="a folder for all profiles; by default each is beside its model")
    add_host_arguments(parser)
    parser.add_argument("--speed", type=positive_number("a factor"), default=1.0, help="of the log; default 1")
    parser.add_argument("--requests", type=positive_count, default=0, help="of the log, at most; default all")
    parser.add_argument("--plays", type=positive_count, default=3, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.set_defaults(run=run_explain_command)


_LONGEST_S = 86_400
_LOG = "as --request-log writes it; with results (--request-log-results), the real run is explained as well"


def run_explain_command(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    from ..engine.errors import TriremeError, UnavailableError

    try:
        for line in _live(given) if given.log is None else _explained(given):
            sys.stdout.write(f"{line}\n")
    except TriremeError as error:
        sys.stderr.write(f"trireme explain: {error}\n")
        return 3 if isinstance(error, UnavailableError) else 1
    return 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"found {text}, expected a number from 0 to {_LONGEST_S}")
    return seconds


def _live(given: argparse.Namespace) -> Iterator[str]:
    from ..engine.errors import InvalidArgumentError
    from .explain_live import explain_live, live_model

    for name in given.subject:
        if Path(name).is_dir():
            raise InvalidArgumentError(
                f"'{name}' is a folder: name a request log as well (--log), or a model of a running server"
            )
        yield from explain_live(live_model(name, given.url, given.metrics_url, given.api_key), given.seconds)


def _explained(given: argparse.Namespace) -> Iterator[str]:
    from .explaining import limits, planned_phases, real_phases, time_shares
    from .explaining_texts import planned_text_phases, real_text_phases, text_limits
    from .prediction import instance_count
    from .search.objective import Aim, PlanObjective
    from .search.players import PlanInputs, read_ground, read_plan_log
    from .search.settings import present_setting

    host = foreseen_host(given, read_plan_log(given.log))
    objective = PlanObjective((), Aim.THROUGHPUT)
    paths = tuple(Path(each) for each in given.subject)
    inputs = PlanInputs(paths, given.profiles, given.log, host, objective, given.seed, given.speed, given.requests)
    ground = read_ground(inputs)
    tell_of_profiles(ground)
    host = without_unknown_front_ends(given, host, ground.models)
    present = present_setting({model.config.name: model.config for model in ground.models}, host.front_ends)
    base = ground.predict(present, len(ground.log), given.plays)
    for model in ground.models:
        name = model.config.name
        if model.profile is None or name not in base.models:
            continue
        count = instance_count(model.config)
        texts = model.profile.generation is not None
        planned = planned_text_phases(base.runs[0], name) if texts else None
        shares = time_shares(planned or planned_phases(base.runs[0], name, count, model.profile))
        yield from _table(f"{name}, planned", shares)
        if any(each.model == name and each.result is not None for each in ground.log) and given.speed == 1:
            real = real_text_phases(ground.log, name) if texts else real_phases(ground.log, name, count)
            yield from _table(f"{name}, real", time_shares(real))
    yield "what limits:"
    yield from (f"  {line}" for line in limits(base.overall[0], host.cores - host.client_cores))
    firsts = {name: summaries[0] for name, summaries in base.models.items()}
    yield from (f"  {line}" for line in text_limits(firsts, present))
    yield from _what_if(ground, present, base, given.plays)


def _table(title: str, shares: TimeShares) -> Iterator[str]:
    yield f"{title}: {shares.requests} requests"
    if not shares.requests:
        return
    whole, slow = (sum(each.values()) for each in (shares.mean, shares.slow))
    yield f"  {'':22}{'mean':>12}{'':>6}{'slowest 1 %':>14}"
    for name, mean in shares.mean.items():
        part, its = mean / whole if whole else 0.0, shares.slow[name]
        yield f"  {name:22}{mean * 1e3:>10.3f}ms{part:>6.0%}{its * 1e3:>12.3f}ms{its / slow if slow else 0.0:>6.0%}"
    yield f"  {'all':22}{whole * 1e3:>10.3f}ms{'':>6}{slow * 1e3:>12.3f}ms"


def _what_if(ground: TrialGround, present: PlanSetting, base: Prediction, plays: int) -> Iterator[str]:
    from .explaining_texts import other_steps
    from .planned_models import front_ends_unknown
    from .planned_steps import memory_tokens

    texts = any(setting.steps is not None for _, setting in present.models)
    yield f"{'':34}{'p50':>11}{'p99':>11}{'throughput':>14}" + f"{'ttft p95':>13}{'itl p99':>11}" * texts
    yield _figures("as it is", base)
    every = len(ground.log)
    for name, setting in present.models:
        more = replace(setting, instances=setting.instances + 1)
        yield _figures(f"one more instance of {name}", ground.predict(present.with_model(name, more), every, plays))
        model = next(each for each in ground.models if each.config.name == name)
        if model.profile is not None and model.profile.generation is not None:
            tokens = memory_tokens(model.profile.generation, model.config)
            for label, other in other_steps(name, present, tokens):
                yield _figures(label, ground.predict(other, every, plays))
        if setting.delay_us:
            longer = replace(setting, delay_us=2 * setting.delay_us)
            yield _figures(f"twice the delay of {name}", ground.predict(present.with_model(name, longer), every, plays))
    if not front_ends_unknown(model.profile for model in ground.models if model.profile is not None):
        apart = replace(present, front_ends=present.front_ends + 1)
        yield _figures("one more front end", ground.predict(apart, every, plays))
    roomier = replace(ground, host=replace(ground.host, cores=ground.host.cores + 1))
    yield _figures("one more core", roomier.predict(present, every, plays))


def _figures(label: str, found: Prediction) -> str:
    p50, p99 = found.estimate("p50_s").value * 1e3, found.estimate("p99_s").value * 1e3
    line = f"{label:34}{p50:>9.3f}ms{p99:>9.3f}ms{found.estimate('throughput').value:>12.1f}/s"
    ttft, itl = found.estimate("ttft_p95_s").value * 1e3, found.estimate("itl_p99_s").value * 1e3
    return line if ttft != ttft else f"{line}{ttft:>11.3f}ms{itl:>9.3f}ms"
