"""``python -m trireme.simulations``: play many seeds, or look at one.

``--seeds N`` plays N swarm runs and stops at the first violation, which it makes as small as it can. ``--seed S`` plays
one of them and shows it, ``--replay FILE`` a plan from a file, ``--scenario NAME`` a scenario written by hand.
``--swarm NAME`` plays runs of another swarm, such as that of a fleet, and says what was wrong first.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..engine.clock import SystemClock
from ..engine.errors import InvalidArgumentError
from ..engine.logs.request_log import read_request_log
from .compared import told_differences
from .coverage import holes
from .events import BatchSealed, RequestAbandoned, RequestAnswered, RequestSubmitted
from .history import History, read_history
from .hunt import Found, hunt, shrunk
from .museum import EXHIBITS
from .plan import Plan
from .planted import PLANTED, planted
from .play import RunOutcome, play
from .reach import ANSWERED, reach
from .report import describe, tally
from .said_once import errors_said_once, said_by_all
from .scenarios import SCENARIOS
from .svg import draw_svg
from .swarm import draw_plan
from .swarms import SWARMS, DrawnEnd, play_drawn_seeds
from .timeline import draw_timeline
from .timeline_page import TitledRun, draw_page
from .trace import plan_of_log
from .world import run_world

ENOUGH_SEEDS = 1_000
"""With so many seeds, what was never reached is a hole in the simulator."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0 if all is well, 1 if an invariant is broken, or a hole found."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if options.swarm:
        return _play_swarm(console, options)
    if options.seeds:
        return _hunt(console, options)
    seed = 1 if options.seed is None else options.seed
    if options.scenario:
        history = run_world(SCENARIOS[options.scenario], seed)
        _show(console, options, f"scenario {options.scenario}, seed {seed}", history)
        return 0
    if options.exhibit:
        exhibit = EXHIBITS[options.exhibit]
        console.print(f"{exhibit.story}\n")
        plan = exhibit.plan
    else:
        plan = options.replay or options.trace or draw_plan(seed)
    with planted(options.plant):
        outcome = play(plan)
    _show(console, options, next(iter(describe(plan))), outcome.history)
    return _verdict(console, outcome)


def _play_swarm(console: Console, options: argparse.Namespace) -> int:
    """Play many seeds of a swarm that is drawn as it goes, or one."""
    first = options.first_seed if options.seed is None else options.seed
    seeds = range(first, first + (options.seeds or 1))
    counts: Counter[str] = Counter()
    failed: DrawnEnd | None = None
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(seeds))
        for end in play_drawn_seeds(options.swarm, seeds, options.jobs, options.plant):
            counts += end.counts
            progress.advance(task)
            if end.violation:
                failed = end
                break
    console.print("\n".join(f"    {count:,} times: {what}" for what, count in sorted(counts.items())))
    if failed is not None:
        planting = f" --plant {options.plant}" * bool(options.plant)
        again = f"    python -m trireme.simulations --swarm {options.swarm} --seed {failed.seed}{planting}"
        console.print(f"seed {failed.seed} breaks a promise: {failed.violation}", "see it again:", again, sep="\n")
        return 1
    console.print(f"{options.swarm}: seeds {seeds[0]} to {seeds[-1]}, no promise was broken")
    return 0


