"""Write the Grafana dashboard, the rules for Prometheus, and how its adapter shows a metric to Kubernetes.

    python deploy/monitoring/make_files.py [--check]

They are made of `panels.py`, whose metrics must be families of the server's own registry: a family that is renamed, or
gone, fails here. With --check nothing is written; the exit code is 1 if something else would be.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio
import yaml
from panels import ALERTS, QUEUE_SECONDS, RECORDED, ROWS, Panel

from trireme.actors import InferenceServer
from trireme.api.metrics.collector import ServerCollector
from trireme.engine.metrics.families import CpuReading, HostReadings
from trireme.engine.options import ServerOptions
from trireme.engine.repository.source import Scan

FILES = Path(__file__).parents[1] / "helm" / "trireme" / "files"

_NAME = re.compile(r"\b(?:nv|trireme)_[a-z0-9_]+")
_PARTS = ("_count", "_sum", "_bucket")
_MADE = "# Made by deploy/monitoring/make_files.py of deploy/monitoring/panels.py.\n"
_WIDTH, _HEIGHT, _IN_A_ROW = 6, 8, 4


class _NoModels:
    def scan(self) -> Scan:
        return Scan(())


def _host() -> HostReadings:
    return HostReadings(cpu=CpuReading())


def families() -> frozenset[str]:
    """The names of all families that a server without plug-ins can print."""
    names: list[str] = []

    async def collect() -> None:
        async with InferenceServer(ServerOptions(watchdog_limit_s=10.0), source=_NoModels()) as server:
            names.extend(family.name for family in ServerCollector(server, _host).collect())

    trio.run(collect)
    return frozenset(names)


def used() -> Iterator[str]:
    """Every name of a metric that the files have."""
    expressions = [line for _, panels in ROWS for panel in panels for _, line in panel.lines]
    expressions += [expression for _, expression in RECORDED] + [alert.expression for alert in ALERTS]
    for expression in expressions:
        yield from _NAME.findall(expression)


def unknown() -> list[str]:
    """Names of metrics that no server has."""
    known = families() | {name for name, _ in RECORDED}
    return sorted({name for name in used() if name not in known and _family(name) not in known})


def _family(name: str) -> str:
    return next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)


def dashboard() -> dict[str, Any]:
    """For Grafana 10 and later."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}, "panels": []})
        top += 1
        for index, panel in enumerate(row):
            x, y = index % _IN_A_ROW * _WIDTH, top + index // _IN_A_ROW * _HEIGHT
            panels.append(_graph(panel, {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}))
        top += -(-len(row) // _IN_A_ROW) * _HEIGHT
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
    return {
        "uid": "trireme",
        "title": "Trireme",
        "tags": ["trireme"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"},
                _variable("job", "label_values(trireme_inflight_requests, job)"),
                _variable("model", 'label_values(nv_inference_request_success{job=~"$job"}, model)'),
            ]
        },
        "panels": panels,
    }


def _graph(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [
        {"refId": chr(ord("A") + index), "datasource": source, "expr": expression, "legendFormat": legend}
        for index, (legend, expression) in enumerate(panel.lines)
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "name": name,
        "type": "query",
        "datasource": source,
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def rules() -> dict[str, Any]:
    """Recorded series and alerts, as Prometheus reads them."""
    recorded = [{"record": name, "expr": expression} for name, expression in RECORDED]
    alerts = [
        {
            "alert": each.name,
            "expr": each.expression,
            "for": each.lasting,
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary},
        }
        for each in ALERTS
    ]
    return {"groups": [{"name": "trireme-recorded", "rules": recorded}, {"name": "trireme", "rules": alerts}]}


def adapter() -> dict[str, Any]:
    """Values of the chart of prometheus-adapter: the metric that the autoscaler reads, of each pod."""
    resources = {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}}
    query = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
    rule = {"seriesQuery": QUEUE_SECONDS, "resources": resources, "metricsQuery": query}
    return {"rules": {"custom": [rule]}}


def contents() -> dict[str, str]:
    """The files, by name."""
    return {
        "dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
        "rules.yaml": _MADE + yaml.safe_dump(rules(), sort_keys=False, width=100),
        "prometheus-adapter.yaml": _MADE + yaml.safe_dump(adapter(), sort_keys=False, width=100),
    }


def main(words: list[str]) -> int:
    """Returns the exit code."""
    strange = unknown()
    if strange:
        sys.stderr.write(f"no server has these metrics: {', '.join(strange)}\n")
        return 1
    stale = [name for name, text in contents().items() if not _same(FILES / name, text)]
    if words == ["--check"]:
        for name in stale:
            sys.stderr.write(f"{FILES / name} is not what deploy/monitoring/make_files.py makes\n")
        return int(bool(stale))
    for name, text in contents().items():
        (FILES / name).write_text(text)
    return 0


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
