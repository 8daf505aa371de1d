"""Adaptive batching against fixed settings, for real: what of an open-loop load is answered in time.

    python benchmarks/adaptive_real.py [--seconds 3.5] [--settings 5] [--again 2] [--only NAME] [--slack-ms 5]

Plays the five workloads of `adaptive.py` against `trireme serve`, with times twice as long: an objective of 200 ms, up
to 400 rows a second in batches of 32. Models are in Python and sleep as long as a batch costs; where two models share a
core, they use its processor time instead, both bound to the same core. All 100 fixed settings, for as long as this on
five workloads, would take half an hour. So they are played in virtual time first, on the very same arrivals, and the
`--settings` best and as many that are spread evenly over the rest are measured for real. The best of several is partly
the luckiest. So what is compared is measured anew: `--again` times, by turns, the setting that was the best and the
objective, each time by a server that has just been started, with other noise.

Each setting is a model of its own and is sent the same plan over HTTP, whether requests are answered or not. Latency
counts from when a request was to be sent. In time is what the client has within the objective and `--slack-ms`, which
is for all that is neither queue nor execution; what is unanswered then is given up and counts as late. Fixed settings
may use the slack for their queues, too, of which the objective knows nothing: it should be no more than it takes.
It exits with 1 if the adaptive batcher's goodput is more than 3 % below the best setting's on any workload.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from adaptive import ALLOWED_LOSS, MOST_ROWS, OBJECTIVE_S, SETTINGS, Setting, Workload, adaptive, play, workloads
from servers import Server, model_config, trireme

SCALE = 2.0
"""Seconds for a second of virtual time."""

ROWS_PER_S = (500, 440, 400, 300, 2_400)
"""That come in each of the five workloads, in virtual time."""

STEP_S = 0.01
"""Of virtual time: as often costs are tabulated."""

COST = '''"""Takes as long as costs.json says: seconds by time since the first request and by rows."""

import json
import os
import random
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        costs = json.loads((Path(__file__).parent / "costs.json").read_text())
        self.seconds, self.step_s, self.noise = costs["seconds"], costs["step_s"], costs["noise"]
        self.shares_core, self.began_s, self.chance = costs["shares_core"], None, random.Random(costs["seed"])
        if self.shares_core:
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    def execute(self, requests):
        now_s = time.monotonic()
        if self.began_s is None:
            self.began_s = now_s
        row = self.seconds[min(int((now_s - self.began_s) / self.step_s), len(self.seconds) - 1)]
        takes_s = row[len(requests)] * self.chance.lognormvariate(0, self.noise)
        if self.shares_core:
            until_s = time.thread_time() + takes_s
            while time.thread_time() < until_s:
                pass
        else:
            time.sleep(takes_s)
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.as_numpy())]) for each in inputs]
'''

_TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [_TENSOR]}).encode()


@dataclass
class Outcome:
    """What became of the requests of a load: the latencies of those that were executed before it was given up."""

    sent: int = 0
    latencies_s: list[float] = field(default_factory=list)
    refused: int = 0
    failed: int = 0

    def in_time(self, within_s: float) -> int:
        return sum(latency_s <= within_s for latency_s in self.latencies_s)


class Client:
    """Sends requests to one model, each on a connection that is free."""

    def __init__(self, port: int, model: str, outcome: Outcome, connections: trio.CapacityLimiter) -> None:
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
        self._request = head.encode() + BODY
        self._port = port
        self._free: list[trio.SocketStream] = []
        self._connections = connections
        self._outcome = outcome

    async def ask(self, at_s: float) -> None:
        """One request, which was to be sent at `at_s`."""
        async with self._connections:
            stream = self._free.pop() if self._free else await trio.open_tcp_stream("127.0.0.1", self._port)
            try:
                await stream.send_all(self._request)
                status = await self._answer(stream)
            except BaseException:
                stream.socket.close()  # the server gives the request up
                raise
            self._free.append(stream)
        if status == 200:
            self._outcome.latencies_s.append(trio.current_time() - at_s)
        elif status == 503:
            self._outcome.refused += 1
        else:
            self._outcome.failed += 1

    async def _answer(self, stream: trio.SocketStream) -> int:
        """Read one answer, and give back its status."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += await stream.receive_some()
        head, _, body = received.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
        missing = int(fields[b"content-length"]) - len(body)
        while missing > 0:
            missing -= len(await stream.receive_some())
        return int(head.split(b" ", 2)[1])

    async def close(self) -> None:
        for stream in self._free:
            await stream.aclose()