def _hunt(console: Console, options: argparse.Namespace) -> int:
    """Play many seeds, with a bar."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    clock = SystemClock()
    began_s = clock.now_s()
    counts: Counter[str] = Counter()
    runs: list[Counter[str]] = []
    failed: Found | None = None
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        task = progress.add_task("", total=options.seeds)
        for done, found in enumerate(hunt(seeds, options.jobs, options.plant), start=1):
            counts += found.counts
            runs.append(found.counts)
            speed = (counts["requests"] + counts["steps"]) / max(1e-9, clock.now_s() - began_s)
            progress.update(task, completed=done, description=f"{speed:,.0f} requests/s")
            if found.violation is not None:
                failed = found
                break
    duration_s = clock.now_s() - began_s
    requests, steps = counts["requests"], counts["steps"]
    speed = f"{(requests + steps) / max(1e-9, duration_s):,.0f} simulated requests a second, {options.jobs} processes"
    if failed is not None:
        _explain(console, options, failed)
        return 1
    asked = f"{requests:,} requests of clients and {steps:,} of ensembles"
    console.print(f"{options.seeds} seeds, {asked} in {duration_s:.1f} s ({speed})")
    console.print("\n".join(reach(runs) if options.reach else tally(counts)))
    console.print("no invariant was broken")
    return int(options.seeds >= ENOUGH_SEEDS and bool(holes(counts)))


def _explain(console: Console, options: argparse.Namespace, failed: Found) -> None:
    """The shortest scenario that a failing seed could be shrunk to, and how to see it again."""
    assert failed.violation is not None
    console.print(f"seed {failed.seed} breaks an invariant\n    {failed.violation}\nmaking it smaller ...")
    plan = shrunk(failed.seed, failed.violation, options.plant)
    with planted(options.plant):
        outcome = play(plan)
    options.failures.mkdir(parents=True, exist_ok=True)
    file = options.failures / f"seed-{failed.seed}.json"
    file.write_text(plan.to_json(), encoding="ascii")
    console.print("\n".join(describe(plan)))
    console.print(f"\n{draw_timeline(outcome.history, options.columns)}\n{outcome.violation}\n")
    planting = f" --plant {options.plant}" * bool(options.plant)
    console.print("see it again:", f"    python -m trireme.simulations --replay {file}{planting}", sep="\n")
    console.print("as it was found:", f"    python -m trireme.simulations --seed {failed.seed}{planting}", sep="\n")


def _show(console: Console, options: argparse.Namespace, title: str, history: History) -> None:
    console.print(f"{title}, history {history.digest()}\n")
    console.print(draw_timeline(history, options.columns))
    console.print("\n".join(summary(history)))
    if options.history:
        options.history.write_bytes(history.to_bytes())
    if options.svg:
        options.svg.write_text(draw_svg(history), encoding="utf-8")
    runs = [(title, history)]
    if options.compare is not None:
        runs.append(_other(options))
        console.print("\n".join(["", *told_differences(*runs)]))
    if options.html:
        options.html.write_text(draw_page(runs), encoding="utf-8")


def _other(options: argparse.Namespace) -> TitledRun:
    """The run to compare with: of another seed, a plan, or a history that was kept. No bug is planted in it."""
    other = options.compare
    if isinstance(other, History):
        return "the history of the file", other
    if isinstance(other, int) and options.scenario:
        return f"scenario {options.scenario}, seed {other}", run_world(SCENARIOS[options.scenario], other)
    plan = other if isinstance(other, Plan) else draw_plan(other)
    return next(iter(describe(plan))), play(plan).history


def _verdict(console: Console, outcome: RunOutcome) -> int:
    seen = [
        f"    {count} times: {what}"
        for what, count in sorted(outcome.counts.items())
        if what not in ("requests", "steps", ANSWERED)
    ]
    console.print("\n".join(["seen:", *seen]))
    console.print(f"broken: {outcome.violation}" if outcome.violation else "no invariant was broken")
    return int(outcome.violation is not None)


def summary(history: History) -> list[str]:
    """How many of what, a line each."""
    answers = history.of(RequestAnswered)
    errors = errors_said_once(history)
    failed = sum(len(said.at_ns) for said in errors)
    reasons = Counter(batch.reason for batch in history.of(BatchSealed))
    answered, abandoned = len(answers) - failed, len(history.of(RequestAbandoned))
    requests = f"{len(history.of(RequestSubmitted))} requests: {answered} answered"
    return [
        f"{requests}, {failed} refused or failed, {abandoned} abandoned by their clients",
        *said_by_all(errors),
        f"batches: {reasons.total()}",
        *(f"    {count} sealed: {reason}" for reason, count in sorted(reasons.items())),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trireme.simulations",
        description="Play Trireme's actors in virtual time, and try to break them. One seed gives one history.",
    )
    which = parser.add_argument_group("what to play")
    which.add_argument("--seeds", type=_positive, metavar="N", help="play N swarm runs, with everything checked")
    which.add_argument("--first-seed", type=int, default=1, metavar="S", help="the first of them (default: 1)")
    which.add_argument("--jobs", type=_positive, default=1, metavar="N", help="processes to play them in (default: 1)")
    which.add_argument("--reach", action="store_true", help="with --seeds: in how many runs each feature came up")
    which.add_argument("--swarm", choices=list(SWARMS), help="which runs --seeds and --seed mean, if not whole servers")
    which.add_argument("--seed", type=int, metavar="S", help="play one swarm run, or one scenario, and show it")
    which.add_argument("--replay", type=_plan, metavar="FILE", help="play a plan that a failing seed was shrunk to")
    which.add_argument("--trace", type=_trace, metavar="FILE", help="play a request log, on models that batch")
    which.add_argument("--scenario", choices=list(SCENARIOS), help="play a scenario written by hand")
    which.add_argument("--exhibit", choices=list(EXHIBITS), help="play a bug of the museum, which should not come back")
    which.add_argument("--plant", choices=list(PLANTED), default="", help="plant a bug, to see it found")
    shown = parser.add_argument_group("what to show and keep")
    shown.add_argument("--columns", type=_positive, default=120, help="width of the timeline (default: 120)")
    shown.add_argument("--history", type=Path, metavar="FILE", help="write every event here, as JSON lines")
    shown.add_argument("--html", type=Path, metavar="FILE", help="draw the timeline here, as a page to zoom into")
    shown.add_argument(
        "--compare",
        type=_comparable,
        metavar="SEED|FILE",
        help="put another run beside it: a seed's, a plan's, or one kept by --history",
    )
    shown.add_argument("--svg", type=Path, metavar="FILE", help="draw the timeline here, as SVG")
    shown.add_argument(
        "--failures", type=Path, default=Path(), metavar="DIR", help="where failing plans go (default: here)"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1 is needed, not {number}")
    return number


def _comparable(text: str) -> int | Plan | History:
    if text.isdecimal():
        return int(text)
    try:
        with open(text, encoding="ascii") as lines:
            first = lines.readline()
            return read_history((first, *lines)) if first.startswith('{"event":') else _plan(text)
    except (OSError, UnicodeError, InvalidArgumentError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def _plan(path: str) -> Plan:
    try:
        return Plan.from_json(Path(path).read_text(encoding="ascii"))
    except (OSError, UnicodeError, InvalidArgumentError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from error


def _trace(path: str) -> Plan:
    try:
        with open(path, encoding="utf-8") as lines:
            return plan_of_log(read_request_log(lines))
    except (OSError, UnicodeError, InvalidArgumentError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from error
