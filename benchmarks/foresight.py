"""Predicted beside measured: cases that are profiled, played against a real server, and predicted.

    python benchmarks/foresight.py [--work DIR] [--cases NAME ...] [--steps measure predict table why]

One call does all of it, in an hour. Many a machine is a tenth faster in one minute than in the next.
So the models of a case are profiled right before and right after each play of its log, of which there are two, each
against a new server, and what both profiles say of it is averaged. It is known, too, how far real runs are apart, and
predictions. With --work the steps can be done one by one, and case by case, which a machine that is only quiet for
minutes needs: what a step has found is kept there. `table` writes the table of docs/foresight.md, between its marks;
`why` prints how long requests waited and batches took, predicted and measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from foresight_machine import Machine
from foresight_models import write_models
from foresight_table import executed, planned_batches, reasons, residuals

from trireme.clients.player import play
from trireme.engine.gpu.discovery import NO_GPUS
from trireme.engine.logs.generators import BurstArrivals, PoissonArrivals, RequestKind, generate, generate_closed
from trireme.engine.logs.request_log import LoggedLoop, LoggedRequest, RequestTraffic
from trireme.engine.options import ServerOptions
from trireme.engine.profiles import ModelProfile, Way
from trireme.foresight.models import ForeseenModels, ProfileStore
from trireme.foresight.prediction import ForeseenHost, instance_count, predict
from trireme.foresight.profile_command import quiet_server
from trireme.foresight.profiling import Profiler
from trireme.foresight.served_models import ServedModels
from trireme.foresight.service_times import MeasuringPlan
from trireme.foresight.summary import Estimate, mean_rows

DOCUMENT = Path(__file__).parents[1] / "docs" / "foresight.md"
BEGIN, END = "<!-- residuals begin -->\n", "<!-- residuals end -->\n"
SECONDS = 12.0
RUNS = 2
PLAYS = 2
"""By each of two profiles."""
PROFILE_S = 5.0
"""For one size of batches."""
WARM_UP = 400
CLIENT_S = 0.00008
"""Processor time of the player, a request."""


@dataclass(frozen=True)
class Case:
    """One of them.

    Attributes:
        models: that are asked, each with its part of the load.
        load: of what the models can do at most, their batches full.
        rate_hz: requests a second, instead.
        burst: it comes in bursts.
        held: not looked at while the prediction was tuned.
        front_ends: in processes of their own.
    """

    name: str
    models: tuple[str, ...]
    load: float = 0.0
    way: Way = Way.HTTP
    rate_hz: float = 0.0
    burst: bool = False
    held: bool = False
    priorities: tuple[int, ...] = (0,)
    sequence: float = 0.0
    front_ends: int = 0


CASES = (
    Case("ONNX in place", ("light",), rate_hz=700.0),
    Case("ONNX on a thread", ("heavy",), 0.55),
    Case("ONNX on two threads", ("heavy_two",), 0.5),
    Case("Python that sleeps", ("sleeping",), 0.5),
    Case("Python that computes", ("computing",), 0.5),
    Case("ensemble", ("chain",), 0.4),
    Case("sequences", ("simple_sequence",), rate_hz=300.0, sequence=20.0),
    Case("priorities", ("levels",), 0.7, priorities=(1, 2, 2), held=True),
    Case("two models", ("heavy", "heavy_other"), 0.45),
    Case("bursts at 60 %", ("limited",), 0.6, burst=True),
    Case("bursts at 90 %", ("limited",), 0.9, burst=True, held=True),
    Case("bursts at 120 %", ("limited",), 1.2, burst=True, held=True),
    Case("ONNX in place, gRPC", ("light",), rate_hz=700.0, way=Way.GRPC, held=True),
    Case("ONNX on a thread, gRPC", ("heavy",), 0.55, way=Way.GRPC, held=True),
    Case("bursts at 60 %, gRPC", ("limited",), 0.6, way=Way.GRPC, burst=True),
    Case("ONNX in place, a front end", ("light",), rate_hz=700.0, held=True, front_ends=1),
    Case("bursts at 60 %, gRPC, a front end", ("limited",), 0.6, way=Way.GRPC, burst=True, held=True, front_ends=1),
)


class Bench:
    """The steps, which keep what they found in a directory."""

    def __init__(self, work: Path, stop_after_s: float) -> None:
        self.stop_s = time.monotonic() + stop_after_s
        self.work = work
        self.repository = work / "models"
        self.options = ServerOptions(model_repository=(self.repository,))
        self.found = work / "found"
        self.found.mkdir(parents=True, exist_ok=True)

    def models(self, case: Case, number: int = 0) -> ForeseenModels:
        """With the profiles that were made before the first run of a case (0), or after a run (from 1)."""
        return ForeseenModels(self.options, ProfileStore(self.found / case.name / str(number)), NO_GPUS)

    def members(self, case: Case) -> list[str]:
        models = self.models(case)
        names = models.with_members(case.models)
        return [name for name in names if not models.written_config(name).has_ensemble_scheduling]

    def profile(self, case: Case, number: int) -> None:
        plan = MeasuringPlan(error=0.003, most_s=PROFILE_S)
        models = self.models(case, number)
        for name in self.members(case):
            with quiet_server():
                profiler = Profiler(models, plan, ways=(case.way.value,), front_ends=case.front_ends > 0)
                profile = profiler.profile(name, lambda _text, _part: None)
            models.store.write(models.directory(name), profile)
            _say(f"profiled {name}: {_alone(profile)}")

    def log(self, case: Case) -> list[LoggedRequest]:
        """What is asked, a function of the profiles alone."""
        rate = case.rate_hz or case.load * min(self.capacity(case, name) for name in self.members(case))
        if len(case.models) > 1:
            rate *= len(case.models)
        kinds = [
            RequestKind(model, priority=priority, sequence_length=case.sequence, think_s=0.01 if case.sequence else 0.0)
            for model in case.models
            for priority in case.priorities
        ]
        if case.sequence:
            rate /= case.sequence
        arrivals = BurstArrivals(1.5 * rate, 0.5, 0.5, 0.5 * rate) if case.burst else PoissonArrivals(rate)
        return list(generate(arrivals, kinds, self.seconds(case), seed=18).requests)

    def seconds(self, case: Case) -> float:
        """Of its log: what it was measured with, once it was."""
        path = self.found / f"{case.name}.measured.json"
        return json.loads(path.read_text())["seconds"] if path.exists() else SECONDS

    def capacity(self, case: Case, name: str) -> float:
        """Requests of one row a second that a model's instances can do side by side, their batches full."""
        found = self.models(case).foreseen(name)
        assert found.profile is not None
        count = instance_count(found.config)
        points = [point for point in found.profile.service if point.side_by_side <= count]
        most = max(points, key=lambda point: (point.side_by_side, point.rows))
        return count * most.rows / most.time.mean_s

    def measure(self, cases: Sequence[Case]) -> None:
        if not self.repository.exists():
            write_models(self.repository)
        for case in cases:
            path = self.found / f"{case.name}.measured.json"
            if path.exists() or time.monotonic() > self.stop_s:
                continue
            self.profile(case, 0)
            log = self.log(case)
            runs: list[dict[str, Any]] = []
            for number in range(RUNS):
                runs.append(self.real_run(case, log, number))
                self.profile(case, number + 1)
            path.write_text(json.dumps({"requests": len(log), "seconds": SECONDS, "runs": runs}))

    def real_run(self, case: Case, log: Sequence[LoggedRequest], number: int) -> dict[str, Any]:
        """One play of a case's log against a new server. Latencies count from when the player sent a request."""
        flags = ["--model-control-mode", "explicit"]
        for model in case.models:
            flags += ["--load-model", model]
        members = self.members(case)
        with ServedModels(self.options, flags, case.front_ends) as server:
            target = server.target(case.way)
            warm = [RequestKind(model, sequence_length=case.sequence) for model in case.models]
            play(generate_closed(LoggedLoop(4), warm, WARM_UP, seed=1), target)
            before = {name: server.statistics(name) for name in members}
            machine, loop_s = Machine(server.process.pid), server.loop_s()
            played = play(RequestTraffic(log), target)
            loop_s, used = server.loop_s() - loop_s, machine.used()
            after = {name: server.statistics(name) for name in members}
        summary = played.summary()
        batches = {name: executed(before[name], after[name]) for name in members}
        count = sum(each["batches"] for each in batches.values())
        well = played.status == 0
        p50_s, p99_s = np.quantile(played.since_sent_s[well], (0.5, 0.99))
        run: dict[str, Any] = {
            "p50": float(p50_s),
            "p99": float(p99_s),
            "throughput": summary.throughput,
            "batch": sum(each["rows"] for each in batches.values()) / max(1, count),
            "refused": summary.refused,
            "late": summary.late,
            "loop": loop_s / summary.seconds,
            "others": used.others,
            "stolen": used.stolen,
            "models": batches,
        }
        np.savez(
            self.found / f"{case.name}.{number}.npz",
            sent_s=played.sent_s,
            due_s=played.scheduled_s,
            latency_s=played.latency_s,
            status=played.status,
        )
        _say(f"measured {case.name}: {run}")
        return run

    def sent(self, case: Case, log: Sequence[LoggedRequest], run: int) -> list[LoggedRequest]:
        """The log as the player has sent it, which is late now and then."""
        sent_s = np.load(self.found / f"{case.name}.{run}.npz")["sent_s"]
        order = [int(at) for at in np.argsort(sent_s, kind="stable") if sent_s[at] == sent_s[at]]
        return [replace(log[at], offset_s=float(sent_s[at])) for at in order]

    def predict(self, cases: Sequence[Case]) -> None:
        for case in cases:
            if not (self.found / f"{case.name}.measured.json").exists():
                continue
            predicted = [self.foreseen(case, number) for number in range(RUNS)]
            (self.found / f"{case.name}.predicted.json").write_text(json.dumps(predicted))

    def foreseen(self, case: Case, run: int) -> dict[str, Any]:
        """What would come of a run: the mean of what the profiles from before and after it say."""
        before, after = (self.foreseen_by(case, run, number) for number in (run, run + 1))
        means = {name: (value + after[name]) / 2 for name, value in before.items() if isinstance(value, float)}
        return {**before, **means}

    def foreseen_by(self, case: Case, run: int, number: int) -> dict[str, Any]:
        """What would come of a run, by one of the profiles."""
        sent, members = self.sent(case, self.log(case), run), self.members(case)
        known = self.models(case, number)
        models = [known.foreseen(name) for name in known.with_members(case.models)]
        client_cores = len(sent) / self.seconds(case) * CLIENT_S
        host = ForeseenHost(float(psutil.cpu_count() or 1), client_cores, case.way, front_ends=case.front_ends)
        began_s = time.monotonic()
        found = predict(models, sent, self.options, host, plays=PLAYS, seed=number)
        took_s = time.monotonic() - began_s
        stateful = [model.config.name for model in models if model.config.has_sequence_batching]
        return {
            "p50": found.estimate("p50_s").value,
            "p99": found.estimate("p99_s").value,
            "throughput": found.estimate("throughput").value,
            "batch": Estimate.of([mean_rows(run, members, stateful) for run in found.runs]).value,
            "refused": sum(found.overall[0].refused.values()),
            "loop": found.estimate("loop").value,
            "models": {name: planned_batches(found.runs[0], name) for name in members},
            "took_s": took_s / len(found.runs),
        }

    def table(self, cases: Sequence[Case]) -> None:
        table = residuals(self.found, {case.name: case.held for case in cases})
        sys.stdout.write(table)
        if len(cases) == len(CASES):
            before, rest = DOCUMENT.read_text().split(BEGIN)
            DOCUMENT.write_text(before + BEGIN + table + END + rest.split(END)[1])

    def why(self, cases: Sequence[Case]) -> None:
        sys.stdout.write(reasons(self.found, [case.name for case in cases]))


def _alone(profile: ModelProfile) -> str:
    return ", ".join(f"{p.rows}x{p.side_by_side}: {p.time.mean_s * 1e3:.3f} ms" for p in profile.service)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


STEPS = ("measure", "predict", "table", "why")


def main() -> None:
    """Do the steps that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--stop-after-secs", type=float, default=float("inf"), help="begin nothing more then")
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=STEPS[:3])
    given = parser.parse_args()
    cases = [case for case in CASES if case.name in given.cases]
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(given.work or Path(temporary), given.stop_after_secs)
        for step in given.steps:
            getattr(bench, step)(cases)


if __name__ == "__main__":
    main()
