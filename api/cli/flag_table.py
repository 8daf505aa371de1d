"""The flags of `trireme serve` (docs/reference/command-line.md#flags); data only.

tritonserver's flags for what this version has not got are among them. `Flag.missing` says what is not there. Giving one
of them a value that asks for it is an error; a warning where start scripts set it and it only sizes something
(`Flag.tolerated`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...actors.request_log import DEFAULT_FILE_BYTES, DEFAULT_FILES
from ...engine.gpu.discovery import MIN_COMPUTE_CAPABILITY
from ...engine.tensor_limits import MAX_RANK
from ...engine.tracing.settings import UNLIMITED
from ..http.guards import HOST, ORIGIN
from ..logging import FORMATS
from .flags import Flag, Group
from .trace_flags import read_trace_level, read_trace_setting
from .values import (
    BOOLEAN,
    FLOAT,
    FRONT_ENDS,
    INT32_MAX,
    INT64_MAX,
    INTEGER,
    INTEGER64,
    MEMORY,
    PATTERN,
    POLL_US,
    PORT,
    STRING,
    VERBOSITY,
    Kind,
    list_of,
    named_setting,
    not_empty,
    number,
    one_of,
    pair,
    read_host_policy,
    read_metrics_setting,
    read_rate_limit_resource,
    restriction,
    seconds,
)

_ONE_LOOP = "one event loop serves all connections"
_NO_POOL = "requests and responses are not kept for reuse"

_ENTRY_POINTS = "what is installed with pip is found by itself"


def _threads(name: str, title: str) -> Flag:
    """Threads of a front end, which has none here."""
    text = f"Threads for {title}, in tritonserver."
    return Flag(f"{name}-thread-count", INTEGER, text, 8, missing=_ONE_LOOP, tolerated=True)


def _cloud(name: str, title: str, variable: str) -> tuple[Flag, ...]:
    """What the front ends of cloud platforms have in common."""
    return (
        Flag(f"allow-{name}", BOOLEAN, f"Whether to serve {title}{variable}.", False),
        Flag(f"{name}-port", PORT, f"Port to listen on for {title}, at --http-address; 0 for any free one.", 8080),
        _threads(name, title),
    )


def _old_trace(name: str, kind: Kind, text: str, default: Any, setting: str) -> Flag:
    """A flag in whose place there is a setting of --trace-config."""
    return Flag(
        f"trace-{name}",
        kind,
        text,
        default,
        repeatable=name == "level",
        instead=f"--trace-config {setting}",
        deprecated="has been deprecated and will be removed in future releases.",
    )


GROUPS: tuple[Group, ...] = (
    Group("", Flag("help", None, "Show this text.", False)),
    Group(
        "Server",
        Flag("id", STRING, "Name of this server in its metadata.", "triton"),
        Flag(
            "exit-timeout-secs",
            number(0),
            "Seconds that a shutdown may take to finish the requests in flight; after that the server exits at once.",
            30,
        ),
        Flag(
            "drain-secs",
            seconds(),
            "Seconds that the server drains for when it is to end: it says that it is not ready, serves what comes all "
            "the same, and has clients connect anew; then the shutdown begins. A second signal ends the drain. By "
            "default 5 on SIGTERM if clients other than this machine's may reach it, that is, if the address of HTTP "
            "or gRPC is no loopback address; else, and on SIGINT, 0.",
        ),
    ),
    Group(
        "Logging",
        Flag("log-verbose", VERBOSITY, "Level of verbose logging: 0 for none, the higher the more.", 0),
        Flag("log-info", BOOLEAN, "Whether to log information.", True),
        Flag("log-warning", BOOLEAN, "Whether to log warnings.", True),
        Flag("log-error", BOOLEAN, "Whether to log errors.", True),
        Flag(
            "log-format",
            one_of(FORMATS, "invalid argument for --log-format"),
            'How a log line starts: "default" for LMMDD hh:mm:ss.ssssss (L is the level\'s letter), "ISO8601" for '
            'YYYY-MM-DDThh:mm:ssZ L; "json" makes each line a JSON object.',
            "default",
        ),
        Flag("log-file", STRING, "File for the log, in place of the console.", ""),
    ),
    Group(
        "Model Repository",
        Flag("model-store", not_empty("--model-store"), "The same as --model-repository.", repeatable=True),
        Flag(
            "model-repository",
            not_empty("--model-repository"),
            "Directory with models, one sub-directory each; or s3://, gs:// or as:// and the rest of an address in an "
            "object store. May be given several times for several repositories; a name that is in two of them is not "
            "served, unless there are namespaces.",
            repeatable=True,
        ),
        Flag(
            "reload",
            None,
            "Follow the Python files that are served: when one, or what it imports from beside, has changed, its "
            "models are loaded anew. One that is faulty changes nothing, and the log says what is wrong.",
            False,
        ),
        Flag(
            "repository-cache-dir",
            STRING,
            "Directory that keeps models of object stores over restarts of the server, which may be that of several "
            "servers. By default the TRITON_AWS_, TRITON_GCS_ or TRITON_AZURE_MOUNT_DIRECTORY of the environment; "
            "without any, models are in a temporary place while they are used.",
            "",
        ),
        Flag(
            "repository-cache-byte-size",
            number(0),
            "Bytes that this directory may hold; what is used stays all the same. 0 for no limit: then what no "
            "repository holds any more is removed.",
            0,
        ),
        Flag("exit-on-error", BOOLEAN, "Whether to exit when a model does not load at start.", True),
        Flag(
            "disable-auto-complete-config",
            None,
            "Take model configurations as they are written, and complete nothing from the model files.",
            False,
        ),
        Flag("strict-readiness", BOOLEAN, "Whether the server counts as ready only while all of its models are.", True),
        Flag(
            "model-control-mode",
            one_of(
                ("none", "poll", "explicit", "on-demand"), "invalid argument for --model-control-mode", any_case=True
            ),
            'Who decides what is loaded: "none" loads every model at start and changes nothing later, "poll" follows '
            'the repository, "explicit" follows load and unload calls, "on-demand" loads a model when a request needs '
            "it, and unloads the one used least recently when --model-memory-limit is reached.",
            "none",
        ),
        Flag(
            "model-memory-limit",
            MEMORY,
            "Memory for all models together, in on-demand mode, such as 16G.",
        ),
        Flag(
            "model-pin",
            STRING,
            "Model that stays in memory once it is loaded, in on-demand mode; may be given several times.",
            repeatable=True,
        ),
        Flag(
            "repository-poll-secs", number(0), "Seconds between looks at the repository, in poll mode; 0 for none.", 15
        ),
        Flag(
            "load-model",
            STRING,
            "Model to load at start in explicit or on-demand mode; may be given several times. '*' alone loads all.",
            repeatable=True,
        ),
        Flag(
            "model-config-name",
            not_empty("--model-config-name"),
            "Use configs/<name>.pbtxt of a model, where it is there, in place of its config.pbtxt.",
            "",
        ),
        Flag("model-load-thread-count", number(0), "How many models may load at the same time.", 4),
        Flag(
            "model-load-retry-count", number(0), "How often to try again to load a model that could not be loaded.", 0
        ),
        Flag(
            "model-namespacing",
            BOOLEAN,
            "Serve models of the same name from different repositories; an ensemble uses the models beside it first.",
            False,
        ),
        Flag(
            "allow-code-upload",
            BOOLEAN,
            "Whether the files that come with a load request may hold code, such as model.py, a shared library or a "
            "pickle, and its configuration may name code that the model's own does not.",
            True,
        ),
        Flag(
            "enable-peer-access",
            BOOLEAN,
            "Let GPUs read each other's memory.",
            True,
            missing="tensors go from one GPU to another by way of the server's memory",
            idle=False,
            tolerated=True,
        ),
    ),
    Group(
        "HTTP",
        Flag("allow-http", BOOLEAN, "Whether to serve HTTP.", True),
        Flag("http-address", STRING, "Address to listen on for HTTP.", "0.0.0.0"),
        Flag("http-port", PORT, "Port to listen on for HTTP; 0 for any free one.", 8000),
        Flag("reuse-http-port", BOOLEAN, "Let several servers with this flag share the port.", False),
        Flag(
            "http-header-forward-pattern",
            PATTERN,
            "Regular expression (RE2); HTTP headers whose names match it become parameters of the inference request.",
            "",
        ),
        Flag(
            "http-max-input-size",
            number(1, INT64_MAX, message="Error: --http-max-input-size must be greater than 0."),
            "Most bytes that a request's body may have, also after decompression. Binary tensors are bounded by "
            "--max-inflight-bytes alone.",
            67108864,
        ),
        Flag(
            "http-max-management-size",
            number(1, INT64_MAX),
            "Most bytes that the body of a call other than inference may have, unless it brings a model's files.",
            1048576,
        ),
        Flag(
            "http-max-json-values",
            number(1, INT64_MAX),
            "Most values that the JSON of a request may have, besides plain tensor data in large arrays.",
            1 << 17,
        ),
        Flag(
            "http-max-compression-ratio",
            number(0),
            "Most bytes that one byte of a request's compressed body may become, beyond the first 16 MiB; 0 for any "
            "number.",
            1000,
        ),
        Flag(
            "http-idle-timeout",
            number(0),
            "Seconds after which a connection on which nothing is asked is closed, also for metrics; 0 for never.",
            75,
        ),
        Flag("http-use-ssl", BOOLEAN, "Serve HTTPS. Needs --http-server-cert and --http-server-key.", False),
        Flag("http-server-cert", STRING, "File with the server's certificate chain, PEM.", ""),
        Flag("http-server-key", STRING, "File with the server's private key, PEM.", ""),
        Flag(
            "http-root-cert",
            STRING,
            "File with the certificates, PEM, that clients' certificates are checked against; clients without one are "
            "then refused.",
            "",
        ),
        Flag(
            "http-restricted-api",
            restriction("--http-restricted-api", "api"),
            "Calls that need a header: <category,...>:<header>=<value>. The categories are those of "
            "--grpc-restricted-protocol. A value @/<path> is the line that this file holds.",
            repeatable=True,
        ),
        Flag(
            "http-allowed-origins",
            list_of(ORIGIN, "--http-allowed-origins", "<scheme>://<host>[:<port>]"),
            "Origins whose web pages may make calls that change the server; '*' for all. Programs send no Origin, and "
            "may make them anyway.",
            (),
        ),
        Flag(
            "http-allowed-hosts",
            list_of(HOST, "--http-allowed-hosts", "<host>[:<port>]"),
            "Hosts by which HTTP requests may name the server; any if none is given.",
            (),
        ),
        _threads("http", "HTTP"),
    ),
    Group(
        "GRPC",
        Flag("allow-grpc", BOOLEAN, "Whether to serve gRPC.", True),
        Flag("grpc-address", STRING, "Address to listen on for gRPC.", "0.0.0.0"),
        Flag("grpc-port", PORT, "Port to listen on for gRPC; 0 for any free one.", 8001),
        Flag("reuse-grpc-port", BOOLEAN, "Let several servers with this flag share the port.", False),
        Flag(
            "grpc-header-forward-pattern",
            PATTERN,
            "Regular expression (RE2); metadata whose keys match it become parameters of the inference request.",
            "",
        ),
        Flag(
            "grpc-infer-thread-count",
            number(2, 128, message="invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."),
            "Threads for gRPC inference, in tritonserver.",
            2,
            missing=_ONE_LOOP,
            tolerated=True,
        ),
        Flag(
            "grpc-infer-allocation-pool-size",
            INTEGER,
            "Request objects kept for reuse.",
            8,
            missing=_NO_POOL,
            tolerated=True,
        ),
        Flag(
            "grpc-max-response-pool-size",
            number(1, message="Error: --grpc-max-response-pool-size must be greater than 0."),
            "Response objects kept for reuse.",
            INT32_MAX,
            missing=_NO_POOL,
            tolerated=True,
        ),
        Flag("grpc-use-ssl", BOOLEAN, "Use TLS. Needs --grpc-server-cert and --grpc-server-key.", False),
        Flag("grpc-use-ssl-mutual", BOOLEAN, "Use TLS and check clients' certificates. Needs --grpc-root-cert.", False),
        Flag("grpc-server-cert", STRING, "File with the server's certificate chain, PEM.", ""),
        Flag("grpc-server-key", STRING, "File with the server's private key, PEM.", ""),
        Flag("grpc-root-cert", STRING, "File with the certificates, PEM, that clients' are checked against.", ""),
        Flag(
            "grpc-infer-response-compression-level",
            one_of(
                ("none", "low", "medium", "high"),
                "invalid argument for --grpc_infer_response_compression_level",
                any_case=True,
            ),
            "Compress the responses of ModelInfer and ModelStreamInfer: none, low, medium or high. The level chooses "
            "the algorithm, among those that the client understands.",
            "none",
        ),
        Flag(
            "grpc-max-receive-bytes",
            number(1),
            "Most bytes of a request message, as sent and unpacked. Messages that carry neither tensors nor files may "
            "have 1 MiB at most.",
            INT32_MAX,
        ),
        Flag(
            "grpc-max-compression-ratio",
            number(0),
            "How many times its size a compressed message may unpack to, beyond 16 MiB; 0 for any number.",
            1000,
        ),
        Flag("grpc-keepalive-time", number(1), "Milliseconds without a sign of a client until it is pinged.", 7200000),
        Flag("grpc-keepalive-timeout", number(1), "Milliseconds to wait for a sign of a pinged client.", 20000),
        Flag("grpc-keepalive-permit-without-calls", BOOLEAN, "Ping also while no call is in flight.", False),
        Flag("grpc-http2-max-pings-without-data", number(0), "Pings without data between them; 0 for any number.", 2),
        Flag(
            "grpc-http2-min-recv-ping-interval-without-data",
            number(0),
            "Milliseconds that must lie between a client's pings without data.",
            300000,
        ),
        Flag("grpc-http2-max-ping-strikes", number(0), "Bad pings until a connection is closed; 0 for any number.", 2),
        Flag(
            "grpc-max-connection-age",
            number(0),
            "Milliseconds until a client is asked to reconnect; 0 for never.",
            0,
        ),
        Flag("grpc-max-connection-age-grace", number(0), "Milliseconds for its open calls then; 0 for any time.", 0),
        Flag(
            "grpc-restricted-protocol",
            restriction("--grpc-restricted-protocol", "protocol"),
            "Calls that need metadata: <category,...>:<key>=<value>. The metadata's key is triton-grpc-protocol-<key>. "
            "A value @/<path> is the line that this file holds.",
            repeatable=True,
        ),
    ),
    Group(
        "OpenAI",
        Flag(
            "openai-port",
            PORT,
            "Port to listen on for clients of OpenAI's interface, at --http-address, with the limits of HTTP and, with "
            "--http-use-ssl, its certificate; 0 for any free one. Without it there is no such port.",
            None,
        ),
        Flag("openai-on-http", BOOLEAN, "Whether to serve OpenAI's interface at the port of HTTP, too: /v1.", False),
    ),
    Group(
        "Sagemaker",
        *_cloud("sagemaker", "SageMaker", ""),
        Flag(
            "sagemaker-safe-port-range",
            pair("-", PORT, PORT),
            "Ports that services other than SageMaker's may listen on: <first>-<last>.",
        ),
    ),
    Group(
        "Vertex",
        *_cloud("vertex-ai", "Vertex AI", ", by default with AIP_MODE=PREDICTION"),
        Flag(
            "vertex-ai-default-model",
            STRING,
            "The model that predictions are for; without it there must be exactly one that is ready.",
            "",
        ),
    ),
    Group(
        "Metrics",
        Flag("allow-metrics", BOOLEAN, "Whether to serve metrics.", True),
        Flag("allow-cpu-metrics", BOOLEAN, "Whether metrics tell about the CPU.", True),
        Flag("allow-gpu-metrics", BOOLEAN, "Whether metrics tell about GPUs, if there are any.", True),
        Flag("metrics-address", STRING, "Address to listen on for metrics; that of HTTP by default.", ""),
        Flag("metrics-port", PORT, "Port to listen on for metrics; 0 for any free one.", 8002),
        Flag(
            "console",
            one_of(("auto", "full", "view", "off"), "invalid argument for --console"),
            "The page /console on the metrics port, which shows what the server does. It also sends requests, loads "
            "models and changes settings: with auto for clients of this machine, or where --access-config says who "
            "may; with full for all who reach the port; with view for none. With off there is no page.",
            "auto",
        ),
        Flag(
            "metrics-interval-ms",
            replace(number(1), placeholder="<float>"),
            "Milliseconds; CPU and GPU metrics are taken twice in each.",
            2000,
        ),
        Flag(
            "metrics-config",
            Kind("<<string>=<string>>", read_metrics_setting),
            "Setting of the metrics. counter_latencies=false leaves out all counters of times and stops the others; "
            "summary_latencies=true adds quantiles of times: those of summary_quantiles=<quantile>:<error>,...; "
            "histogram_latencies=true adds a histogram of the times until the first response of decoupled models.",
            repeatable=True,
        ),
    ),
    Group(
        "Tracing",
        Flag(
            "trace-config",
            Kind("<<string>,<string>=<string>>", read_trace_setting),
            "Setting of the traces: level=OFF|TIMESTAMPS|TENSORS (several add up), rate=<every how many requests>, "
            "count=<how many traces, -1 for any number>, mode=triton|opentelemetry; triton,file=<path> and "
            "triton,log-frequency=<traces a file> for trace files; opentelemetry,url=<of a collector>, "
            "opentelemetry,resource=<key>=<value>, opentelemetry,bsp_max_queue_size=, bsp_schedule_delay= (ms) and "
            "bsp_max_export_batch_size= for spans.",
            repeatable=True,
        ),
    ),
    Group(
        "Backend",
        Flag(
            "backend-config",
            named_setting("--backend-config", "backend name", name_needed=False),
            "Setting for a backend, <backend name>,<setting>=<value>, or without the name for all of them.",
            repeatable=True,
        ),
        Flag(
            "backend-directory",
            STRING,
            "Directory of Python-based backends, each a folder of the backend's name with a model.py.",
            "/opt/tritonserver/backends",
        ),
    ),
    Group(
        "Python Models",
        Flag(
            "python-user",
            STRING,
            "User that the processes of Python models run as: <name or number>, or <name or number>:<group>. Needs a "
            "server that runs as root. By default they run as the server's own user, and can do to its process and its "
            "files what that may.",
            "",
        ),
        Flag(
            "python-memory-limit",
            number(64 << 20, INT64_MAX, or_zero=True),
            "Most bytes of private memory of each process of a Python model, 64 MiB or more; 0 for no limit.",
            0,
        ),
    ),
    Group(
        "Repository Agent",
        Flag(
            "repoagent-directory",
            STRING,
            "Directory of repository agent libraries; here agents are Python classes.",
            "/opt/tritonserver/repoagents",
            missing=_ENTRY_POINTS,
            idle="/opt/tritonserver/repoagents",
        ),
    ),
    Group(
        "Response Cache",
        Flag(
            "cache-config",
            named_setting("--cache-config", "cache name", name_needed=True),
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
            idle="/opt/tritonserver/caches",
        ),
    ),
    Group(
        "Rate Limiter",
        Flag(
            "rate-limit",
            one_of(("execution_count", "off"), "invalid argument for --rate-limit"),
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
    Group(
        "Memory/Device Management",
        Flag(
            "pinned-memory-pool-byte-size",
            number(0, INT64_MAX),
            "Most bytes of pinned memory for copies to and from GPUs.",
            268435456,
        ),
        Flag(
            "cuda-memory-pool-byte-size",
            pair(":", INTEGER, number(0, INT64_MAX)),
            "Most bytes of GPU memory for tensors: <GPU>:<bytes>. A GPU of which nothing is said gives what it has.",
            repeatable=True,
        ),
        Flag(
            "cuda-virtual-address-size",
            pair(":", INTEGER, INTEGER64),
            "Address space for a sequence state that grows on a GPU: <GPU>:<bytes>.",
            repeatable=True,
            missing="the states of sequences are kept in the server's memory",
        ),
        Flag(
            "min-supported-compute-capability",
            FLOAT,
            "GPUs of a lower compute capability are not used.",
            MIN_COMPUTE_CAPABILITY,
        ),
        Flag(
            "buffer-manager-thread-count",
            INTEGER,
            "Threads that copy tensors, in tritonserver.",
            0,
            missing="an instance copies its tensors itself",
            idle=0,
            tolerated=True,
        ),
        Flag(
            "host-policy",
            Kind("<<string>,<string>=<string>>", read_host_policy),
            "Where instances run: <policy name>,<setting>=<value>. Settings: cpu-cores, ranges such as 0-3,8-11, for "
            "their threads and processes; numa-node, a number, for their memory. An instance group names its policy in "
            "host_policy; those that name none have cpu, model or gpu_<device>.",
            repeatable=True,
        ),
        Flag(
            "model-load-gpu-limit",
            pair(":", INTEGER, Kind("<fraction>", FLOAT.read)),
            "Share of a GPU's memory above which no model is loaded: <GPU>:<fraction>.",
            repeatable=True,
        ),
    ),
    Group(
        "Shared Memory",
        Flag("allow-client-shm", BOOLEAN, "Whether clients may register shared memory.", False),
    ),
    Group(
        "Limits",
        Flag(
            "max-inflight-requests",
            number(1),
            "Requests that may be accepted and not yet answered, in the whole server. At this bound it stops reading "
            "from its connections.",
            65_536,
        ),
        Flag(
            "max-inflight-bytes",
            number(1 << 20, INT64_MAX),
            "The same for the bytes of their inputs, of bodies that still arrive, and of what those expand to.",
            4 << 30,
        ),
        Flag(
            "front-ends",
            FRONT_ENDS,
            "Processes that serve HTTP and gRPC, besides the one that executes requests, so that more cores are used; "
            "0 for none: one process does all. With auto, which is the default, none below 4 cores; then one for each "
            "4, at least 2 and at most 8.",
        ),
        Flag(
            "poll-us",
            POLL_US,
            "Microseconds for which the server looks again and again for what comes next, before it sleeps, while "
            "events follow each other that closely; 0 for never. With auto, which is the default, 60 if there are two "
            "cores for each process of the server, else 0.",
        ),
        Flag(
            "max-address-share",
            number(1, 100),
            "Percentage of a port's connections that one address may hold, and of what may arrive or wait to be read. "
            "Behind a reverse proxy, whose address is that of all clients: 100.",
            50,
        ),
        Flag(
            "max-tensor-rank",
            number(1, MAX_RANK),
            "Most dimensions of a request's input, including the batch's.",
            MAX_RANK,
        ),
        Flag("max-tensor-elements", number(1, INT64_MAX), "Most elements of a request's input of type BYTES.", 1 << 20),
        Flag(
            "hang-limit-secs",
            seconds(),
            "Seconds after which a batch's execution counts as hung, and its instance is replaced; 0 for never. A "
            "model may have a limit of its own, by its parameter EXECUTION_LIMIT_SECS.",
            300.0,
        ),
        Flag(
            "watchdog-limit-secs",
            seconds(1, or_zero=True),
            "Seconds for which the event loop may be held up before the server counts as not ready, until the loop has "
            "recovered; 0 for no watchdog. More than 1 s is always logged.",
            10.0,
        ),
        Flag(
            "restart-limit",
            number(0),
            "An instance that dies is started again, after ever longer delays. If it has died more often than this in "
            "a row, and its model has no other one, what is queued is refused meanwhile.",
            5,
        ),
        Flag(
            "restart-window-secs",
            seconds(),
            "Seconds for which an instance must be up before its deaths are forgotten.",
            60.0,
        ),
    ),
    Group(
        "Routes",
        Flag(
            "routes",
            STRING,
            "File (TOML) of names for which models or versions answer, by weights, and whose shares may move by "
            "themselves. It is read again when it changes.",
            "",
        ),
    ),
    Group(
        "Access",
        Flag(
            "access-config",
            STRING,
            "File (TOML) that says who the callers are, what they may do, and how much. It is read again when it "
            "changes. Without it anyone may do anything.",
            "",
        ),
        Flag(
            "audit-log",
            STRING,
            "File to which refusals, and calls that change the server, are appended, a line of JSON each. Needs "
            "--access-config.",
            "",
        ),
    ),
    Group(
        "Request Log",
        Flag(
            "request-log",
            STRING,
            "File to write to what clients ask (time, model, rows, sizes, priority, timeout, sequence, tenant, and "
            "protocol; no contents), so that it can be asked again; see trireme request-log. A file that is there "
            "becomes FILE.1.",
            "",
        ),
        Flag(
            "request-log-file-size",
            number(1 << 16, INT64_MAX),
            "Most bytes that the file has before it is renamed FILE.1, that one FILE.2, and so on.",
            DEFAULT_FILE_BYTES,
        ),
        Flag("request-log-files", number(0, 10_000), "Renamed files that are kept.", DEFAULT_FILES),
        Flag(
            "request-log-results",
            BOOLEAN,
            "Whether to log what came of each request, too: times, batch, instance, and why it was refused.",
            False,
        ),
    ),
    Group(
        "DEPRECATED",
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
        _old_trace("file", STRING, "File for traces.", "", "triton,file=<filepath>"),
        _old_trace(
            "level", Kind("<string>", read_trace_level), "What is traced.", None, "level=<OFF|TIMESTAMPS|TENSORS>"
        ),
        _old_trace("rate", INTEGER, "Every how many requests one is traced.", 1000, "rate=<rate value>"),
        _old_trace("count", INTEGER, "How many traces are taken.", UNLIMITED, "count=<count value>"),
        _old_trace("log-frequency", INTEGER, "Traces a file.", 0, "triton,log-frequency=<log frequency value>"),
    ),
)
"""Every flag, in the order of the usage text."""

FLAGS = {flag.name: flag for group in GROUPS for flag in group.flags}
