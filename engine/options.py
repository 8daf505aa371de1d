"""The options that a server starts with: plain values, one field a flag (docs/reference/command-line.md#flags)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .backends.confinement import Confinement
from .gpu.discovery import MIN_COMPUTE_CAPABILITY, Gpu
from .gpu.pinned_pool import GpuLimits
from .host_policies import HostPolicy
from .scheduler_delays import SchedulerDelays
from .scheduling.rate_limiter import ExplicitResource
from .tensor_limits import DEFAULT_LIMITS, TensorLimits
from .tracing.settings import TraceConfig


class ControlMode(enum.Enum):
    """Who decides which models are loaded (docs/reference/model-control.md#control-modes)."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"
    ON_DEMAND = "on-demand"

    @property
    def takes_orders(self) -> bool:
        """Whether clients may load and unload models."""
        return self in (ControlMode.EXPLICIT, ControlMode.ON_DEMAND)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of an `InferenceServer`; the flag's name where it is not obvious.

    Attributes:
        model_repository: directories, and addresses of object stores (`repository.cloud.addresses`) as text.
        repository_cache_directory: where models of object stores are kept over restarts; None for a temporary place.
        repository_cache_bytes: of what is there, if it is not used; 0 for no limit.
        server_id: ``--id``, the server's name in metadata.
        exit_timeout_s: seconds that a graceful shutdown may take.
        auto_complete: False with ``--disable-auto-complete-config``.
        load_patience_s: how long a load may take before an unload, or a load of something newer, ends it; no flag.
        model_load_retry_count: how often to try again to load a version that could not be loaded.
        model_namespacing: models of equal names from different repositories are different models
            (docs/reference/model-control.md#namespaces).
        allow_code_upload: whether what comes with a load request may be code, or choose it.
        backend_directory: where Python-based backends are.
        backend_config: settings by backend name; those for every backend under the empty name.
        cache_config: settings of the response cache by its name; no more than one name.
        startup_models: ``--load-model``, in explicit and on-demand mode; ``*`` for all.
        model_memory_limit: bytes for all models in memory, in on-demand mode (docs/on_demand.md).
        model_pins: ``--model-pin``: models that do not leave memory to make room for others, in that mode.
        repository_poll_s: seconds between two looks at the repositories in poll mode; 0 for none.
        max_inflight_requests, max_inflight_bytes: server-wide budget of accepted, unanswered requests; at the bound,
            callers wait.
        address_share: ``--max-address-share``, as a part of one: of what arrives, or waits to be read, for one address.
        poll_s: seconds for which the event loop may poll before it sleeps (`polling`); 0 for not at all.
        hang_limit_s: an instance whose batch takes longer is given up and replaced, unless its model has a limit of its
            own (`execution_limit_s`); 0 for no limit.
        watchdog_limit_s: an event loop that is held up for longer makes the server not ready for a while; 0 turns the
            watchdog off.
        restart_limit, restart_window_s: an instance that dies is started again after a growing delay. When it has died
            more often than this without being up for that long, and no other is alive, queued requests are refused.
        rate_limit: whether instances share resources, as their groups say (``--rate-limit=execution_count``).
        summary_latencies, histogram_latencies: ``--metrics-config``: which distributions of latencies are kept.
        rate_limit_resources: what there is of them; if nothing is said, as much as the most demanding instance needs.
        gpus: the GPUs that there are; None for those of the machine.
        min_compute_capability: ``--min-supported-compute-capability``: GPUs that can do less are not used.
        confinement: ``--python-user``, ``--python-memory-limit``: what the processes of Python models may do.
        host_policies: ``--host-policy``, by name: where instances run.
        scheduler_delays: a test aid, from the environment: how many requests schedulers wait for.
        tracing: ``--trace-config``: which requests are traced, and where traces go.
    """

    model_repository: tuple[Path | str, ...] = ()
    repository_cache_directory: Path | None = None
    repository_cache_bytes: int = 0
    server_id: str = "triton"
    exit_timeout_s: float = 30.0
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete: bool = True
    model_control_mode: ControlMode = ControlMode.NONE
    startup_models: tuple[str, ...] = ()
    model_memory_limit: int = 0
    model_pins: tuple[str, ...] = ()
    repository_poll_s: float = 0.0
    model_config_name: str = ""
    model_load_thread_count: int = 4
    load_patience_s: float = 5.0
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    allow_code_upload: bool = True
    backend_directory: Path | None = None
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cache_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    max_inflight_requests: int = 65_536
    max_inflight_bytes: int = 4 << 30
    address_share: float = 0.5
    tensor_limits: TensorLimits = DEFAULT_LIMITS
    poll_s: float = 0.0
    hang_limit_s: float = 300.0
    watchdog_limit_s: float = 0.0
    restart_limit: int = 5
    restart_window_s: float = 60.0
    summary_latencies: bool = False
    histogram_latencies: bool = False
    rate_limit: bool = False
    rate_limit_resources: tuple[ExplicitResource, ...] = ()
    gpus: tuple[Gpu, ...] | None = None
    min_compute_capability: float = MIN_COMPUTE_CAPABILITY
    gpu_limits: GpuLimits = field(default_factory=GpuLimits)
    confinement: Confinement = field(default_factory=Confinement)
    host_policies: Mapping[str, HostPolicy] = field(default_factory=dict)
    scheduler_delays: SchedulerDelays = field(default_factory=SchedulerDelays)
    tracing: TraceConfig = field(default_factory=TraceConfig)

    def options_for_backend(self, backend: str) -> dict[str, str]:
        """Settings for a backend: the global ones, overlaid by its own."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(backend, {})}
