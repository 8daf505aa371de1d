"""`trireme profile`: measure models, or read from traces what they took, and keep that (docs/foresight.md)."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import InvalidArgumentError
from ..engine.front_end_count import front_end_count
from ..engine.host_policies import usable_cores

if TYPE_CHECKING:
    from ..engine.profiles import HostPoint, ModelProfile
    from .models import ForeseenModels
    from .progress import Progress


def add_profile_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    text = "measure how long a model's batches take, and what its requests cost the server"
    parser = commands.add_parser("profile", help=text)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="of an ensemble, its members are profiled")
    add_repository_arguments(parser)
    parser.add_argument("--check", action="store_true", help="measure nothing; say which profiles are out of date")
    parser.add_argument("--from-traces", type=Path, action="append", default=[], metavar="FILE", help=_TRACES)
    parser.add_argument("--from-log", type=Path, action="append", default=[], metavar="FILE", help=_LOG)
    parser.add_argument(
        "--sizes", type=_numbers, default=(), help="rows of batches, as 1,4,8; by default all up to 8, and then some"
    )
    parser.add_argument("--instances", type=_numbers, default=(), help="how many side by side, as 1,2")
    parser.add_argument(
        "--error",
        type=positive_number("percent", 0.01),
        default=0.01,
        help=_ERROR,
    )
    parser.add_argument("--most-secs", type=positive_number("seconds"), default=10.0, help=_MOST)
    parser.add_argument("--inputs", type=Path, help="an .npz file with an array for each input; else they are drawn")
    parser.add_argument("--shape", type=_shape, action="append", default=[], help="of an input, as NAME:3,224,224")
    parser.add_argument("--url", help=_URL)
    parser.add_argument("--ways", type=_ways, default=("http", "grpc"), help=_WAYS)
    parser.add_argument("--front-ends", action=argparse.BooleanOptionalAction, help=_FRONT_ENDS)
    parser.set_defaults(run=run_profile_command)


def run_profile_command(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    from ..engine.errors import TriremeError

    try:
        return _run(given)
    except TriremeError as error:
        sys.stderr.write(f"trireme profile: {error}\n")
        return 1


def _run(given: argparse.Namespace) -> int:
    from .progress import shown_progress

    models = repository_models(given)
    names = models.with_members(given.models)
    names = [name for name in names if not models.written_config(name).has_ensemble_scheduling]
    if given.check:
        return _check(models, names)
    for name in names:
        with shown_progress(name) as progress, quiet_server():
            profile = _profile(name, models, given, progress)
        path = models.store.write(models.directory(name), profile)
        sys.stdout.write(f"{_described(profile)}written to {path}\n")
    return 0


@contextlib.contextmanager
def quiet_server() -> Iterator[None]:
    """What a server inside of this process logs of its work is of no interest, unless it warns."""
    logger = logging.getLogger("trireme")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


_ERROR = "bound of the standard error of a mean, in percent; default 1"
_MOST = "seconds for one point; default %(default)g"
_TRACES = "make the profile from trace files of real traffic (all requests traced), without any load"
_LOG = "the same from a request log with results"
_URL = "of a server that serves the model from this repository: measure there, in its idle times"
_WAYS = "whose cost to the server is measured: some of http, json, grpc and stream, or none; default http,grpc"

_FRONT_ENDS = (
    "measure as well what requests cost a server with front ends in processes of their own; default where a server has "
    "some by itself, from 4 cores on"
)


def add_repository_arguments(parser: argparse.ArgumentParser) -> None:
    """Where models and profiles are."""
    parser.add_argument(
        *("--repository", "--model-repository"),
        dest="repository",
        type=Path,
        action="append",
        help="by default: models",
    )
    parser.add_argument("--profiles", type=Path, help="a folder for all profiles; by default each is beside its model")


def repository_models(given: argparse.Namespace) -> ForeseenModels:
    """What the arguments of `add_repository_arguments` name.

    Raises:
        InvalidArgumentError: a repository is no directory.
    """
    from ..engine.gpu.discovery import usable_gpus
    from ..engine.options import ServerOptions
    from .models import ForeseenModels, ProfileStore

    repositories = tuple(given.repository or [Path("models")])
    for each in repositories:
        if not each.is_dir():
            raise InvalidArgumentError(f"model repository '{each}' is no directory; name one with --repository")
    options = ServerOptions(model_repository=repositories)
    gpus = usable_gpus(None, options.min_compute_capability, os.environ)
    return ForeseenModels(options, ProfileStore(given.profiles), gpus)


def _check(models: ForeseenModels, names: Sequence[str]) -> int:
    from ..engine.errors import NotFoundError

    wrong = 0
    for name in names:
        try:
            found = models.foreseen(name)
            reasons = found.stale
        except NotFoundError as error:
            reasons = (str(error),)
        wrong += bool(reasons)
        sys.stdout.write(f"{name}: {'; '.join(reasons) or 'up to date'}\n")
    return 1 if wrong else 0


def _profile(name: str, models: ForeseenModels, given: argparse.Namespace, progress: Progress) -> ModelProfile:
    from .profiling import Profiler, generates
    from .service_times import MeasuringPlan

    if (given.from_traces or given.from_log or given.url) and generates(models, name):
        raise InvalidArgumentError(
            f"'{name}' generates text, whose steps neither traces, logs nor statistics tell of; profile it without "
            "--from-traces, --from-log and --url"
        )
    if given.from_traces or given.from_log:
        from .recorded_profiles import recorded_profile

        return recorded_profile(name, models, given.from_traces, given.from_log)
    plan = MeasuringPlan(given.sizes, given.instances, given.error, given.most_secs)
    if given.url:
        from ..clients.target import LoadProtocol, LoadTarget
        from .idle_profiles import idle_profile

        return idle_profile(name, models, LoadTarget.of(given.url, LoadProtocol.HTTP), plan, progress)
    front_ends = given.front_ends
    if front_ends is None:
        front_ends = front_end_count(None, usable_cores()) > 0
    profiler = Profiler(models, plan, given.inputs, dict(given.shape), given.ways, front_ends)
    return profiler.profile(name, progress)


def _described(profile: ModelProfile) -> str:
    lines = [f"{profile.model}: {profile.executor.value}\n", "  rows  beside      mean       p50       p99   cores\n"]
    for point in profile.service:
        time = point.time
        cells = (f"{each * 1e3:8.3f}ms" for each in (time.mean_s, time.quantile(0.5), time.quantile(0.99)))
        error = f"±{time.relative_error:.1%}"
        lines.append(f"{point.rows:6} {point.side_by_side:7} {' '.join(cells)} {point.cores:7.2f}  {error}\n")
    if profile.generation is not None:
        from .step_report import step_lines

        lines += [f"  {line}\n" for line in step_lines(profile.generation)]
    lines += [f"  {line}\n" for cost in profile.host for line in _cost_lines(cost)]
    return "".join(lines)


def _cost_lines(cost: HostPoint) -> Iterator[str]:
    way = f"{cost.way.value}, {cost.nbytes:,} bytes{', with a front end' if cost.front_ends else ''}"
    yield (
        f"{way}: {cost.request_s * 1e6:.0f} µs a request and {cost.batch_s * 1e6:.0f} µs a batch of the loop, "
        f"{cost.outside.mean_s * 1e6:.0f} µs outside"
    )
    if cost.front_ends:
        turn = f"{cost.front_turn_s * 1e6:.0f} µs a turn"
        yield f"  {cost.front_request_s * 1e6:.0f} µs a request and {turn} of the front end"
    if cost.crowded.mean_s:
        often, seldom = cost.crowded.mean_s * 1e3, cost.crowded.quantile(0.99) * 1e3
        yield (
            f"  a thread gets a core {often:.2f} ms late on average, and {seldom:.1f} ms one time in a hundred, while "
            "others have all"
        )
    if cost.answer_s:
        slowed = f"steps of texts that come and go take {cost.slowed:.2f} times as long"
        yield f"  {cost.answer_s * 1e6:.0f} µs an answer; {slowed}"


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(each) for each in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"expected whole numbers from 1 on, as 1,2,4, not '{text}'")
    return numbers


def positive_number(what: str, factor: float = 1.0, *, zero: bool = False) -> Callable[[str], float]:
    """What reads a number of an argument.

    Args:
        factor: on what is written.
        zero: it may be 0.
    """

    def read(text: str) -> float:
        try:
            value = float(text) * factor
        except ValueError:
            value = math.nan
        if not (0 < value < math.inf or (zero and value == 0)):
            least = "0 or more" if zero else "more than 0"
            raise argparse.ArgumentTypeError(f"expected {what}, {least}, not '{text}'")
        return value

    return read


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, dims = text.rpartition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"expected NAME:1,2, not '{text}'")
    return name, _numbers(dims)


def _ways(text: str) -> tuple[str, ...]:
    from ..engine.profiles import Way

    if text == "none":
        return ()
    known = [way.value for way in Way]
    ways = tuple(text.split(","))
    wrong = [way for way in ways if way not in known]
    if wrong:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, or none, not '{wrong[0]}'")
    return ways
