"""The flags of `trireme serve` that configure what this version has (docs/reference/command-line.md#flags); data
only."""

from __future__ import annotations

from ...engine.tensor_limits import MAX_RANK
from ..http.guards import HOST, ORIGIN
from ..logging import FORMATS
from .flags import Flag, Group, by_name
from .later_flags import (
    DEPRECATED,
    HTTP_LATER,
    LATER_AFTER_METRICS,
    LATER_BEFORE_METRICS,
    REPOSITORY_LATER,
)
from .python_flags import PYTHON
from .trace_flags import TRACING
from .values import (
    BOOLEAN,
    FLOAT,
    INT32_MAX,
    INT64_MAX,
    INTEGER,
    PORT,
    STRING,
    Kind,
    in_range,
    list_of,
    named_setting,
    not_empty,
    one_of,
    read_int,
    read_int64,
    read_metrics_setting,
    read_pattern,
    read_verbosity,
    restriction,
)

_SERVER = Group(
    "Server",
    (
        Flag("id", STRING, "Name of this server in its metadata.", "triton"),
        Flag(
            "exit-timeout-secs",
            INTEGER,
            "Seconds that a shutdown may take to finish the requests in flight; after that the server exits at once.",
            30,
        ),
    ),
)

_LOGGING = Group(
    "Logging",
    (
        Flag(
            "log-verbose",
            Kind("<integer>", read_verbosity),
            "Level of verbose logging: 0 for none, the higher the more.",
            0,
        ),
        Flag("log-info", BOOLEAN, "Whether to log information.", True),
        Flag("log-warning", BOOLEAN, "Whether to log warnings.", True),
        Flag("log-error", BOOLEAN, "Whether to log errors.", True),
        Flag(
            "log-format",
            Kind("<string>", one_of(FORMATS, "invalid argument for --log-format")),
            'How a log line starts: "default" for LMMDD hh:mm:ss.ssssss (L is the level\'s letter), "ISO8601" for '
            'YYYY-MM-DDThh:mm:ssZ L; "json" makes each line a JSON object.',
            "default",
        ),
        Flag("log-file", STRING, "File for the log, in place of the console.", ""),
    ),
)