async def load(port: int, models: Sequence[str], arrivals: Sequence[Sequence[float]], within_s: float) -> Outcome:
    """Send each model its requests at their times, in seconds; what is not answered in time at the end is given up."""
    outcome = Outcome()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 64
    connections = trio.CapacityLimiter(most)
    clients = [Client(port, model, outcome, connections) for model in models]
    plan = sorted((at_s, number) for number, times in enumerate(arrivals) for at_s in times)
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for at_s, number in plan:
            await trio.sleep_until(began_s + at_s)
            outcome.sent += 1
            nursery.start_soon(clients[number].ask, began_s + at_s)
        await trio.sleep(within_s)
        nursery.cancel_scope.cancel()
    for client in clients:
        await client.close()
    return outcome


def config(name: str, setting: Setting | None) -> str:
    """config.pbtxt of a model with a fixed setting, or with the objective."""
    tensor = ("FP32", (4,))
    text = model_config(name, "python", setting.size if setting else MOST_ROWS, {"INPUT0": tensor}, {"OUTPUT0": tensor})
    if setting is None:
        value = f'value {{ string_value: "{OBJECTIVE_S * SCALE * 1e3:g}" }}'
        return f'{text}dynamic_batching {{ }}\nparameters {{ key: "LATENCY_OBJECTIVE_MS" {value} }}\n'
    policy = f"default_queue_policy {{ max_queue_size: {setting.limit} }}"
    delay_us = round(setting.delay_s * SCALE * 1e6)
    fields = f"preferred_batch_size: [ {setting.size} ] max_queue_delay_microseconds: {delay_us} {policy}"
    return f"{text}dynamic_batching {{ {fields} }}\n"


def costs(workload: Workload, model: int, seed: int) -> str:
    """costs.json of one of its models, until the last request has come; later it stays. `seed`: of the noise."""
    cost = workload.costs[model]
    steps = int(max(times[-1] for times in workload.arrivals) / STEP_S) + 2
    seconds = [[cost(rows, step * STEP_S) * SCALE for rows in range(MOST_ROWS + 1)] for step in range(steps)]
    how = {"noise": workload.noise, "shares_core": workload.shares_core, "seed": seed}
    return json.dumps({"seconds": seconds, "step_s": STEP_S * SCALE, **how})


@contextmanager
def serving(workload: Workload, settings: Sequence[Setting | None], seed: int) -> Iterator[Server]:
    """A server with the models of each setting; they are named by `model_names`."""
    with tempfile.TemporaryDirectory() as directory:
        for number, setting in enumerate(settings):
            for model, name in enumerate(model_names(workload, number)):
                version = Path(directory) / name / "1"
                version.mkdir(parents=True)
                (version / "model.py").write_text(COST)
                (version / "costs.json").write_text(costs(workload, model, seed))
                (version.parent / "config.pbtxt").write_text(config(name, setting))
        with trireme(Path(directory)) as server:
            yield server


def model_names(workload: Workload, number: int) -> list[str]:
    return [f"setting_{number}_{model}" for model in range(len(workload.costs))]


