"""From flag values to what `serve` needs: plain values, checked against each other
(docs/reference/command-line.md#flags)."""

from __future__ import annotations

import ipaddress
import math
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...actors.request_log import RequestLogSettings
from ...engine.backends.confinement import Confinement, find_account
from ...engine.errors import InvalidArgumentError
from ...engine.front_end_count import front_end_count
from ...engine.gpu.discovery import Gpus
from ...engine.gpu.pinned_pool import GpuLimits
from ...engine.host_policies import HostPolicy, machine_nodes, process_cores, read_host_policies
from ...engine.metrics.page import DEFAULT_QUANTILES
from ...engine.options import ControlMode, ServerOptions
from ...engine.repository.cloud.addresses import is_store_address
from ...engine.scheduler_delays import SchedulerDelays
from ...engine.tensor_limits import TensorLimits
from ..console.guard import ConsoleMode
from ..grpc.compression import CompressionLevel
from ..grpc.options import GrpcOptions, GrpcServiceOptions, read_delays
from ..http2.limits import Http2Limits, KeepaliveOptions
from ..logging import LogSettings, escape_wanted
from ..sockets.limits import Limits
from ..sockets.service import ServiceOptions
from .access import AccessSettings, access_settings
from .cloud_flags import (
    SageMakerSettings,
    VertexAiSettings,
    bind,
    repositories_of,
    sagemaker_settings,
    vertex_ai_settings,
    with_platform_defaults,
)
from .control_flags import check_control_mode, served_apps
from .cores import poll_us, usable_cores
from .flags import ParsedFlags, UsageError
from .http_flags import HttpSettings, http_limits, http_options, http_settings, openai_settings, tls_options
from .ports import check_ports
from .request_logging import request_log_settings
from .trace_flags import check_trace_settings, trace_config, trace_warnings
from .values import INT32_MAX, BadValueError, read_quantile

