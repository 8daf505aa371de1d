"""What requests for generated text cost a server, measured on `trireme serve` in a process of its own.

Rules:
 1. Clients in a closed loop ask for texts of one token, and of many: the difference is what an answer costs the event
    loop, by the processor time of its thread; what is left of a text of one token is the request's own.
 2. One client asks for those of one token: what its answer takes beyond the server's own time is outside of it.
 3. While the event loop works, steps take longer: caches, the interpreter's lock. By how much of it, tells the time
    between the tokens of several clients' texts beside what such steps take alone.
 4. At last texts come at random times (`busy_texts`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..clients.player import LoadClient
from ..engine.errors import UnavailableError
from ..engine.logs.request_log import LoggedLoop, LoggedRequest, RequestTraffic, read_request_log
from ..engine.logs.request_summary import token_facts
from ..engine.options import ServerOptions
from ..engine.profiles import HostPoint, TimeDistribution, Way
from ..engine.profiles.generation import GenerationProfile, StepLoad
from .busy_texts import MeasuredTexts, random_texts
from .served_models import ServedModels
from .service_times import MeasuredModel

_CLIENTS = 8
_PROMPT, _NEW = 16, 32
_MOST_HELD_UP = 3.0
_OPEN_PART = 4.0
"""Of what each way may take, the load at random times, about."""
_FLUSHED_S = 30.0
"""How long to wait at most until the server has written its log."""


def measure_step_costs(
    measured: MeasuredModel,
    generation: GenerationProfile,
    options: ServerOptions,
    ways: Sequence[Way],
    most_s: float,
) -> list[MeasuredTexts]:
    """What requests cost, by each way that can carry many answers; of others nothing is told.

    Args:
        most_s: seconds that each way may take, about.

    Raises:
        UnavailableError: the server does not start, a request fails, or the kernel does not tell what a thread uses.
    """
    name = measured.config.name
    ways = [way for way in ways if way in (Way.HTTP, Way.STREAM)] or [Way.HTTP]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        flags = ("--model-control-mode", "explicit", "--load-model", name)
        logged = ("--request-log", str(log), "--request-log-results", "true")
        with ServedModels(options, (*flags, *logged)) as server:
            served = _Served(server, name, log, generation)
            texts = random_texts(name, generation, measured.config, _OPEN_PART * most_s)
            found: list[MeasuredTexts] = []
            for way in ways:
                with LoadClient(server.target(way), _CLIENTS) as client:
                    point = _point(served, client, way, most_s)
                    found.append(MeasuredTexts(point, served.play(client, RequestTraffic(texts))[-1]))
            return found


class _Served:
    """A server, and what it logs."""

    def __init__(self, server: ServedModels, name: str, log: Path, generation: GenerationProfile) -> None:
        self.name, self.generation = name, generation
        self._server, self._log = server, log
        self._asked = 0
        self.prompt = min(_PROMPT, max(1, generation.context // 2))
        self.new = max(2, min(_NEW, generation.context - self.prompt))

    def load(
        self, client: LoadClient, clients: int, new: int, count: int
    ) -> tuple[float, np.ndarray, Sequence[LoggedRequest]]:
        """So many requests for so many tokens each: the event loop's seconds for each, latencies, and what the server
        has logged of them."""
        request = LoggedRequest(0.0, self.name, prompt_tokens=self.prompt, max_tokens=new, generated_tokens=new)
        loop_s, latency_s, logged = self.play(client, RequestTraffic([request] * count, LoggedLoop(clients)))
        return loop_s / count, latency_s, logged

    def play(self, client: LoadClient, traffic: RequestTraffic) -> tuple[float, np.ndarray, Sequence[LoggedRequest]]:
        """Traffic: the event loop's seconds for all of it, latencies, and what the server has logged of it."""
        before_s = self._server.loop_s()
        played = client.play(traffic)
        loop_s = self._server.loop_s() - before_s
        wrong = played.summary().reasons
        if wrong:
            raise UnavailableError(f"requests to '{self.name}' failed: {wrong[0][0]}")
        self._asked += len(traffic.requests)
        return loop_s, played.latency_s, self._logged(len(traffic.requests))

    def _logged(self, count: int) -> Sequence[LoggedRequest]:
        limit_s = time.monotonic() + _FLUSHED_S
        found: Sequence[LoggedRequest] = ()
        while time.monotonic() < limit_s:
            lines = self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []
            found = read_request_log(lines)
            if len(found) >= self._asked:
                return found[-count:]
            time.sleep(0.05)
        raise UnavailableError(f"the server has logged {len(found)} of {self._asked} requests")


def _point(served: _Served, client: LoadClient, way: Way, most_s: float) -> HostPoint:
    step_s = served.generation.fit.seconds(StepLoad(0, 0, 1, served.prompt))
    served.load(client, 1, 1, 3)
    served.load(client, _CLIENTS, 1, _CLIENTS)  # on each connection
    one = round(min(max(most_s / 4 / step_s, 5), 100))
    single_s, latencies, logged = served.load(client, 1, 1, one)
    own = [each.result.total_us / 1e6 for each in logged if each.result is not None]
    outside_s = max(0.0, float(np.median(latencies)) - float(np.median(own)))
    short_s, _, _ = served.load(client, _CLIENTS, 1, 4 * _CLIENTS)
    texts = round(min(max(most_s / 2 / (step_s * served.new), 2), 8)) * _CLIENTS
    long_s, _, logged = served.load(client, _CLIENTS, served.new, texts)
    answer_s = max(0.0, long_s - short_s) / (served.new - 1)
    request_s = max(0.0, min(single_s, short_s) - answer_s)
    held_up = _held_up(served, logged, answer_s)
    nbytes = 8 * served.prompt
    outside = TimeDistribution.constant(outside_s)
    return HostPoint(way, nbytes, 0, request_s, 0.0, outside, answer_s=answer_s, held_up=held_up)


def _held_up(served: _Served, logged: Sequence[LoggedRequest], answer_s: float) -> float:
    """Rule 3."""
    facts = token_facts(logged)
    if facts is None or not facts.step_texts or not answer_s:
        return 0.0
    texts = facts.step_texts
    load = StepLoad(0, 0, texts, texts * (served.prompt + served.new / 2))
    alone_s = served.generation.fit.seconds(load) * served.generation.ratios.quantile(0.5)
    more_s = facts.between_us[0] / 1e6 - alone_s
    return min(max(0.0, more_s / (answer_s * texts)), _MOST_HELD_UP)
