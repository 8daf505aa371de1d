"""`trireme explain MODEL`: why the batches of a model of a running server are as large as they are, and why its
requests were refused, in words; from its configuration, its statistics and its metrics, looked at twice."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote

from ..clients.target import LoadProtocol, LoadTarget
from ..engine.errors import NotFoundError, UnavailableError
from ..engine.metrics.batching_reasons import BatchingCounts, explain_batching, settings_of
from ..engine.metrics.page import MetricValues, read_metrics
from .idle_profiles import ask_server

METRICS_PORT = 8002
_PARTS = (
    ("queue", "in the queue"),
    ("compute_input", "gathering inputs"),
    ("compute_infer", "in the model"),
    ("compute_output", "handing out outputs"),
)


@dataclass(frozen=True, slots=True)
class LiveModel:
    """Which model of which server is looked at.

    Args:
        version: as in the server's paths; empty for the latest.
    """

    name: str
    version: str
    http: LoadTarget
    metrics: LoadTarget

    def ask(self, path: str = "") -> Any:
        """The answer to a GET about the model.

        Raises:
            NotFoundError: there is no such model.
            UnavailableError: no server answers.
        """
        version = f"/versions/{self.version}" if self.version else ""
        answer = ask_server(self.http, f"/v2/models/{quote(self.name, safe='')}{version}{path}")
        if isinstance(answer, dict) and "error" in answer:
            raise NotFoundError(f"{self.http}: {answer['error']}{self._alike()}")
        return answer

    def _alike(self) -> str:
        """What models there are with such a name, or with any."""
        answer = ask_server(self.http, "/v2/models/stats")
        names = sorted({each["name"] for each in answer.get("model_stats", ())})
        found = get_close_matches(self.name, names, n=2, cutoff=0.5) or names[:5]
        return f"\n  did you mean: {' or '.join(found)}?" if found else ""


def live_model(name: str, url: str, metrics_url: str, api_key: str) -> LiveModel:
    """
    Args:
        name: of the model; ``NAME:VERSION`` for one version.
        metrics_url: empty for port 8002 of the same host.

    Raises:
        InvalidArgumentError: an address is none.
    """
    http_target = LoadTarget.of(url, LoadProtocol.HTTP, api_key)
    if metrics_url:
        metrics = LoadTarget.of(metrics_url, LoadProtocol.HTTP, api_key)
    else:
        metrics = replace(http_target, port=METRICS_PORT)
    model, colon, version = name.rpartition(":")
    return LiveModel(*((model, version) if colon and version.isdigit() else (name, "")), http_target, metrics)


def explain_live(model: LiveModel, seconds: float) -> Iterator[str]:
    """The lines.

    Args:
        seconds: how long to look; 0: what was counted since the model was loaded.

    Raises:
        NotFoundError: there is no such model.
        UnavailableError: no server answers.
    """
    settings = settings_of(model.ask("/config"))
    before = {} if not seconds else _look(model)
    if seconds:
        time.sleep(seconds)
    for version, (counts, statistics) in _look(model).items():
        earlier, old = before.get(version, (BatchingCounts(), {}))
        when = f"in the last {seconds:g} s" if seconds else "since it was loaded"
        yield f"{model.name}, version {version}"
        yield from (f"  {line}" for line in explain_batching(counts.since(earlier), settings, when))
        yield from (f"  {line}" for line in _times(old, statistics))


def _look(model: LiveModel) -> Mapping[str, tuple[BatchingCounts, Mapping[str, Any]]]:
    """By version, what was counted."""
    records = [each for each in model.ask("/stats")["model_stats"] if each["name"] == model.name]
    values = read_metrics(_page(model.metrics))
    return {each["version"]: (_counts(each, values), each["inference_stats"]) for each in records}


def _counts(record: Mapping[str, Any], values: MetricValues) -> BatchingCounts:
    about = {("model", record["name"]), ("version", record["version"])}

    def by_reason(family: str) -> dict[str, int]:
        series = ((dict(labels), value) for (name, labels), value in values.items() if name == family)
        found = [(labels, value) for labels, value in series if about <= labels.items()]
        return {labels["reason"]: int(value) for labels, value in found if value}

    return BatchingCounts(
        record["execution_count"],
        record["inference_count"],
        by_reason("trireme_batch_sealed_count"),
        by_reason("trireme_batch_single_row_count"),
        by_reason("trireme_refused_total"),
    )


def _times(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Where the time of the requests in between went."""

    def grown(part: str, what: str) -> int:
        return new.get(part, {}).get(what, 0) - old.get(part, {}).get(what, 0)

    count = grown("success", "count")
    if count <= 0:
        return
    parts = ", ".join(f"{grown(part, 'ns') / count / 1e6:.3g} ms {words}" for part, words in _PARTS)
    yield f"On average a request took {grown('success', 'ns') / count / 1e6:.3g} ms: {parts}."


def _page(target: LoadTarget) -> str:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=30)
    try:
        connection.request("GET", "/metrics", headers=dict(target.headers()))
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(f"no metrics at {target}: {reason}; name their address with --metrics-url") from error
    finally:
        connection.close()
    if response.status != 200:
        raise UnavailableError(f"no metrics at {target}: status {response.status} {text[:200]}")
    return text
