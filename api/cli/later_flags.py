"""tritonserver's flags for what this version has not got: read and checked as ever, so that start scripts keep working.

`Flag.missing` says what is not there. Giving one of them a value that asks for it is an error where clients would find
nothing to talk to (`Flag.refused`), and a warning where it only tunes.
"""

from __future__ import annotations

from .flags import Flag, Group
from .grpc_flags import GRPC
from .memory_flags import MEMORY, PEER_ACCESS
from .trace_flags import DEPRECATED_TRACE_FLAGS
from .values import (
    BOOLEAN,
    INTEGER,
    INTEGER64,
    PORT,
    STRING,
    Kind,
    named_setting,
    one_of,
    pair,
    read_port,
    read_rate_limit_resource,
)

_NO_SAGEMAKER = "the SageMaker front end is not served yet"
_NO_VERTEX = "the Vertex AI front end is not served yet"
_ENTRY_POINTS = "what is installed with pip is found by itself"
_AGENT_ENTRY_POINTS = "repository agents are Python classes; what is installed with pip is found by itself"

REPOSITORY_LATER = (PEER_ACCESS,)

HTTP_LATER = (
    Flag(
        "http-thread-count",
        INTEGER,
        "Threads for HTTP, in tritonserver.",
        8,
        missing="one event loop serves all connections",
    ),
)

_SAGEMAKER = Group(
    "Sagemaker",
    (
        Flag(
            "allow-sagemaker",
            BOOLEAN,
            "Whether to serve SageMaker.",
            False,
            missing=_NO_SAGEMAKER,
            idle=False,
            refused=True,
        ),
        Flag("sagemaker-port", PORT, "Port to listen on for SageMaker.", 8080, missing=_NO_SAGEMAKER),
        Flag(
            "sagemaker-safe-port-range",
            Kind("<<integer>-<integer>>", pair("-", read_port, read_port)),
            "Ports that the other services may use.",
            None,
            missing=_NO_SAGEMAKER,
        ),
        Flag("sagemaker-thread-count", INTEGER, "Threads for SageMaker, in tritonserver.", 8, missing=_NO_SAGEMAKER),
    ),
)

_VERTEX = Group(
    "Vertex",
    (
        Flag(
            "allow-vertex-ai",
            BOOLEAN,
            "Whether to serve Vertex AI.",
            False,
            missing=_NO_VERTEX,
            idle=False,
            refused=True,
        ),
        Flag("vertex-ai-port", PORT, "Port to listen on for Vertex AI.", 8080, missing=_NO_VERTEX),
        Flag("vertex-ai-thread-count", INTEGER, "Threads for Vertex AI, in tritonserver.", 8, missing=_NO_VERTEX),
        Flag("vertex-ai-default-model", STRING, "The model that requests are for.", "", missing=_NO_VERTEX, idle=""),
    ),
)

_AGENTS = Group(
    "Repository Agent",
    (
        Flag(
            "repoagent-directory",
            STRING,
            "Directory of repository agent libraries.",
            "/opt/tritonserver/repoagents",
            missing=_AGENT_ENTRY_POINTS,
        ),
    ),
)

_CACHE = Group(
    "Response Cache",
    (
        Flag(
            "cache-config",
            Kind("<<string>,<string>=<string>>", named_setting("--cache-config", "cache", name_needed=True)),
            "Setting of the response cache: <cache name>,<setting>=<value>. Giving one turns the cache on, for models "
            "whose configuration says so. Caches: local (size, in bytes), redis (host, port and more).",
            repeatable=True,
        ),
        Flag(
            "cache-directory",
            STRING,
            "Directory of cache libraries.",
            "/opt/tritonserver/caches",
            missing=_ENTRY_POINTS,
        ),
    ),
)

_RATE_LIMITER = Group(
    "Rate Limiter",
    (
        Flag(
            "rate-limit",
            Kind("<string>", one_of(("execution_count", "off"), "invalid argument for --rate-limit")),
            'How executions are limited: "execution_count" by the rate limiter settings of the models, "off" not.',
            "off",
        ),
        Flag(
            "rate-limit-resource",
            Kind("<<string>:<integer>:<integer>>", read_rate_limit_resource),
            "How much of a resource there is: <name>:<count>:<device>; without the device, on every device.",
            repeatable=True,
        ),
    ),
)

_SHARED_MEMORY = Group(
    "Shared Memory",
    (
        Flag(
            "allow-client-shm",
            BOOLEAN,
            "Whether clients may register shared memory.",
            False,
        ),
    ),
)

LATER_BEFORE_METRICS = (GRPC, _SAGEMAKER, _VERTEX)
LATER_AFTER_METRICS = (_AGENTS, _CACHE, _RATE_LIMITER, MEMORY, _SHARED_MEMORY)

DEPRECATED = Group(
    "DEPRECATED",
    (
        Flag(
            "strict-model-config",
            BOOLEAN,
            "true is the same as --disable-auto-complete-config.",
            False,
            instead="--disable-auto-complete-config",
        ),
        Flag(
            "response-cache-byte-size",
            INTEGER64,
            "Size of the response cache.",
            0,
            instead="--cache-config local,size=<bytes>",
            deprecated="has been deprecated! This will default to the 'local' cache implementation with the provided "
            "byte size for its config.",
        ),
        *DEPRECATED_TRACE_FLAGS,
    ),
)