if TYPE_CHECKING:
    from .app_serving import AppSettings


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What the metrics endpoint is told: which families there are, how often readings are taken (twice in each
    interval), what ``--metrics-config`` says, and what the console may do."""

    service: ServiceOptions
    cpu: bool
    gpu: bool
    interval_s: float
    counter_latencies: bool
    quantiles: tuple[float, ...]
    console: ConsoleMode


class GrpcSettings(NamedTuple):
    """What the gRPC front end is told."""

    service: GrpcServiceOptions
    options: GrpcOptions


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """A whole `trireme serve` command line. What is not wanted there is None; `front_ends` is the number of processes
    that serve HTTP and gRPC, 0 if the server does; `drain_s` says how long the server drains, by signal; `deprecations`
    are lines for stderr before anything else, `warnings` what to log about flags that have no effect."""

    server: ServerOptions
    log: LogSettings
    http: HttpSettings | None
    grpc: GrpcSettings | None
    openai: HttpSettings | None
    sagemaker: SageMakerSettings | None
    vertex_ai: VertexAiSettings | None
    metrics: MetricsSettings | None
    request_log: RequestLogSettings | None
    access: AccessSettings | None
    routes: Path | None
    front_ends: int
    drain_s: Mapping[int, float]
    apps: AppSettings | None
    deprecations: tuple[str, ...]
    warnings: tuple[str, ...]


def build_command(flags: ParsedFlags, environment: Mapping[str, str]) -> ServeCommand:
    """Check the flags against each other and group their values. UsageError if two of them contradict each other, or
    this version cannot do what one of them makes sure of."""
    flags = with_platform_defaults(flags, environment)
    _check_restrictions(flags)
    check_control_mode(flags)
    _check_combinations(flags)
    check_ports(flags)
    for flag in flags.without_effect():
        if not flag.tolerated:
            raise UsageError(f"Error: --{flag.name} cannot be used in this version: {flag.missing}.")
    _check_metrics(flags)
    check_trace_settings(flags)
    serves = flags["allow-http"] or flags["allow-grpc"]
    if flags["front-ends"] and not serves:
        raise UsageError("Error: --front-ends has no effect: they serve HTTP and gRPC, which are both off.")
    front_ends = front_end_count(flags["front-ends"], usable_cores()) if serves else 0
    server = _server_options(flags, environment, front_ends)
    return ServeCommand(
        server=server,
        log=LogSettings(
            info=flags["log-info"],
            warning=flags["log-warning"],
            error=flags["log-error"],
            verbose=flags["log-verbose"],
            format=flags["log-format"],
            file=flags["log-file"],
            escape=escape_wanted(environment),
        ),
        http=http_settings(flags) if flags["allow-http"] else None,
        grpc=grpc_settings(flags, environment) if flags["allow-grpc"] else None,
        openai=openai_settings(flags),
        sagemaker=sagemaker_settings(flags, environment, http_options(flags), http_limits(flags)),
        vertex_ai=vertex_ai_settings(flags, environment, http_options(flags), http_limits(flags)),
        metrics=metrics_settings(flags) if flags["allow-metrics"] else None,
        request_log=request_log_settings(flags),
        access=access_settings(flags),
        routes=Path(flags["routes"]) if flags["routes"] else None,
        front_ends=front_ends,
        drain_s=_drain_s(flags),
        apps=served_apps(flags),
        deprecations=tuple(_deprecations(flags)),
        warnings=(*_warnings(flags), *_open_management(flags), *trace_warnings(flags, server.tracing)),
    )


def _check_combinations(flags: ParsedFlags) -> None:
    if "response-cache-byte-size" in flags and "cache-config" in flags:
        raise UsageError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide "
            "one or the other."
        )


def _check_restrictions(flags: ParsedFlags) -> None:
    for name, word in (("http-restricted-api", "api"), ("grpc-restricted-protocol", "protocol")):
        seen: set[str] = set()
        for restriction in flags[name]:
            for category in restriction.categories:
                if category in seen:
                    raise UsageError(
                        f'Bad option: "--{name}".\n'
                        f"restricted {word} '{category}' can not be specified in multiple config groups"
                    )
                seen.add(category)


def _server_options(flags: ParsedFlags, environment: Mapping[str, str], front_ends: int) -> ServerOptions:
    mode = ControlMode(flags["model-control-mode"])
    backend_config: dict[str, dict[str, str]] = {}
    for setting in flags["backend-config"]:
        backend_config.setdefault(setting.name, {})[setting.setting] = setting.value
    return ServerOptions(
        model_repository=tuple(
            path if is_store_address(path) else Path(path) for path in repositories_of(flags, environment)
        ),
        repository_cache_directory=Path(flags["repository-cache-dir"]) if flags["repository-cache-dir"] else None,
        repository_cache_bytes=flags["repository-cache-byte-size"],
        server_id=flags["id"],
        exit_timeout_s=flags["exit-timeout-secs"],
        exit_on_error=flags["exit-on-error"],
        strict_readiness=flags["strict-readiness"],
        auto_complete=not (flags["disable-auto-complete-config"] or flags["strict-model-config"]),
        model_control_mode=mode,
        startup_models=tuple(flags["load-model"]),
        model_memory_limit=flags["model-memory-limit"] or 0,
        model_pins=tuple(flags["model-pin"]),
        repository_poll_s=flags["repository-poll-secs"] if mode is ControlMode.POLL else 0,
        model_config_name=flags["model-config-name"],
        model_load_thread_count=max(1, flags["model-load-thread-count"]),
        model_load_retry_count=flags["model-load-retry-count"],
        model_namespacing=flags["model-namespacing"],
        allow_code_upload=flags["allow-code-upload"],
        backend_directory=Path(flags["backend-directory"]),
        backend_config=backend_config,
        cache_config=_cache_config(flags),
        max_inflight_requests=flags["max-inflight-requests"],
        max_inflight_bytes=flags["max-inflight-bytes"],
        address_share=flags["max-address-share"] / 100,
        tensor_limits=TensorLimits(flags["max-tensor-rank"], flags["max-tensor-elements"]),
        poll_s=poll_us(flags["poll-us"], usable_cores(), 1 + front_ends) / 1e6,
        hang_limit_s=flags["hang-limit-secs"],
        watchdog_limit_s=flags["watchdog-limit-secs"],
        restart_limit=flags["restart-limit"],
        restart_window_s=flags["restart-window-secs"],
        summary_latencies=flags["allow-metrics"] and metrics_config(flags, "summary_latencies", "true"),
        histogram_latencies=flags["allow-metrics"] and metrics_config(flags, "histogram_latencies", "true"),
        rate_limit=flags["rate-limit"] == "execution_count",
        rate_limit_resources=flags["rate-limit-resource"],
        min_compute_capability=flags["min-supported-compute-capability"],
        gpu_limits=gpu_limits(flags),
        confinement=confinement(flags),
        host_policies=_host_policies(flags),
        scheduler_delays=SchedulerDelays.of(environment),
        tracing=trace_config(flags, environment),
    )


def _cache_config(flags: ParsedFlags) -> dict[str, dict[str, str]]:
    """By name of the cache; giving several is the server's to refuse."""
    if "response-cache-byte-size" in flags:
        return {"local": {"size": str(flags["response-cache-byte-size"])}}
    config: dict[str, dict[str, str]] = {}
    for setting in flags["cache-config"]:
        config.setdefault(setting.name, {})[setting.setting] = setting.value
    return config


