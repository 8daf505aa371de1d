"""A small repository with profiles, and a log, for plans in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from predicted_models import poisson
from some_profiles import some_profile

from trireme.engine.logs.request_log import LoggedRequest, RequestTraffic, write_request_log
from trireme.engine.profiles import HostPoint, ServicePoint, TimeDistribution

TENSORS = "".join(f'{kind} {{ name: "{kind}" data_type: TYPE_FP32 dims: [ 4 ] }}\n' for kind in ("input", "output"))
BATCHING = "dynamic_batching {\n  # wait a little\n  max_queue_delay_microseconds: 100\n}\n"


def write_planned_model(
    repository: Path,
    name: str = "m",
    *,
    row_s: float = 0.002,
    cores: float = 1.0,
    more: str = BATCHING,
    host: Sequence[HostPoint] = (),
) -> Path:
    """A model whose batches of at most 4 rows take 8 ms and so long a row; its `config.pbtxt`."""
    (repository / name / "1").mkdir(parents=True)
    path = repository / name / "config.pbtxt"
    text = f'# mine\nbackend: "python"\nmax_batch_size: 4 # four\n{TENSORS}instance_group [ {{ kind: KIND_CPU }} ]\n'
    path.write_text(text + more)
    service = tuple(ServicePoint(rows, 1, cores, TimeDistribution.constant(0.008 + row_s * rows)) for rows in (1, 2, 4))
    config = {"name": name, "backend": "python", "max_batch_size": 4}
    profile = some_profile(model=name, service=service, config=config, host=tuple(host))
    (repository / f"{name}.profile.json").write_text(profile.to_json())
    return path


def write_plan_log(path: Path, log: Sequence[LoggedRequest] = (), rate_hz: float = 150.0, count: int = 400) -> Path:
    """Requests to `m`, if no others are given."""
    path.write_text("".join(write_request_log(RequestTraffic(log or poisson(rate_hz, count)))))
    return path
