"""What the request log costs small requests: throughput and CPU time, with and without it.

    python benchmarks/request_log.py [--rounds 12] [--seconds 0.8] [--transport http]

First what a request takes that is noted, and what it takes to encode it, by themselves. Then a server of the shipped
`identity_fp32` (FP32[16]) under a closed loop, 16 requests at a time, whose log is put in and taken out while the loop
goes on (`windows.py`); and another one whose log has results. Run on an idle machine.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attack_payloads as payloads
from servers import Server, trireme
from windows import Window, closed_loop, report, round_of_windows, round_s

from trireme.engine.clock import SystemClock
from trireme.engine.config.model import ModelConfig, ModelInput
from trireme.engine.datatypes import FP32
from trireme.engine.logs.request_recorder import RequestRecorder
from trireme.engine.request import InferenceRequest, RequestForm
from trireme.engine.tensor import Tensor

ROOT = Path(__file__).parents[1]
MODEL = "identity_fp32"
CONCURRENCY = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--transport", choices=("http", "grpc"), default="http")
    given = parser.parse_args()
    for name, taken_us in steps().items():
        print(f"{name:28} {taken_us:6.3f} us a request")
    for name, flags in (("log", ()), ("log with results", ("--request-log-results=true",))):
        with tempfile.TemporaryDirectory() as folder:
            common = "--model-control-mode=explicit", f"--load-model={MODEL}", f"--request-log={folder}/log"
            program = sys.executable, str(Path(__file__).with_name("switched_log.py")), "serve"
            with trireme(ROOT / "model_repository", *common, *flags, grpc=True, program=program) as server:
                rounds = measure(server, given.rounds, given.seconds, given.transport)
        report(rounds, name, "no log", ("throughput", "request_us"))


def steps(count: int = 1000) -> dict[str, float]:
    """What the log takes of a request, in microseconds: the least of many times, so whatever else the machine does."""
    config = ModelConfig("m", max_batch_size=8, input=(ModelInput("A", FP32, (-1,)),))
    recorder = RequestRecorder(SystemClock(), b"key")
    alike = [InferenceRequest("m", form=RequestForm(), protocol="http")] * count
    inputs = [{"A": Tensor("A", FP32, (1, size), bytes(4 * size))} for size in range(1, count + 1)]
    now_ns = time.monotonic_ns()

    def note(form: RequestForm | None) -> None:
        for request, given in zip(alike, inputs, strict=True):
            request.form = form
            recorder.arrived(request, config, given if form is None else inputs[0], 1, now_ns)

    def least_us(what: object) -> float:
        return min(timeit.repeat(what, number=1, repeat=200)) * 1e6 / count  # type: ignore[arg-type]

    def note_alike(form: RequestForm = RequestForm()) -> None:  # noqa: B008
        note(form)
        recorder.take()

    def note_different() -> None:
        note(None)
        recorder.take()

    taken = {"noted, one like the other": least_us(note_alike), "noted, no two alike": least_us(note_different)}
    for name, form in (("encoded, one like the other", RequestForm()), ("encoded, no two alike", None)):
        note(form)
        waiting = recorder.take()
        taken[name] = least_us(lambda waiting=waiting: list(recorder.encode(waiting)))
    return taken


def measure(server: Server, rounds: int, seconds: float, transport: str) -> list[list[Window]]:
    body = payloads.infer_request(MODEL, *payloads.small_infer()) if transport == "http" else payloads.grpc_small(MODEL)

    @contextmanager
    def switched(on: bool) -> Iterator[None]:
        server.process.send_signal(signal.SIGUSR1 if on else signal.SIGUSR2)
        yield

    seen: list[list[Window]] = []
    for _ in range(rounds):
        with closed_loop(server, MODEL, body, CONCURRENCY, round_s(seconds), transport):
            seen.append(round_of_windows(server, MODEL, seconds, switched))
    return seen


if __name__ == "__main__":
    main()
