"""A picture of rollouts, from a real run: `python benchmarks/rollout.py --output docs/bench` (docs/routes.md).

It serves a model of which version 2 is as good as version 1, version 3 answers 5 of 100 requests with an error, and
version 4 takes 1.5 times as long. Each becomes the canary of a route that Triton's clients ask over HTTP, over gRPC and
on a stream; its share, requests and errors are read from `/v2/routes` meanwhile. Exits with 1 if one ends as it should
not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from servers import trireme
from tritonclient.utils import InferenceServerException

MODEL = """
import random
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.fails = {"3": 0.05}.get(args["model_version"], 0.0)
        self.slower = {"4": 1.5}.get(args["model_version"], 1.0)

    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(self.slower * random.uniform(0.006, 0.02))
            error = pb_utils.TritonError("planted") if random.random() < self.fails else None
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given)], error))
        return responses
"""
CONFIG = """
backend: "python"
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU count: 12 }]
version_policy { all {} }
parameters { key: "EXECUTION" value { string_value: "in_process" } }
"""
STEPS = [5, 25, 50, 100]
CASES = {2: "as good as before", 3: "5 % of its requests fail", 4: "takes 1.5 times as long"}
SAMPLE_S = 0.1
AFTER_S = 1.0
CLIENTS = 4
"""Of each kind."""


@dataclass
class Course:
    """Of one rollout.

    Attributes:
        samples: seconds since it began, the canary's share in percent, its requests and its failures.
        changes: seconds, and state with reason.
    """

    title: str
    samples: list[tuple[float, float, int, int]] = field(default_factory=list)
    changes: list[tuple[float, str]] = field(default_factory=list)
    state: str = ""
    step: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(), help="folder for rollout.png, .svg and .json")
    parser.add_argument("--step-secs", type=float, default=3.0)
    parser.add_argument("--most-secs", type=float, default=90.0, help="for each rollout")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder))
        courses = record(folder, given.step_secs, given.most_secs)
    draw(courses, given.output)
    (given.output / "rollout.json").write_text(json.dumps([vars(each) for each in courses]))
    for course in courses:
        sys.stdout.write(f"{course.title}: {course.changes[-1]}\n")
    wanted = ["done", "back", "back"]
    return 0 if [each.state for each in courses] == wanted and all(each.step <= 1 for each in courses[1:]) else 1


def write_repository(folder: Path) -> None:
    for version in (1, *CASES):
        (folder / "m" / str(version)).mkdir(parents=True)
        (folder / "m" / str(version) / "model.py").write_text(MODEL)
    (folder / "m" / "config.pbtxt").write_text(CONFIG)


def record(folder: str, step_s: float, most_s: float) -> list[Course]:
    """The courses of all cases, one after the other, under load."""
    flags = ("--model-control-mode", "explicit", "--load-model", "m", "--front-ends", "0")
    with trireme(Path(folder), *flags, grpc=True) as server:
        routes = Routes(server.http_port)
        routes.ask("PUT", "r", {"targets": {"m:1": 100}})
        with Load(server.url, server.grpc_url):
            return [follow(routes, version, title, step_s, most_s) for version, title in CASES.items()]


class Routes:
    """Those of the server."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v2/routes/"

    def ask(self, method: str, name: str, document: object = None) -> Any:
        body = None if document is None else json.dumps(document).encode()
        with urllib.request.urlopen(urllib.request.Request(self._url + name, body, method=method)) as answer:
            return json.load(answer)


def follow(routes: Routes, version: int, title: str, step_s: float, most_s: float) -> Course:
    course = Course(title)
    target = f"m:{version}"
    canary = {"target": target, "steps": STEPS, "step-secs": step_s}
    routes.ask("PUT", "r", {"targets": {"m:1": 100, target: 0}, "canary": canary})
    began, ends = time.monotonic(), most_s
    while (now := time.monotonic() - began) < ends:
        state = routes.ask("GET", "r")["state"]
        shown = next(each for each in state["targets"] if each["target"] == target)
        course.samples.append((now, shown["share"], shown["requests"], shown["failures"]))
        rollout = state["rollout"]
        if (rollout["state"], rollout["step"]) != (course.state, course.step) and rollout["state"] != "waiting":
            if rollout["state"] in ("done", "back"):
                ends = min(ends, now + AFTER_S)
                course.step = course.step if rollout["state"] == "back" else rollout["step"]
            else:
                course.step = rollout["step"]
            if course.state != rollout["state"] or rollout["state"] == "step":
                course.changes.append((now, f"{rollout['state']}: {rollout['reason']}"))
            course.state = rollout["state"]
        time.sleep(SAMPLE_S)
    return course


class Load:
    """Clients of every kind that ask the route as long as the block lasts."""

    def __init__(self, http_url: str, grpc_url: str) -> None:
        self._stop = threading.Event()
        kinds = (partial(self._http, http_url), partial(self._grpc, grpc_url), partial(self._stream, grpc_url))
        self._threads = [threading.Thread(target=kind) for kind in kinds for _ in range(CLIENTS)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, ask: Callable[[], Any]) -> None:
        while not self._stop.is_set():
            try:
                ask()
            except InferenceServerException as error:
                if "planted" not in str(error):
                    raise

    def _http(self, url: str) -> None:
        with over_http.InferenceServerClient(url) as client:
            self._ask_on(partial(client.infer, "r", inputs(over_http)))

    def _grpc(self, url: str) -> None:
        with over_grpc.InferenceServerClient(url) as client:
            self._ask_on(partial(client.infer, "r", inputs(over_grpc)))

    def _stream(self, url: str) -> None:
        answers: Queue[Any] = Queue()
        with over_grpc.InferenceServerClient(url) as client:
            client.start_stream(lambda result, error: answers.put(error or result))

            def ask() -> None:
                client.async_stream_infer("r", inputs(over_grpc))
                found = answers.get()
                if isinstance(found, InferenceServerException):
                    raise found

            self._ask_on(ask)
            client.stop_stream()


def inputs(protocol: Any) -> list[Any]:
    return [protocol.InferInput("INPUT0", [1], "FP32").set_data_from_numpy(np.zeros(1, np.float32))]


def draw(courses: Sequence[Course], folder: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    handles: list[Any] = []
    figure, panels = pyplot.subplots(1, len(courses), figsize=(12, 3.6), layout="constrained")
    for panel, course in zip(panels, courses, strict=True):
        times, shares, requests, failures = zip(*course.samples, strict=True)
        panel.step(times, shares, where="post", color="#1f6f8b", label="share of the canary, %")
        panel.set(title=f"Canary: {course.title}", xlabel="seconds", ylim=(-4, 104), xlim=(0, times[-1]))
        panel.title.set_fontsize(10)
        other = panel.twinx()
        other.plot(times, np.subtract(requests, requests[0]), color="#999999", label="its requests")
        other.plot(times, np.subtract(failures, failures[0]), color="#c0392b", label="its failed requests")
        other.set_ylim(bottom=0)
        panel.set_zorder(other.get_zorder() + 1)
        panel.patch.set_visible(False)
        at, text = course.changes[-1]
        note = (
            f"{at:.1f} s\n{text.split(' was ')[0].split(',')[0]}" if course.state == "back" else f"{at:.1f} s\n{text}"
        )
        panel.annotate(note, (0.03, 0.86), xycoords="axes fraction", fontsize=7)
        handles = handles or [*panel.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        figure.savefig(folder / f"rollout.{kind}", dpi=110)


if __name__ == "__main__":
    sys.exit(main())
