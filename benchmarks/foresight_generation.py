"""Does a replay of generated text come true? Predicted beside measured, for loads of a small random network.

    python benchmarks/foresight_generation.py [--shape small] [--seconds 20] [--write]

The network is profiled, then a real server is asked what each load says, and its own log is played in virtual time. The
last load has a server with other settings than the profile was made with. `--write` puts the table into
docs/foresight.md.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from generation_networks import ROOT, SHAPES, make_network

from trireme.clients.player import play
from trireme.engine.logs.generators import (
    ArrivalProcess,
    BurstArrivals,
    PoissonArrivals,
    RequestKind,
    TokenLengths,
    generate,
)
from trireme.engine.options import ServerOptions
from trireme.engine.profiles import Way
from trireme.foresight.log_files import read_log
from trireme.foresight.models import ForeseenModels
from trireme.foresight.prediction import ForeseenHost, Prediction, predict
from trireme.foresight.profiling import Profiler
from trireme.foresight.real_runs import summary_of_log
from trireme.foresight.served_models import ServedModels
from trireme.foresight.service_times import MeasuringPlan
from trireme.foresight.summary import RunSummary

PAGE = ROOT / "docs" / "foresight.md"
MARKS = "<!-- generated text begin -->", "<!-- generated text end -->"
USUAL = {"max_running": 16, "max_tokens_per_step": 128, "kv_tokens": 8_192}
FIGURES = {
    "ttft_p50_s": ("first token p50", 1e3, "ms"),
    "ttft_p95_s": ("p95", 1e3, "ms"),
    "itl_p50_s": ("next token p50", 1e3, "ms"),
    "itl_p99_s": ("p99", 1e3, "ms"),
    "p50_s": ("whole text p50", 1e3, "ms"),
    "p95_s": ("p95", 1e3, "ms"),
    "tokens": ("tokens", 1.0, "/s"),
    "step_texts": ("texts a step", 1.0, ""),
    "kv": ("memory in use", 100.0, "%"),
    "preempted": ("preempted", 100.0, "%"),
}


@dataclass(frozen=True)
class Case:
    """A load, and the server's settings for it."""

    name: str
    arrivals: ArrivalProcess
    lengths: TokenLengths
    settings: dict[str, int]


def cases(rate_hz: float) -> Iterator[Case]:
    usual = TokenLengths(60, 30, 0.8, 0.6, context=1_000)
    yield Case("Poisson", PoissonArrivals(rate_hz), usual, USUAL)
    yield Case("bursts", BurstArrivals(3 * rate_hz, 2.0, 4.0, rate_hz / 4), usual, USUAL)
    small = {"max_running": 6, "max_tokens_per_step": 64, "kv_tokens": 768}
    yield Case(
        "long prompts, little memory", PoissonArrivals(rate_hz / 2), TokenLengths(200, 40, 0.4, 0.4, context=700), small
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--rate", type=float, default=6.0, help="requests a second")
    parser.add_argument("--most-secs", type=float, default=2.0, help="for each load of the profile")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        make_network_in(repository, given.shape)
        models = ForeseenModels(ServerOptions(model_repository=(repository,)))
        write_config(repository, USUAL)
        began_s = time.monotonic()
        plan = MeasuringPlan(error=0.02, most_s=given.most_secs)
        profile = Profiler(models, plan, ways=("http",)).profile("writer", lambda _what, _part: None)
        models.store.write(models.directory("writer"), profile)
        generation = profile.generation
        assert generation is not None
        errors = sorted(abs(each) for each in generation.errors())
        sys.stdout.write(
            f"profiled in {time.monotonic() - began_s:.0f} s: fit off by {errors[len(errors) // 2]:.1%} in the middle, "
            f"{errors[-1]:.1%} at most; {generation.cores} cores; "
            f"an answer takes {profile.host[0].answer_s * 1e6:.0f} µs, held up {profile.host[0].held_up:.2f}\n"
        )
        rows = [
            row(case, *compared(case, models, repository, Path(folder), given.seconds)) for case in cases(given.rate)
        ]
    head = ["Load", *(label for label, _, _ in FIGURES.values())]
    lines = [line(head), line(["---"] * len(head)), *(line(each) for each in rows)]
    sys.stdout.writelines(f"{each}\n" for each in lines)
    if given.write:
        text = PAGE.read_text(encoding="utf-8")
        found = re.sub(f"(?s){MARKS[0]}.*{MARKS[1]}", "\n".join([MARKS[0], *lines, MARKS[1]]), text)
        PAGE.write_text(found, encoding="utf-8")
    return 0


def make_network_in(repository: Path, shape: str) -> None:
    (repository / "writer" / "1").mkdir(parents=True)
    make_network(repository / "writer" / "1", shape)


def write_config(repository: Path, settings: dict[str, int]) -> None:
    written = (f'parameters {{ key: "{key}" value {{ string_value: "{each}" }} }}\n' for key, each in settings.items())
    (repository / "writer" / "config.pbtxt").write_text('backend: "generation"\n' + "".join(written))


def compared(
    case: Case, models: ForeseenModels, repository: Path, folder: Path, seconds: float
) -> tuple[Prediction, RunSummary]:
    """What was predicted, and measured."""
    write_config(repository, case.settings)
    traffic = generate(case.arrivals, [RequestKind("writer", tokens=case.lengths)], seconds)
    log = folder / f"{case.name}.jsonl"
    flags = ("--request-log", str(log), "--request-log-results", "true")
    with ServedModels(models.options, flags) as server:
        played = play(traffic, server.target(Way.HTTP))
    assert not played.summary().reasons, played.summary().reasons
    real = read_log(log)
    assert len(real) == len(traffic.requests)
    host = ForeseenHost(len(os.sched_getaffinity(0)), way=Way.HTTP)
    return predict([models.foreseen("writer")], real, models.options, host, plays=5), summary_of_log(real)


def row(case: Case, predicted: Prediction, measured: RunSummary) -> list[str]:
    cells = [case.name]
    for name, (_, scale, unit) in FIGURES.items():
        found, real = predicted.estimate(name).value, getattr(measured, name)
        off = f", {found / real - 1:+.0%}" if real and real == real else ""
        cells.append(f"{found * scale:.3g} / {real * scale:.3g}{' ' * (unit == 'ms')}{unit}{off}")
    return cells


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
