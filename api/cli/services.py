"""What each front end is told, and what models may take, from the flags of each group
(docs/reference/command-line.md#flags)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...engine.backends.confinement import Confinement, find_account
from ...engine.errors import InvalidArgumentError
from ...engine.gpu.discovery import Gpus
from ...engine.gpu.pinned_pool import GpuLimits
from ...engine.metrics.page import DEFAULT_QUANTILES
from ..grpc.compression import CompressionLevel
from ..grpc.context import GrpcOptions
from ..grpc.options import GrpcServiceOptions, read_delays
from ..http.exchange import HttpOptions
from ..http2.limits import Http2Limits, KeepaliveOptions
from ..sockets.limits import Limits
from ..sockets.service import ServiceOptions
from ..sockets.tls import TlsOptions
from .flags import ParsedFlags, UsageError
from .values import INT32_MAX, BadValueError, read_quantile


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What the metrics endpoint is told.

    Attributes:
        cpu, gpu: whether the families of the CPU, and of GPUs, are there.
        interval_s: readings are taken twice in each.
        counter_latencies: False with ``--metrics-config counter_latencies=false``.
        quantiles: ``--metrics-config summary_quantiles``.
    """

    service: ServiceOptions
    cpu: bool
    gpu: bool
    interval_s: float
    counter_latencies: bool
    quantiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """What the gRPC front end is told."""

    service: GrpcServiceOptions
    options: GrpcOptions


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What the HTTP front end is told."""

    service: ServiceOptions
    options: HttpOptions


def http_settings(flags: ParsedFlags) -> HttpSettings:
    """From the flags of the group HTTP.

    Raises:
        UsageError: TLS without certificate or key.
    """
    return HttpSettings(
        ServiceOptions(
            bind=(_bind(flags["http-address"], flags["http-port"]),),
            tls=_tls(flags, "http", verify=True) if flags["http-use-ssl"] else None,
            limits=_http_limits(flags),
            reuse_port=flags["reuse-http-port"],
            name="HTTP",
        ),
        HttpOptions(
            max_input_bytes=flags["http-max-input-size"],
            max_management_bytes=flags["http-max-management-size"],
            header_forward_pattern=flags["http-header-forward-pattern"],
            allow_client_shm=flags["allow-client-shm"],
            restrictions=flags["http-restricted-api"],
            max_json_values=flags["http-max-json-values"],
            max_compression_ratio=flags["http-max-compression-ratio"],
            allowed_origins=flags["http-allowed-origins"],
            allowed_hosts=flags["http-allowed-hosts"],
        ),
    )


def _http_limits(flags: ParsedFlags) -> Limits:
    return replace(_limits(flags), idle_timeout_s=flags["http-idle-timeout"] or None)


def _limits(flags: ParsedFlags) -> Limits:
    return Limits(address_share=flags["max-address-share"] / 100)


_LEAST_WAITING_BYTES = 64 << 20
"""Of gRPC messages that wait for room in the server-wide budget, a quarter of which they may have otherwise."""


def grpc_settings(flags: ParsedFlags, environment: Mapping[str, str]) -> GrpcSettings:
    """From the flags of the group GRPC, and the delays that the environment asks for.

    Raises:
        UsageError: TLS without certificate or key, or a time or number out of range.
    """
    mutual = flags["grpc-use-ssl-mutual"]
    secure = flags["grpc-use-ssl"] or "grpc-use-ssl-mutual" in flags  # given with any value, it turns TLS on
    return GrpcSettings(
        GrpcServiceOptions(
            bind=(_bind(flags["grpc-address"], flags["grpc-port"]),),
            tls=_tls(flags, "grpc", verify=mutual) if secure else None,
            reuse_port=flags["reuse-grpc-port"],
            limits=_limits(flags),
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
        time_s=_seconds(flags, "grpc-keepalive-time", least=1),
        timeout_s=_seconds(flags, "grpc-keepalive-timeout", least=1),
        permit_without_calls=flags["grpc-keepalive-permit-without-calls"],
        max_pings_without_data=_count(flags, "grpc-http2-max-pings-without-data"),
        min_recv_ping_interval_without_data_s=_seconds(flags, "grpc-http2-min-recv-ping-interval-without-data"),
        max_ping_strikes=_count(flags, "grpc-http2-max-ping-strikes"),
        max_connection_age_s=_seconds(flags, "grpc-max-connection-age") or math.inf,
        max_connection_age_grace_s=_seconds(flags, "grpc-max-connection-age-grace") or math.inf,
    )


def _count(flags: ParsedFlags, name: str, least: int = 0) -> int:
    value = flags[name]
    if value < least:
        raise UsageError(f"Error: --{name} must be at least {least}. Got {value}")
    return value


def _seconds(flags: ParsedFlags, name: str, least: int = 0) -> float:
    """A number of milliseconds; the largest one stands for never, as in gRPC."""
    value = _count(flags, name, least)
    return math.inf if value == INT32_MAX else value / 1000


def _tls(flags: ParsedFlags, protocol: str, *, verify: bool) -> TlsOptions:
    """The flags of `protocol` that name files; `verify` clients by the root certificates, if there are any."""
    certificate, key, root = (f"{protocol}-{what}" for what in ("server-cert", "server-key", "root-cert"))
    for name in (certificate, key):
        if not flags[name]:
            raise UsageError(f"Error: --{protocol}-use-ssl needs --{name}.")
    if verify and protocol == "grpc" and not flags[root]:
        raise UsageError(f"Error: --grpc-use-ssl-mutual needs --{root}.")
    return TlsOptions(
        certificate=Path(flags[certificate]),
        key=Path(flags[key]),
        client_ca=Path(flags[root]) if verify and flags[root] else None,
    )


def metrics_settings(flags: ParsedFlags) -> MetricsSettings:
    """From the flags of the group Metrics."""
    return MetricsSettings(
        ServiceOptions(
            bind=(_bind(flags["metrics-address"] or flags["http-address"], flags["metrics-port"]),),
            limits=_http_limits(flags),
            name="Metrics",
        ),
        cpu=flags["allow-cpu-metrics"],
        gpu=flags["allow-gpu-metrics"],
        interval_s=flags["metrics-interval-ms"] / 1000,
        counter_latencies=not metrics_config(flags, "counter_latencies", "false"),
        quantiles=_quantiles(flags),
    )


def metrics_config(flags: ParsedFlags, name: str, value: str) -> bool:
    """Whether a ``--metrics-config`` gives the setting `name` this value, if another one gives it another, too."""
    return any((setting.setting, setting.value) == (name, value) for setting in flags["metrics-config"])


def bad_quantiles(flags: ParsedFlags) -> Iterator[str]:
    """What to log about the pairs of ``summary_quantiles`` that are none."""
    for setting in flags["metrics-config"]:
        if setting.setting == "summary_quantiles":
            for pair in setting.value.split(","):
                try:
                    read_quantile(pair)
                except BadValueError as error:
                    yield error.message


def _quantiles(flags: ParsedFlags) -> tuple[float, ...]:
    """Those of the last setting that names any, each once."""
    quantiles = DEFAULT_QUANTILES
    for setting in flags["metrics-config"]:
        if setting.setting == "summary_quantiles":
            named: dict[float, None] = {}
            for pair in setting.value.split(","):
                with contextlib.suppress(BadValueError):
                    named[read_quantile(pair)] = None
            quantiles = tuple(named) or quantiles
    return quantiles


def _bind(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


_PINNED = "pinned-memory-pool-byte-size"
_DEVICE = "cuda-memory-pool-byte-size"
_LOAD = "model-load-gpu-limit"
_LOAD_REFUSED = "error: setting model load GPU limit: Invalid argument"


def gpu_limits(flags: ParsedFlags) -> GpuLimits:
    """What may be taken of the GPUs; of several values for one GPU, the last counts.

    Raises:
        UsageError: a size is negative, or a limit for loading is none; of that in Triton's words.
    """
    pools = dict(flags[_DEVICE])
    sizes = [(_PINNED, str(flags[_PINNED]), flags[_PINNED])]
    sizes += [(_DEVICE, f"{gpu}:{size}", size) for gpu, size in pools.items()]
    for name, given, size in sizes:
        if size < 0:
            raise UsageError(f"Error: --{name} must not be negative. Got {given}")
    for gpu, fraction in flags[_LOAD]:
        if gpu < 0:
            raise UsageError(f"{_LOAD_REFUSED} - expects device ID >= 0, got {gpu}")
        if not 0 <= fraction <= 1:
            raise UsageError(f"{_LOAD_REFUSED} - expects limit fraction to be in range [0.0, 1.0], got {fraction:f}")
    return GpuLimits(flags[_PINNED], pools, dict(flags[_LOAD]))


def limits_in_vain(limits: GpuLimits, gpus: Gpus) -> Iterator[str]:
    """What to log about limits of GPUs that models cannot use."""
    for name, limited in ((_DEVICE, limits.device_pool_bytes), (_LOAD, limits.load_fractions)):
        for gpu in limited:
            if gpu not in gpus.indices:
                yield f"--{name} has no effect for GPU {gpu}, which is not there or not used"


def confinement(flags: ParsedFlags) -> Confinement:
    """What the processes of Python models may do.

    Raises:
        UsageError: there is no such user, or the server may not change to it.
    """
    try:
        account = find_account(flags["python-user"]) if flags["python-user"] else None
    except InvalidArgumentError as error:
        raise UsageError(f"Error: --python-user: {error.message}") from None
    return Confinement(account, flags["python-memory-limit"])