def chosen(workload: Workload, number: int) -> list[Setting]:
    """The best settings in virtual time, and as many of the others, spread evenly by how good they are."""
    sums = {setting: play(workload, setting.core, 0).in_time for setting in SETTINGS}
    ranked = sorted(SETTINGS, key=sums.__getitem__, reverse=True)
    step = max(1, (len(ranked) - number) // max(1, number))
    return [*ranked[:number], *ranked[number:][step // 2 :: step][:number]]


def measure(workload: Workload, settings: Sequence[Setting | None], within_s: float, seed: int) -> list[Outcome]:
    """Of each setting, on a server of their own."""
    arrivals = [[at_s * SCALE for at_s in times] for times in workload.arrivals]
    with serving(workload, settings, seed) as server:
        outcomes = [
            trio.run(load, server.http_port, model_names(workload, place), arrivals, within_s)
            for place in range(len(settings))
        ]
    failed = sum(outcome.failed for outcome in outcomes)
    if failed:
        raise SystemExit(f"{workload.name}: {failed} requests failed")
    return outcomes


def compare(workload: Workload, options: argparse.Namespace) -> float:
    """Measure the objective and the settings, print a row, and give back the ratio of their goodputs."""
    within_s = OBJECTIVE_S * SCALE + options.slack_ms / 1e3
    settings: list[Setting | None] = [None, *chosen(workload, options.settings)]
    first = measure(workload, settings, within_s, 0)
    if options.verbose:
        for setting, outcome in zip(settings, first, strict=True):
            print(f"    {setting or 'objective'}: {outcome.in_time(within_s) / max(1, outcome.sent):.1%}")
    place = max(range(1, len(settings)), key=lambda place: first[place].in_time(within_s))
    best = settings[place]
    ours, theirs = [first[0]], [first[place]]
    for seed in range(1, options.again + 1):
        pair: list[Setting | None] = [None, best] if seed % 2 else [best, None]
        outcomes = measure(workload, pair, within_s, seed)
        ours.append(outcomes[pair.index(None)])
        theirs.append(outcomes[pair.index(best)])
    if options.again:  # what the best one was chosen by does not count
        del ours[0], theirs[0]
    requests = max(1, sum(outcome.sent for outcome in ours))
    mine, its = (sum(outcome.in_time(within_s) for outcome in outcomes) / requests for outcomes in (ours, theirs))
    refused = sum(outcome.refused for outcome in ours) / requests
    if options.verbose:
        for slack_s in (0.0, 0.002, 0.005, 0.01, 0.02):
            counts = [sum(each.in_time(OBJECTIVE_S * SCALE + slack_s) for each in runs) for runs in (ours, theirs)]
            print(f"    with a slack of {slack_s * 1e3:g} ms: {counts[0] / max(1, counts[1]):.3f}")
    seeds = range(1, options.again + 1) or [0]
    virtual = sum(play(workload, adaptive, seed).in_time for seed in seeds) / workload.requests / len(seeds)
    ratio = mine / max(1e-9, its)
    print(
        f"| {workload.name} | {requests} | {mine:.1%} | {its:.1%} | {ratio:.3f} | {1 - mine - refused:.1%} | "
        f"{refused:.1%} | {virtual:.1%} | {best} |",
        flush=True,
    )
    return ratio


def plans(seconds: float) -> list[Workload]:
    """The five workloads, each with arrivals for about so many seconds of real time."""
    counts = [round(rows_per_s * seconds / SCALE) for rows_per_s in ROWS_PER_S]
    return [workloads(count, 0)[number] for number, count in enumerate(counts)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Adaptive batching beside fixed settings, in real time.")
    parser.add_argument("--seconds", type=float, default=3.5, help="of each load")
    parser.add_argument("--settings", type=int, default=5, help="so many of the best, and of the others")
    parser.add_argument("--only", default="", help="only workloads whose name begins so")
    parser.add_argument("--again", type=int, default=2, help="so many fresh runs of what is compared")
    parser.add_argument("--slack-ms", type=float, default=5.0, help="of the client, beyond the objective")
    parser.add_argument("--verbose", action="store_true", help="print all settings, and what other slacks give, too")
    options = parser.parse_args()
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(least, min(most, 16_384)), most))
    print(
        "| workload | sent | adaptive | best fixed | ratio | late | refused | adaptive in virtual time | the best |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    played = [each for each in plans(options.seconds) if each.name.startswith(options.only)]
    ratios = [compare(each, options) for each in played]
    sys.exit(min(ratios, default=1.0) < 1 - ALLOWED_LOSS)


if __name__ == "__main__":
    main()
