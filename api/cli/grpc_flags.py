"""The flags of the gRPC front end (docs/reference/command-line.md#flags)."""

from __future__ import annotations

from .flags import Flag, Group
from .values import (
    BOOLEAN,
    INT32_MAX,
    INTEGER,
    PORT,
    STRING,
    Kind,
    in_range,
    one_of,
    read_int,
    read_pattern,
    restriction,
)

_ONE_LOOP = "one event loop serves all connections"
_NO_POOL = "requests and responses are not kept for reuse"

GRPC = Group(
    "GRPC",
    (
        Flag("allow-grpc", BOOLEAN, "Whether to serve gRPC.", True),
        Flag("grpc-address", STRING, "Address to listen on for gRPC.", "0.0.0.0"),
        Flag("grpc-port", PORT, "Port to listen on for gRPC; 0 for any free one.", 8001),
        Flag("reuse-grpc-port", BOOLEAN, "Let several servers with this flag share the port.", False),
        Flag(
            "grpc-header-forward-pattern",
            Kind("<string>", read_pattern),
            "Regular expression (RE2); metadata whose keys match it become parameters of the inference request.",
            "",
        ),
        Flag(
            "grpc-infer-thread-count",
            Kind(
                "<integer>",
                in_range(
                    read_int, 2, 128, "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."
                ),
            ),
            "Threads for gRPC inference, in tritonserver.",
            2,
            missing=_ONE_LOOP,
        ),
        Flag(
            "grpc-infer-allocation-pool-size",
            INTEGER,
            "Request objects that are kept for reuse, in tritonserver.",
            8,
            missing=_NO_POOL,
        ),
        Flag(
            "grpc-max-response-pool-size",
            Kind(
                "<integer>",
                in_range(read_int, 1, INT32_MAX, "Error: --grpc-max-response-pool-size must be greater than 0."),
            ),
            "Most response objects that are kept for reuse.",
            INT32_MAX,
            missing=_NO_POOL,
        ),
        Flag("grpc-use-ssl", BOOLEAN, "Use TLS. Needs --grpc-server-cert and --grpc-server-key.", False),
        Flag(
            "grpc-use-ssl-mutual",
            BOOLEAN,
            "Use TLS, and check clients' certificates. Needs --grpc-root-cert as well.",
            False,
        ),
        Flag("grpc-server-cert", STRING, "File with the server's certificate chain, PEM.", ""),
        Flag("grpc-server-key", STRING, "File with the server's private key, PEM.", ""),
        Flag("grpc-root-cert", STRING, "File with the certificates, PEM, that clients' are checked against.", ""),
        Flag(
            "grpc-infer-response-compression-level",
            Kind(
                "<string>",
                one_of(
                    ("none", "low", "medium", "high"),
                    "invalid argument for --grpc_infer_response_compression_level",
                    any_case=True,
                ),
            ),
            "Compress the responses of ModelInfer and ModelStreamInfer: none, low, medium or high. The level chooses "
            "the algorithm, among those that the client understands.",
            "none",
        ),
        Flag(
            "grpc-max-receive-bytes",
            Kind(
                "<integer>",
                in_range(read_int, 1, INT32_MAX, f"Error: --grpc-max-receive-bytes must be between 1 and {INT32_MAX}."),
            ),
            "Most bytes of a request message, as sent and unpacked. Messages that carry neither tensors nor files may "
            "have 1 MiB at most.",
            INT32_MAX,
        ),
        Flag(
            "grpc-max-compression-ratio",
            Kind(
                "<integer>",
                in_range(read_int, 0, INT32_MAX, "Error: --grpc-max-compression-ratio must be at least 0."),
            ),
            "How many times its size a compressed message may unpack to, beyond 16 MiB; 0 for any number.",
            1000,
        ),
        Flag(
            "grpc-keepalive-time", INTEGER, "Milliseconds without a sign of a client after which it is pinged.", 7200000
        ),
        Flag("grpc-keepalive-timeout", INTEGER, "Milliseconds to wait for a sign of a client that was pinged.", 20000),
        Flag("grpc-keepalive-permit-without-calls", BOOLEAN, "Ping also while no call is in flight.", False),
        Flag(
            "grpc-http2-max-pings-without-data",
            INTEGER,
            "Pings that may be sent without data between them; 0 for any number.",
            2,
        ),
        Flag(
            "grpc-http2-min-recv-ping-interval-without-data",
            INTEGER,
            "Milliseconds that must lie between a client's pings without data.",
            300000,
        ),
        Flag(
            "grpc-http2-max-ping-strikes",
            INTEGER,
            "Bad pings after which a connection is closed; 0 for any number.",
            2,
        ),
        Flag(
            "grpc-max-connection-age",
            INTEGER,
            "Milliseconds after which a client is asked to connect anew; 0 for never.",
            0,
        ),
        Flag(
            "grpc-max-connection-age-grace",
            INTEGER,
            "Milliseconds left to its open calls after that; 0 for any time.",
            0,
        ),
        Flag(
            "grpc-restricted-protocol",
            Kind("<<string>:<string>=<string>>", restriction("--grpc-restricted-protocol", "protocol")),
            "Calls that need metadata: <category,...>:<key>=<value>. The metadata's key is triton-grpc-protocol-<key>. "
            "A value @/<path> is the line that this file holds.",
            repeatable=True,
        ),
    ),
)
