"""The flags and variables of the cloud front ends (docs/reference/cloud-front-ends.md#start)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..clouds.sagemaker import INFERENCE, PINGS, UNSPECIFIED_MODEL, SageMakerOptions
from ..clouds.vertex_ai import VertexAiOptions
from ..http.exchange import HttpOptions
from ..sockets.limits import Limits
from ..sockets.service import ServiceOptions
from .flags import ParsedFlags, UsageError, is_app
from .values import PORT, BadValueError

_PREDICTION = "PREDICTION"


class SageMakerSettings(NamedTuple):
    """What the front end for SageMaker is told."""

    service: ServiceOptions
    options: HttpOptions
    platform: SageMakerOptions


class VertexAiSettings(NamedTuple):
    """What the front end for Vertex AI is told."""

    service: ServiceOptions
    options: HttpOptions
    platform: VertexAiOptions


def with_platform_defaults(flags: ParsedFlags, environment: Mapping[str, str]) -> ParsedFlags:
    """The same flags, where those that are not given have the defaults that Vertex AI sets in the environment.
    UsageError if it names a port that is none."""
    defaults: dict[str, Any] = {}
    if environment.get("AIP_MODE") == _PREDICTION:
        defaults = {"allow-vertex-ai": True, "allow-http": False, "allow-grpc": False}
    if port := environment.get("AIP_HTTP_PORT"):
        try:
            defaults["vertex-ai-port"] = PORT.read(port)
        except BadValueError as error:
            raise UsageError(f"Error: AIP_HTTP_PORT: {error.message}") from error
    if not defaults:
        return flags
    known = {name: replace(flags.flags[name], default=value) for name, value in defaults.items()}
    return ParsedFlags({**flags.flags, **known}, flags.given)


def repositories_of(flags: ParsedFlags, environment: Mapping[str, str]) -> list[str]:
    """The model repositories, each once: those that are given, else the one that Vertex AI sets."""
    given = {*flags["model-repository"], *flags["model-store"]}
    given.update(word for word in flags.operands if not is_app(word))
    stored = environment.get("AIP_STORAGE_URI", "")
    return sorted(given) or [stored] * bool(stored)


def sagemaker_settings(
    flags: ParsedFlags, environment: Mapping[str, str], options: HttpOptions, limits: Limits
) -> SageMakerSettings | None:
    """None if that front end is not wanted. UsageError if the environment asks for what there is not."""
    if not flags["allow-sagemaker"]:
        return None
    ping = environment.get("SAGEMAKER_TRITON_PING_MODE", "ready")
    if ping not in PINGS:
        raise UsageError(f"Error: SAGEMAKER_TRITON_PING_MODE must be one of: {', '.join(PINGS)}. Got {ping}")
    inference = environment.get("SAGEMAKER_TRITON_INFERENCE_TYPE", "infer")
    if inference not in INFERENCE:
        raise UsageError(
            f"Error: Server has invalid inference type '{inference}'. Must be one of: {', '.join(INFERENCE)}."
        )
    model = environment.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", UNSPECIFIED_MODEL)
    service = _service(flags, "sagemaker", "SageMaker", limits)
    return SageMakerSettings(service, options, SageMakerOptions(ping, model, inference))


def vertex_ai_settings(
    flags: ParsedFlags, environment: Mapping[str, str], options: HttpOptions, limits: Limits
) -> VertexAiSettings | None:
    """None if that front end is not wanted."""
    if not flags["allow-vertex-ai"]:
        return None
    platform = VertexAiOptions(
        environment.get("AIP_PREDICT_ROUTE", ""),
        environment.get("AIP_HEALTH_ROUTE", ""),
        flags["vertex-ai-default-model"],
    )
    return VertexAiSettings(_service(flags, "vertex-ai", "Vertex AI", limits), options, platform)


def _service(flags: ParsedFlags, flag: str, name: str, limits: Limits) -> ServiceOptions:
    """Without TLS, which ends at the platform."""
    return ServiceOptions(bind=(bind(flags["http-address"], flags[f"{flag}-port"]),), limits=limits, name=name)


def bind(address: str, port: int) -> str:
    """As in `ServiceOptions.bind`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
