"""What `trireme plan` chooses, beside the best of settings that are all measured for real.

    python benchmarks/plan_choice.py [--settings 16] [--seconds 6] [--rate 200]

A Python model whose calls take 20 ms and 1 ms a row, so that other work on the machine hardly shows, is profiled.
Settings of it are drawn, and the one with the most goodput is chosen in virtual time. Then each is served, by a server
of its own, and the log is played against it. Printed are both goodputs of each, and which part of the best one's the
chosen one has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random

import psutil

from trireme.engine.gpu.discovery import NO_GPUS
from trireme.engine.logs.generators import PoissonArrivals, RequestKind, generate
from trireme.engine.logs.request_log import write_request_log
from trireme.engine.options import ServerOptions
from trireme.foresight.models import ForeseenModels, ProfileStore
from trireme.foresight.prediction import ForeseenHost
from trireme.foresight.profile_command import quiet_server
from trireme.foresight.profiling import Profiler
from trireme.foresight.search.objective import Aim, read_objective
from trireme.foresight.search.players import PlanInputs, read_ground
from trireme.foresight.search.proof import prove
from trireme.foresight.search.settings import PlanSetting
from trireme.foresight.search.space import plan_space
from trireme.foresight.service_times import MeasuringPlan

NAME = "scorer"
MODEL = """\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        time.sleep(0.020 + 0.001 * sum(map(len, inputs)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each)]) for each in inputs]
"""
CONFIG = """\
backend: "python"
max_batch_size: 16
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""


def main() -> int:
    """Measure, choose, measure all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--objective", default="p99<60ms")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository, log = Path(folder) / "models", Path(folder) / "log.jsonl"
        write_model(repository)
        _profile(repository)
        write_log(log, given.rate, given.seconds)
        return _compare(inputs_of(repository, log, given.objective), given.settings, given.seconds)


def write_model(repository: Path) -> None:
    """The model, in a new repository."""
    (repository / NAME / "1").mkdir(parents=True)
    (repository / NAME / "1" / "model.py").write_text(MODEL)
    (repository / NAME / "config.pbtxt").write_text(CONFIG)


def write_log(log: Path, rate: float, seconds: float) -> None:
    """Poisson arrivals at the model, `rate` a second."""
    kinds = [RequestKind(NAME, protocol="http")]
    log.write_text("".join(write_request_log(generate(PoissonArrivals(rate), kinds, seconds, seed=18))))


def inputs_of(repository: Path, log: Path, objective: str) -> PlanInputs:
    """A plan of the most goodput on this machine."""
    host = ForeseenHost(float(psutil.cpu_count() or 1), 0.2)
    return PlanInputs((repository,), None, log, host, read_objective(objective, Aim.GOODPUT))


def _profile(repository: Path) -> None:
    models = ForeseenModels(ServerOptions(model_repository=(repository,)), ProfileStore(), NO_GPUS)
    plan = MeasuringPlan(sizes=(1, 4, 16), side_by_side=(1, 2), most_s=2.0)
    with quiet_server():
        profile = Profiler(models, plan, ways=("http",)).profile(NAME, lambda _text, _part: None)
    models.store.write(models.directory(NAME), profile)


def _compare(inputs: PlanInputs, count: int, seconds: float) -> int:
    ground = read_ground(inputs)
    space = plan_space(ground.models, inputs.objective, inputs.host.cores, 2)
    settings = space.drawn(count, Random(1))
    trials = [ground.play(setting, len(ground.log), 3) for setting in settings]
    chosen = min(trials, key=lambda trial: trial.order(inputs.objective)).setting
    found: dict[PlanSetting, float] = {}
    print(f"{'predicted':>10}{'measured':>10}  goodput of")
    for trial in trials:
        proven = prove(inputs, ground, "", trial.setting, seconds=seconds, plays=1)
        good = found[trial.setting] = proven.goodput
        mark = "  (chosen)" if trial.setting == chosen else ""
        print(f"{sorted(trial.goodput)[1]:8.1f}/s{good:8.1f}/s  {trial.setting}{mark}", flush=True)
    part = found[chosen] / max(found.values())
    print(f"the chosen one of {len(found)} has {part:.1%} of the best one's goodput")
    return 0 if part >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