_REPOSITORY = Group(
    "Model Repository",
    (
        Flag(
            "model-store",
            Kind("<string>", not_empty("Error: empty argument for --model-store")),
            "The same as --model-repository.",
            repeatable=True,
        ),
        Flag(
            "model-repository",
            Kind("<string>", not_empty("Error: empty argument for --model-repository")),
            "Directory with models, one sub-directory each. May be given several times for several repositories; a "
            "name that is in two of them is not served, unless there are namespaces.",
            repeatable=True,
        ),
        Flag("exit-on-error", BOOLEAN, "Whether to exit when a model does not load at start.", True),
        Flag(
            "disable-auto-complete-config",
            None,
            "Take model configurations as they are written, and complete nothing from the model files.",
            False,
        ),
        Flag(
            "strict-readiness",
            BOOLEAN,
            "Whether the server counts as ready only while all of its models are.",
            True,
        ),
        Flag(
            "model-control-mode",
            Kind(
                "<string>",
                one_of(("none", "poll", "explicit"), "invalid argument for --model-control-mode", any_case=True),
            ),
            'Who decides what is loaded: "none" loads every model at start and changes nothing later, "poll" follows '
            'the repository, "explicit" follows load and unload calls.',
            "none",
        ),
        Flag(
            "repository-poll-secs",
            INTEGER,
            "Seconds between two looks at the repository, in poll mode; 0 for none.",
            15,
        ),
        Flag(
            "load-model",
            STRING,
            "Model to load at start in explicit mode; may be given several times. '*' alone loads all.",
            repeatable=True,
        ),
        Flag(
            "model-config-name",
            Kind("<string>", not_empty("Error: empty argument for --model-config-name")),
            "Use configs/<name>.pbtxt of a model, where it is there, in place of its config.pbtxt.",
            "",
        ),
        Flag("model-load-thread-count", INTEGER, "How many models may load at the same time.", 4),
        Flag(
            "model-load-retry-count",
            INTEGER,
            "How often to try again to load a model that could not be loaded.",
            0,
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
        *REPOSITORY_LATER,
    ),
)

_HTTP = Group(
    "HTTP",
    (
        Flag("allow-http", BOOLEAN, "Whether to serve HTTP.", True),
        Flag("http-address", STRING, "Address to listen on for HTTP.", "0.0.0.0"),
        Flag("http-port", PORT, "Port to listen on for HTTP; 0 for any free one.", 8000),
        Flag("reuse-http-port", BOOLEAN, "Let several servers with this flag share the port.", False),
        Flag(
            "http-header-forward-pattern",
            Kind("<string>", read_pattern),
            "Regular expression (RE2); HTTP headers whose names match it become parameters of the inference request.",
            "",
        ),
        Flag(
            "http-max-input-size",
            Kind(
                "<integer>",
                in_range(read_int64, 1, INT64_MAX, "Error: --http-max-input-size must be greater than 0."),
            ),
            "Most bytes that a request's body may have, also after decompression. Binary tensors are bounded by "
            "--max-inflight-bytes alone.",
            67108864,
        ),
        Flag(
            "http-max-management-size",
            Kind(
                "<integer>",
                in_range(read_int64, 1, INT64_MAX, "Error: --http-max-management-size must be greater than 0."),
            ),
            "Most bytes that the body of a call other than inference may have, unless it brings a model's files.",
            1048576,
        ),
        Flag(
            "http-max-json-values",
            Kind("<integer>", in_range(read_int64, 1, INT64_MAX, "Error: --http-max-json-values must be at least 1.")),
            "Most values that the JSON of a request may have, besides plain tensor data in large arrays.",
            1 << 17,
        ),
        Flag(
            "http-max-compression-ratio",
            Kind(
                "<integer>",
                in_range(read_int, 0, INT32_MAX, "Error: --http-max-compression-ratio must not be negative."),
            ),
            "Most bytes that one byte of a request's compressed body may become, beyond the first 16 MiB; 0 for any "
            "number.",
            1000,
        ),
        Flag(
            "http-idle-timeout",
            Kind("<integer>", in_range(read_int, 0, INT32_MAX, "Error: --http-idle-timeout must be at least 0.")),
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
            Kind("<<string>:<string>=<string>>", restriction("--http-restricted-api", "api")),
            "Calls that need a header: <category,...>:<header>=<value>. The categories are those of "
            "--grpc-restricted-protocol. A value @/<path> is the line that this file holds.",
            repeatable=True,
        ),
        Flag(
            "http-allowed-origins",
            Kind("<string,...>", list_of(ORIGIN, "--http-allowed-origins", "<scheme>://<host>[:<port>]")),
            "Origins whose web pages may make calls that change the server; '*' for all. Programs send no Origin, and "
            "may make them anyway.",
            (),
        ),
        Flag(
            "http-allowed-hosts",
            Kind("<string,...>", list_of(HOST, "--http-allowed-hosts", "<host>[:<port>]")),
            "Hosts by which HTTP requests may name the server; any if none is given.",
            (),
        ),
        *HTTP_LATER,
    ),
)

_METRICS = Group(
    "Metrics",
    (
        Flag("allow-metrics", BOOLEAN, "Whether to serve metrics.", True),
        Flag("allow-cpu-metrics", BOOLEAN, "Whether metrics tell about the CPU.", True),
        Flag("allow-gpu-metrics", BOOLEAN, "Whether metrics tell about GPUs, if there are any.", True),
        Flag("metrics-address", STRING, "Address to listen on for metrics; that of HTTP by default.", ""),
        Flag("metrics-port", PORT, "Port to listen on for metrics; 0 for any free one.", 8002),
        Flag(
            "metrics-interval-ms",
            Kind("<float>", in_range(read_int, 1, INT32_MAX, "Error: --metrics-interval-ms must be greater than 0.")),
            "Milliseconds; CPU and GPU metrics are taken twice in each interval.",
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
)

_BACKEND = Group(
    "Backend",
    (
        Flag(
            "backend-config",
            Kind("<<string>,<string>=<string>>", named_setting("--backend-config", "backend", name_needed=False)),
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
)

_LIMITS = Group(
    "Limits",
    (
        Flag(
            "max-inflight-requests",
            Kind("<integer>", in_range(read_int, 1, INT32_MAX, "Error: --max-inflight-requests must be at least 1.")),
            "Requests that may be accepted and not yet answered, in the whole server. At this bound it stops reading "
            "from its connections.",
            65_536,
        ),
        Flag(
            "max-inflight-bytes",
            Kind("<integer>", in_range(read_int64, 1, INT64_MAX, "Error: --max-inflight-bytes must be at least 1.")),
            "The same for the bytes of their inputs, of bodies that still arrive, and of what those expand to.",
            4 << 30,
        ),
        Flag(
            "max-address-share",
            Kind("<integer>", in_range(read_int, 1, 100, "Error: --max-address-share must be between 1 and 100.")),
            "Percentage of a port's connections that one address may hold, and of what may arrive or wait to be read. "
            "Behind a reverse proxy, whose address is that of all clients: 100.",
            50,
        ),
        Flag(
            "max-tensor-rank",
            Kind(
                "<integer>",
                in_range(read_int, 1, MAX_RANK, f"Error: --max-tensor-rank must be between 1 and {MAX_RANK}."),
            ),
            "Most dimensions of a request's input, the batch dimension included.",
            MAX_RANK,
        ),
        Flag(
            "max-tensor-elements",
            Kind("<integer>", in_range(read_int64, 1, INT64_MAX, "Error: --max-tensor-elements must be at least 1.")),
            "Most elements of a request's input of type BYTES.",
            1 << 20,
        ),
        Flag(
            "hang-limit-secs",
            FLOAT,
            "Seconds after which a batch's execution counts as hung, and its instance is replaced; 0 for never. A "
            "model may have a limit of its own, by its parameter EXECUTION_LIMIT_SECS.",
            300.0,
        ),
        Flag(
            "watchdog-limit-secs",
            FLOAT,
            "Seconds for which the event loop may be held up before the server counts as not ready, until the loop has "
            "recovered; 0 for no watchdog. More than 1 s is always logged.",
            10.0,
        ),
        Flag(
            "restart-limit",
            Kind("<integer>", in_range(read_int, 0, INT32_MAX, "Error: --restart-limit must be at least 0.")),
            "An instance that dies is started again, after ever longer delays. If it has died more often than this in "
            "a row, and its model has no other one, what is queued is refused meanwhile.",
            5,
        ),
        Flag(
            "restart-window-secs",
            FLOAT,
            "Seconds for which an instance must be up before its deaths are forgotten.",
            60.0,
        ),
    ),
)

_SIMULATION = Group(
    "Simulation",
    (
        Flag(
            "request-log",
            STRING,
            "File to write the arrival of each request to (time, model, rows, priority, timeout, sequence), for "
            "python -m trireme.simulations --trace. What was in it is overwritten.",
            "",
        ),
    ),
)

GROUPS: tuple[Group, ...] = (
    Group("", (Flag("help", None, "Show this text.", False),)),
    _SERVER,
    _LOGGING,
    _REPOSITORY,
    _HTTP,
    *LATER_BEFORE_METRICS,
    _METRICS,
    TRACING,
    _BACKEND,
    PYTHON,
    *LATER_AFTER_METRICS,
    _LIMITS,
    _SIMULATION,
    DEPRECATED,
)
"""Every flag, in the order of the usage text."""

FLAGS = by_name(GROUPS)