def _deprecations(flags: ParsedFlags) -> Iterator[str]:
    """Triton's lines, one for each time that a deprecated flag is given."""
    for name, values in flags.given.items():
        flag = flags.flags[name]
        if flag.instead:
            yield from [f"Warning: '--{name}' {flag.deprecated} Please use '{flag.instead}' instead."] * len(values)
    if flags["disable-auto-complete-config"] and flags.given.get("strict-model-config", [True])[-1] is False:
        yield (
            "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of "
            "'--disable-auto-complete-config'!"
        )


def _warnings(flags: ParsedFlags) -> Iterator[str]:
    for flag in flags.without_effect():
        yield f"--{flag.name} has no effect in this version: {flag.missing}"


_DRAIN_S = 5.0


def _drain_s(flags: ParsedFlags) -> dict[int, float]:
    """How long the server drains, by signal. By default it does not for a person at a terminal (SIGINT), nor where
    only this machine's clients reach it, between whom and the server there is no load balancer."""
    given = flags["drain-secs"]
    if given is not None:
        return {signal.SIGINT: given, signal.SIGTERM: given}
    services = {"allow-http": "http", "allow-sagemaker": "http", "allow-vertex-ai": "http", "allow-grpc": "grpc"}
    addresses = [f"{address}-address" for name, address in services.items() if flags[name]]
    addresses += ["http-address"] * (flags["openai-port"] is not None)
    public = any(_is_public(flags[address]) for address in addresses)
    return {signal.SIGTERM: _DRAIN_S} if public else {}


def _open_management(flags: ParsedFlags) -> Iterator[str]:
    """One line if every client on the network can make calls that change the server; see docs/security.md."""
    if flags["access-config"]:
        return
    loads = ControlMode(flags["model-control-mode"]).takes_orders
    categories = {
        "model-repository": "load models" if loads else "",
        "shared-memory": "register shared memory" if flags["allow-client-shm"] else "",
        "trace": "change what is traced",
        "logging": "change what is logged",
    }
    found: set[str] = set()
    places: list[str] = []
    for title, protocol, restricted in (
        ("HTTP", "http", "http-restricted-api"),
        ("gRPC", "grpc", "grpc-restricted-protocol"),
    ):
        guarded = {category for restriction in flags[restricted] for category in restriction.categories}
        opened = {category for category, what in categories.items() if what} - guarded
        if opened and flags[f"allow-{protocol}"] and _is_public(flags[f"{protocol}-address"]):
            found |= opened
            places.append(f"{title} at {flags[f'{protocol}-address']}:{flags[f'{protocol}-port']}")
    if not places:
        return
    opened = [category for category in categories if category in found]
    doing = [categories[category] for category in opened]
    code = "model-repository" in found and flags["allow-code-upload"]
    if code:
        doing[0] += ", and with them code that this server runs"
    yield (
        f"clients that reach {' or '.join(places)} can {', '.join(doing)}: restrict this by --access-config, by "
        "--http-address and --grpc-address, or by --http-restricted-api and --grpc-restricted-protocol "
        f"({', '.join(opened)})" + ("; code by --allow-code-upload=false" if code else "")
    )


