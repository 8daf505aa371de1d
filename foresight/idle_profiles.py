"""Measures a model on the server that serves it, while no client asks that server for anything.

Rules:
 1. Before each request the server must have been idle: between two looks at its statistics, `_IDLE_S` apart, nothing
    was executed. If something was, the measurement waits, longer each time, up to `_LONGEST_WAIT_S`.
 2. A request of so many rows is one batch. It counts only if the server has executed nothing else meanwhile; how long
    it took is by how much the model's own statistics have grown.
 3. Each request is followed by a pause, so that the measurement takes a fourth of an idle server's time at most.
 4. What traffic needs comes first: a point that does not get its samples within its time is left out.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..clients.player import play
from ..clients.prepared import RequestPreparer
from ..clients.target import LoadTarget
from ..engine.errors import InvalidArgumentError, UnavailableError
from ..engine.logs.request_log import LoggedRequest, RequestTraffic
from ..engine.profiles import ModelProfile, ServicePoint, StartTimes, TimeDistribution
from .models import ForeseenModels, completed_config, config_uses_gpus
from .profiling import origin_now
from .progress import Progress
from .recorded_profiles import executor_kind
from .service_times import MeasuringPlan, usual_sizes

LEAST_SAMPLES = 20
_WARM_UP = 3
_IDLE_S = 0.03
_LONGEST_WAIT_S = 2.0
_PHASES = ("compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class _Look:
    """The statistics at one moment.

    Attributes:
        executions: of all models.
        phases_ns: of the model that is measured, its three phases so far.
    """

    executions: int
    phases_ns: Sequence[int]


class IdleMeasurement:
    """Of one model.

    Args:
        target: where the server answers HTTP.
    """

    def __init__(self, target: LoadTarget, model: str) -> None:
        self._target = target
        self._model = model
        self._preparer = RequestPreparer(target)

    def points(self, sizes: Sequence[int], plan: MeasuringPlan, cores: float, progress: Progress) -> list[ServicePoint]:
        """What could be measured of these sizes.

        Raises:
            UnavailableError: the server does not answer, or was busy all the time.
            TriremeError: a request fails.
        """
        points = []
        for index, rows in enumerate(sizes):
            progress(f"{self._model}: {rows} rows, when the server is idle", index / len(sizes))
            samples = list(self._samples(rows, plan))
            if len(samples) >= LEAST_SAMPLES:
                points.append(_point(rows, samples, cores))
        if not points:
            raise UnavailableError(
                f"not {LEAST_SAMPLES} batches of '{self._model}' were measured in {plan.most_s:g} s: "
                "the server was busy or --most-secs, the time for a point, is too short"
            )
        return points

    def _samples(self, rows: int, plan: MeasuringPlan) -> Iterator[tuple[float, ...]]:
        """Seconds of the three phases, one batch after the other, until they are enough, or the time is over."""
        limit_s = time.monotonic() + plan.most_s
        took: list[float] = []
        wait_s = _IDLE_S
        while time.monotonic() < limit_s:
            before = self._look()
            time.sleep(_IDLE_S)
            if self._look() != before:
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            wait_s = _IDLE_S
            asked_s = self._ask(rows)
            after = self._look()
            if after.executions == before.executions + 1:
                phases = [(b - a) / 1e9 for a, b in zip(before.phases_ns, after.phases_ns, strict=True)]
                took.append(sum(phases))
                if len(took) > _WARM_UP:
                    yield tuple(phases)
                known = took[_WARM_UP:]
                if len(known) >= 2 * LEAST_SAMPLES and TimeDistribution.of(known).relative_error <= plan.error:
                    return
            time.sleep(3 * asked_s)

    def _ask(self, rows: int) -> float:
        """Ask once; the seconds until the answer."""
        traffic = RequestTraffic([LoggedRequest(0.0, self._model, rows=rows)])
        played = play(traffic, self._target, connections=1, maker=self._preparer).summary()
        if played.reasons:
            raise UnavailableError(f"a request to '{self._model}' failed: {played.reasons[0][0]}")
        return played.mean_s

    def _look(self) -> _Look:
        records = ask_server(self._target, "/v2/models/stats")["model_stats"]
        own = [record for record in records if record["name"] == self._model]
        if not own:
            raise InvalidArgumentError(f"the server at {self._target} does not serve '{self._model}'")
        phases = [sum(each[phase]["ns"] for record in own for each in record["batch_stats"]) for phase in _PHASES]
        return _Look(sum(record["execution_count"] for record in records), phases)


def idle_profile(
    name: str, models: ForeseenModels, target: LoadTarget, plan: MeasuringPlan, progress: Progress
) -> ModelProfile:
    """The profile of a model, measured on the server that serves it, from a repository of this machine.

    Raises:
        TriremeError: see `IdleMeasurement.points`; or the model is stateful, or answers more than once.
    """
    served = ask_server(target, f"/v2/models/{name}")
    versions = [int(each) for each in served.get("versions", ())]
    if not versions:
        raise InvalidArgumentError(
            f"the server at {target} does not serve '{name}': {served.get('error', 'no version')}"
        )
    config = completed_config(models, name, max(versions))
    if config.has_sequence_batching or config.decoupled:
        raise InvalidArgumentError(f"'{name}' is stateful or decoupled: profile it without --url")
    cores = 0.0 if config_uses_gpus(config) else 1.0
    sizes = plan.sizes or usual_sizes(config)
    return ModelProfile(
        model=name,
        version=max(versions),
        executor=executor_kind(config),
        config=ask_server(target, f"/v2/models/{name}/config"),
        service=tuple(IdleMeasurement(target, name).points(sizes, plan, cores, progress)),
        start=TimeDistribution.constant(0.0),
        notice=TimeDistribution.constant(0.0),
        host=(),
        starting=StartTimes(),
        origin=origin_now(models, name, config),
        recorded=True,
    )


def ask_server(target: LoadTarget, path: str) -> Any:
    """The JSON of a GET.

    Raises:
        UnavailableError: no server answers, or no JSON.
    """
    connection = http.client.HTTPConnection(target.host, target.port, timeout=30)
    try:
        connection.request("GET", path, headers=dict(target.headers()))
        return json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        remedy = "start one with: trireme serve --model-repository models; or name another with --url"
        raise UnavailableError(f"no server answers at {target}: {reason}\n  {remedy}") from error
    finally:
        connection.close()


def _point(rows: int, samples: Sequence[tuple[float, ...]], cores: float) -> ServicePoint:
    count = len(samples)
    copy_in_s, copy_out_s = (sum(sample[phase] for sample in samples) / count for phase in (0, 2))
    return ServicePoint(rows, 1, cores, TimeDistribution.of([sum(each) for each in samples]), copy_in_s, copy_out_s)
