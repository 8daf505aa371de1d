"""From flag values to what `serve` needs: plain values, checked against each other
(docs/reference/command-line.md#flags)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...engine.options import ControlMode, ServerOptions
from ...engine.scheduling.delays import SchedulerDelays
from ...engine.tensor_limits import TensorLimits
from ..logging import LogSettings, escape_wanted
from .flags import ParsedFlags, UsageError
from .services import (
    GrpcSettings,
    HttpSettings,
    MetricsSettings,
    bad_quantiles,
    confinement,
    gpu_limits,
    grpc_settings,
    http_settings,
    metrics_config,
    metrics_settings,
)
from .trace_flags import trace_config, trace_warnings


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """A whole `trireme serve` command line.

    Attributes:
        http, grpc, metrics: None where not wanted.
        request_log: where arrivals of requests are written; None for nowhere.
        deprecations: lines for stderr before anything else.
        warnings: what to log about flags that have no effect.
    """

    server: ServerOptions
    log: LogSettings
    http: HttpSettings | None
    grpc: GrpcSettings | None
    metrics: MetricsSettings | None
    request_log: Path | None
    deprecations: tuple[str, ...]
    warnings: tuple[str, ...]


def build_command(flags: ParsedFlags, environment: Mapping[str, str]) -> ServeCommand:
    """Check the flags against each other and group their values.

    Raises:
        UsageError: two flags contradict each other, or this version cannot do what one of them makes sure of.
    """
    _check_restrictions(flags)
    _check_combinations(flags)
    _check_ports(flags)
    _check_supported(flags)
    for name in ("hang-limit-secs", "watchdog-limit-secs", "restart-window-secs"):
        if not flags[name] >= 0:  # NaN is not, either
            raise UsageError(f"Error: --{name} must not be negative. Got {flags[name]}")
    server = _server_options(flags, environment)
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
        metrics=metrics_settings(flags) if flags["allow-metrics"] else None,
        request_log=Path(flags["request-log"]) if flags["request-log"] else None,
        deprecations=tuple(_deprecations(flags)),
        warnings=(*_warnings(flags), *_open_management(flags), *trace_warnings(flags, server.tracing)),
    )


def _check_supported(flags: ParsedFlags) -> None:
    """What would mislead if it did nothing is refused."""
    for flag in flags.without_effect():
        if flag.refused:
            raise UsageError(f"Error: --{flag.name} cannot be used in this version: {flag.missing}.")


def _check_combinations(flags: ParsedFlags) -> None:
    if "load-model" in flags and flags["model-control-mode"] != "explicit":
        raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if "*" in flags["load-model"] and len(flags["load-model"]) > 1:
        raise UsageError("Error: Wildcard model name '*' must be the ONLY startup model if specified at all.")
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


def _check_ports(flags: ParsedFlags) -> None:
    """No two services at one place, and none outside the range that SageMaker leaves to the others."""
    http_address = flags["http-address"]
    services = [
        (title, address, port)
        for title, allowed, address, port in (
            ("HTTP", flags["allow-http"], http_address, flags["http-port"]),
            ("GRPC", flags["allow-grpc"], flags["grpc-address"], flags["grpc-port"]),
            ("metrics", flags["allow-metrics"], flags["metrics-address"] or http_address, flags["metrics-port"]),
            ("SageMaker", flags["allow-sagemaker"], http_address, flags["sagemaker-port"]),
            ("Vertex AI", flags["allow-vertex-ai"], http_address, flags["vertex-ai-port"]),
        )
        if allowed and port
    ]
    for index, (title, address, port) in enumerate(services):
        for other_title, other_address, other_port in services[index + 1 :]:
            if (address, port) == (other_address, other_port):
                raise UsageError(
                    f"The server cannot listen to {title} requests and {other_title} requests at the same address and "
                    f"port {address}:{port}"
                )
    safe_range = flags["sagemaker-safe-port-range"]
    if safe_range is None:
        return
    first, last = safe_range
    for title, _, port in services:
        if title != "SageMaker" and not first <= port <= last:
            raise UsageError(
                f"The server cannot listen to {title} requests at port {port}, allowed port range is [{first}, {last}]"
            )


def _server_options(flags: ParsedFlags, environment: Mapping[str, str]) -> ServerOptions:
    repositories = sorted({*flags["model-repository"], *flags["model-store"]})
    mode = ControlMode(flags["model-control-mode"])
    backend_config: dict[str, dict[str, str]] = {}
    for setting in flags["backend-config"]:
        backend_config.setdefault(setting.name, {})[setting.setting] = setting.value
    return ServerOptions(
        model_repository=tuple(Path(path) for path in repositories),
        server_id=flags["id"],
        exit_timeout_s=max(0, flags["exit-timeout-secs"]),
        exit_on_error=flags["exit-on-error"],
        strict_readiness=flags["strict-readiness"],
        auto_complete=not (flags["disable-auto-complete-config"] or flags["strict-model-config"]),
        model_control_mode=mode,
        startup_models=tuple(flags["load-model"]),
        repository_poll_s=max(0, flags["repository-poll-secs"]) if mode is ControlMode.POLL else 0,
        model_config_name=flags["model-config-name"],
        model_load_thread_count=max(1, flags["model-load-thread-count"]),
        model_load_retry_count=max(0, flags["model-load-retry-count"]),
        model_namespacing=flags["model-namespacing"],
        allow_code_upload=flags["allow-code-upload"],
        backend_directory=Path(flags["backend-directory"]),
        backend_config=backend_config,
        cache_config=_cache_config(flags),
        max_inflight_requests=flags["max-inflight-requests"],
        max_inflight_bytes=flags["max-inflight-bytes"],
        address_share=flags["max-address-share"] / 100,
        tensor_limits=TensorLimits(flags["max-tensor-rank"], flags["max-tensor-elements"]),
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
    yield from bad_quantiles(flags)


def _open_management(flags: ParsedFlags) -> Iterator[str]:
    """One line if every client on the network can load models; see docs/security.md."""
    if flags["model-control-mode"] != "explicit":
        return
    places = [
        f"{title} at {flags[f'{protocol}-address']}:{flags[f'{protocol}-port']}"
        for title, protocol, restricted in (
            ("HTTP", "http", "http-restricted-api"),
            ("gRPC", "grpc", "grpc-restricted-protocol"),
        )
        if flags[f"allow-{protocol}"] and _is_public(flags[f"{protocol}-address"]) and not _guards(flags, restricted)
    ]
    if places:
        code = ", and with them code that this server runs" if flags["allow-code-upload"] else ""
        yield (
            f"clients that reach {' or '.join(places)} can load models{code}: restrict this by --http-address and "
            "--grpc-address, by --http-restricted-api and --grpc-restricted-protocol (model-repository), or by "
            "--allow-code-upload=false"
        )


def _guards(flags: ParsedFlags, name: str) -> bool:
    return any("model-repository" in restriction.categories for restriction in flags[name])


def _is_public(address: str) -> bool:
    """Whether other machines may reach it; a name that is not known to be this machine's own may be anything."""
    if address.lower() == "localhost":
        return False
    try:
        return not ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return True