def _is_public(address: str) -> bool:
    """Whether other machines may reach it; a name that is not known to be this machine's own may be anything."""
    if address.lower() == "localhost":
        return False
    try:
        return not ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return True


# What each front end is told, and what models may take, from the flags of each group.


_LEAST_WAITING_BYTES = 64 << 20
"""Of gRPC messages that wait for room in the server-wide budget, a quarter of which they may have otherwise."""


def grpc_settings(flags: ParsedFlags, environment: Mapping[str, str]) -> GrpcSettings:
    """From the flags of the group GRPC, and the delays that the environment asks for. UsageError as for HTTP."""
    mutual = flags["grpc-use-ssl-mutual"]
    secure = flags["grpc-use-ssl"] or "grpc-use-ssl-mutual" in flags  # given with any value, it turns TLS on
    return GrpcSettings(
        GrpcServiceOptions(
            bind=(bind(flags["grpc-address"], flags["grpc-port"]),),
            tls=tls_options(flags, "grpc", verify=mutual) if secure else None,
            reuse_port=flags["reuse-grpc-port"],
            limits=Limits(address_share=flags["max-address-share"] / 100),
            http2=Http2Limits(keepalive=_keepalive(flags)),
            compression_level=CompressionLevel(flags["grpc-infer-response-compression-level"]),
            max_message_bytes=flags["grpc-max-receive-bytes"],
            max_compression_ratio=flags["grpc-max-compression-ratio"],
            max_waiting_bytes=max(_LEAST_WAITING_BYTES, flags["max-inflight-bytes"] // 4),
        ),
        GrpcOptions(
            header_forward_pattern=flags["grpc-header-forward-pattern"],
            allow_client_shm=flags["allow-client-shm"],
            restrictions=flags["grpc-restricted-protocol"],
            delays=read_delays(environment),
        ),
    )


def _keepalive(flags: ParsedFlags) -> KeepaliveOptions:
    return KeepaliveOptions(
        time_s=_seconds(flags, "grpc-keepalive-time"),
        timeout_s=_seconds(flags, "grpc-keepalive-timeout"),
        permit_without_calls=flags["grpc-keepalive-permit-without-calls"],
        max_pings_without_data=flags["grpc-http2-max-pings-without-data"],
        min_recv_ping_interval_without_data_s=_seconds(flags, "grpc-http2-min-recv-ping-interval-without-data"),
        max_ping_strikes=flags["grpc-http2-max-ping-strikes"],
        max_connection_age_s=_seconds(flags, "grpc-max-connection-age") or math.inf,
        max_connection_age_grace_s=_seconds(flags, "grpc-max-connection-age-grace") or math.inf,
    )


def _seconds(flags: ParsedFlags, name: str) -> float:
    """A number of milliseconds; the largest one stands for never, as in gRPC."""
    value = flags[name]
    return math.inf if value == INT32_MAX else value / 1000


def metrics_settings(flags: ParsedFlags) -> MetricsSettings:
    """From the flags of the group Metrics."""
    return MetricsSettings(
        ServiceOptions(
            bind=(bind(flags["metrics-address"] or flags["http-address"], flags["metrics-port"]),),
            limits=http_limits(flags),
            name="Metrics",
        ),
        cpu=flags["allow-cpu-metrics"],
        gpu=flags["allow-gpu-metrics"],
        interval_s=flags["metrics-interval-ms"] / 1000,
        counter_latencies=not metrics_config(flags, "counter_latencies", "false"),
        quantiles=_quantiles(flags),
        console=ConsoleMode(flags["console"]),
    )


def metrics_config(flags: ParsedFlags, name: str, value: str) -> bool:
    """Whether a ``--metrics-config`` gives the setting `name` this value, if another one gives it another, too."""
    return any((setting.setting, setting.value) == (name, value) for setting in flags["metrics-config"])


_METRICS_SWITCHES = ("counter_latencies", "histogram_latencies", "summary_latencies")


def _check_metrics(flags: ParsedFlags) -> None:
    """UsageError for a ``--metrics-config`` that would have no effect."""
    for setting in flags["metrics-config"]:
        name, value = setting.setting, setting.value
        if name in _METRICS_SWITCHES:
            if value not in ("true", "false"):
                raise UsageError(f"Error: --metrics-config {name} takes true or false. Got {value}")
        elif name != "summary_quantiles":
            raise UsageError(f"Error: --metrics-config {name} cannot be used: there is no such setting.")
    _quantiles(flags)


def _quantiles(flags: ParsedFlags) -> tuple[float, ...]:
    """Those of the last ``summary_quantiles``, each once. UsageError for a pair that is none."""
    quantiles = DEFAULT_QUANTILES
    for setting in flags["metrics-config"]:
        if setting.setting == "summary_quantiles":
            try:
                quantiles = tuple(dict.fromkeys(map(read_quantile, setting.value.split(","))))
            except BadValueError as error:
                raise UsageError(f'Bad option: "--metrics-config summary_quantiles".\n{error.message}') from error
    return quantiles


_DEVICE = "cuda-memory-pool-byte-size"
_LOAD = "model-load-gpu-limit"
_LOAD_REFUSED = "error: setting model load GPU limit: Invalid argument"


def gpu_limits(flags: ParsedFlags) -> GpuLimits:
    """What may be taken of the GPUs; of several values for one GPU, the last counts. UsageError if a limit for loading
    is none; in Triton's words."""
    for gpu, fraction in flags[_LOAD]:
        if gpu < 0:
            raise UsageError(f"{_LOAD_REFUSED} - expects device ID >= 0, got {gpu}")
        if not 0 <= fraction <= 1:
            raise UsageError(f"{_LOAD_REFUSED} - expects limit fraction to be in range [0.0, 1.0], got {fraction:f}")
    return GpuLimits(flags["pinned-memory-pool-byte-size"], dict(flags[_DEVICE]), dict(flags[_LOAD]))


def limits_in_vain(limits: GpuLimits, gpus: Gpus) -> Iterator[str]:
    """What to log about limits of GPUs that models cannot use."""
    for name, limited in ((_DEVICE, limits.device_pool_bytes), (_LOAD, limits.load_fractions)):
        for gpu in limited:
            if gpu not in gpus.indices:
                yield f"--{name} has no effect for GPU {gpu}, which is not there or not used"


def _host_policies(flags: ParsedFlags) -> dict[str, HostPolicy]:
    """UsageError for a core, or a NUMA node, that is not there, and for what is none."""
    given = [(setting.name, setting.setting, setting.value) for setting in flags["host-policy"]]
    try:
        return read_host_policies(given, process_cores(), machine_nodes()) if given else {}
    except InvalidArgumentError as error:
        raise UsageError(f'Bad option: "--host-policy".\n{error.message}') from None


def confinement(flags: ParsedFlags) -> Confinement:
    """What the processes of Python models may do. UsageError if there is no such user, or the server may not change to
    it."""
    try:
        account = find_account(flags["python-user"]) if flags["python-user"] else None
    except InvalidArgumentError as error:
        raise UsageError(f"Error: --python-user: {error.message}") from None
    return Confinement(account, flags["python-memory-limit"])
