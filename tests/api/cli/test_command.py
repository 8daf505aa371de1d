"""Flag values become options, checked against each other (docs/reference/command-line.md#flags)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trireme.actors.request_log import RequestLogSettings
from trireme.api.cli.access import AccessSettings
from trireme.api.cli.command import ServeCommand, build_command, limits_in_vain
from trireme.api.cli.flag_table import FLAGS, GROUPS
from trireme.api.cli.flags import UsageError, parse
from trireme.api.cli.usage import usage_text
from trireme.api.grpc.compression import CompressionLevel
from trireme.api.grpc.options import GrpcOptions
from trireme.api.http2.limits import KeepaliveOptions
from trireme.api.request_parameters import Restriction
from trireme.api.sockets.transport import TlsOptions
from trireme.engine.backends.confinement import Confinement, find_account
from trireme.engine.gpu.discovery import Gpu, Gpus
from trireme.engine.gpu.pinned_pool import GpuLimits
from trireme.engine.options import ControlMode
from trireme.engine.scheduling.rate_limiter import ExplicitResource
from trireme.engine.tensor_limits import TensorLimits


def command(*words: str) -> ServeCommand:
    return build_command(parse(words, FLAGS), {})


def refusal(*words: str) -> str:
    with pytest.raises(UsageError) as raised:
        command(*words)
    return raised.value.message


def test_repositories_may_be_in_object_stores() -> None:
    """Their addresses stay as they are written: a path would lose one of two slashes."""
    server = command(
        "--model-repository=s3://https://host:9/b//m", "--model-repository=dir", "--model-store=as://a/c"
    ).server
    assert server.model_repository == ("as://a/c", Path("dir"), "s3://https://host:9/b//m")
    assert (server.repository_cache_directory, server.repository_cache_bytes) == (None, 0)
    server = command("--repository-cache-dir=cache", "--repository-cache-byte-size=5").server
    assert (server.repository_cache_directory, server.repository_cache_bytes) == (Path("cache"), 5)


def test_server_options_take_the_flags_values() -> None:
    server = command(
        "--model-repository=b",
        "--model-store=a",
        "--model-repository=b",
        "--id=me",
        "--exit-timeout-secs=0",
        "--exit-on-error=false",
        "--strict-readiness=false",
        "--disable-auto-complete-config",
        "--model-config-name=fast",
        "--model-load-thread-count=0",
        "--backend-config=onnxruntime,threads=1",
        "--backend-config=default-max-batch-size=2",
        "--max-inflight-requests=10",
        "--max-inflight-bytes=2000000",
        "--max-tensor-rank=3",
        "--max-tensor-elements=30",
        "--hang-limit-secs=1.5",
        "--restart-limit=0",
        "--restart-window-secs=2.5",
    ).server
    assert server.model_repository == (Path("a"), Path("b"))
    assert server.server_id == "me"
    assert server.exit_timeout_s == 0
    assert not server.exit_on_error
    assert not server.strict_readiness
    assert not server.auto_complete
    assert server.model_config_name == "fast"
    assert server.model_load_thread_count == 1
    assert server.options_for_backend("onnxruntime") == {"threads": "1", "default-max-batch-size": "2"}
    assert (server.max_inflight_requests, server.max_inflight_bytes, server.hang_limit_s) == (10, 2_000_000, 1.5)
    assert server.tensor_limits == TensorLimits(3, 30)
    assert (server.restart_limit, server.restart_window_s) == (0, 2.5)


@pytest.mark.parametrize(
    ("words", "auto_complete"),
    [
        ((), True),
        (("--strict-model-config=true",), False),
        (("--strict-model-config=false",), True),
        (("--strict-model-config=false", "--disable-auto-complete-config"), False),
    ],
)
def test_two_flags_turn_auto_completion_off(words: tuple[str, ...], auto_complete: bool) -> None:
    assert command(*words).server.auto_complete is auto_complete


def test_metrics_listen_where_http_does_unless_told_otherwise() -> None:
    metrics = command("--http-address=127.0.0.1", "--metrics-port=7").metrics
    assert metrics is not None
    assert metrics.service.bind == ("127.0.0.1:7",)
    metrics = command("--http-address=127.0.0.1", "--metrics-address=::1").metrics
    assert metrics is not None
    assert metrics.service.bind == ("[::1]:8002",)


def test_services_can_be_switched_off() -> None:
    off = command("--allow-http=0", "--allow-metrics=off")
    assert off.http is None
    assert off.metrics is None


def test_tls_needs_a_certificate_and_a_key() -> None:
    assert refusal("--http-use-ssl=1", "--http-server-key=k") == "Error: --http-use-ssl needs --http-server-cert."
    assert refusal("--http-use-ssl=1", "--http-server-cert=c") == "Error: --http-use-ssl needs --http-server-key."
    http = command(
        "--http-use-ssl=1", "--http-server-cert=c", "--http-server-key=k", "--http-root-cert=r", "--reuse-http-port=1"
    ).http
    assert http is not None
    assert http.service.tls == TlsOptions(Path("c"), Path("k"), Path("r"))
    assert http.service.reuse_port


def test_the_http_front_end_is_told_its_limits() -> None:
    http = command(
        "--http-max-input-size=5",
        "--http-max-management-size=7",
        "--http-header-forward-pattern=x-.*",
        "--http-port=0",
        "--http-restricted-api=health,inference:key=a=b",
        "--http-restricted-api=trace:other=secret",
    ).http
    assert http is not None
    assert (http.options.max_input_bytes, http.options.header_forward_pattern) == (5, "x-.*")
    assert http.options.max_management_bytes == 7
    assert http.options.restrictions == (
        Restriction(("health", "inference"), "key", "a=b"),
        Restriction(("trace",), "other", "secret"),
    )
    assert http.service.bind == ("0.0.0.0:0",)
    assert http.service.tls is None


def test_the_rate_limiter_is_told_what_there_is() -> None:
    server = command("--rate-limit=execution_count", "--rate-limit-resource=R:4", "--rate-limit-resource=S:1:2").server
    assert server.rate_limit
    assert server.rate_limit_resources == (ExplicitResource("R", 4), ExplicitResource("S", 1, 2))
    assert not command("--rate-limit=off").server.rate_limit


GRPC_FILES = ("--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-root-cert=r")


@pytest.mark.parametrize(
    ("words", "tls"),
    [
        ((), None),
        (("--grpc-use-ssl=true",), TlsOptions(Path("c"), Path("k"))),
        (("--grpc-use-ssl-mutual=true",), TlsOptions(Path("c"), Path("k"), Path("r"))),
        (("--grpc-use-ssl-mutual=false",), TlsOptions(Path("c"), Path("k"))),
    ],
)
def test_grpc_is_secured_as_asked(words: tuple[str, ...], tls: TlsOptions | None) -> None:
    """Clients are checked only if asked for; naming the flag turns TLS on (docs/reference/grpc.md#tls)."""
    grpc = command(*GRPC_FILES, *words).grpc
    assert grpc is not None
    assert grpc.service.tls == tls


@pytest.mark.parametrize(
    ("words", "idle_s"), [((), 75), (("--http-idle-timeout=5",), 5), (("--http-idle-timeout=0",), None)]
)
def test_idle_connections_are_kept_for_as_long_as_is_said(words: tuple[str, ...], idle_s: int | None) -> None:
    """Not over gRPC, where clients keep connections for later, and have flags of their own."""
    given = command(*words)
    assert given.http is not None
    assert given.metrics is not None
    assert given.grpc is not None
    assert given.http.service.limits.idle_timeout_s == idle_s
    assert given.metrics.service.limits.idle_timeout_s == idle_s
    assert given.grpc.service.limits.idle_timeout_s is None


def test_an_address_holds_what_it_is_allowed_to() -> None:
    given = command("--max-address-share=100")
    fronts = (given.http, given.metrics, given.grpc)
    assert [front.service.limits.address_share for front in fronts if front is not None] == [1.0] * 3


def test_the_grpc_front_end_is_told_what_its_flags_say() -> None:
    grpc = command(
        "--grpc-address=127.0.0.1",
        "--grpc-port=7",
        "--reuse-grpc-port=1",
        "--grpc-header-forward-pattern=x-.*",
        "--grpc-infer-response-compression-level=HIGH",
        "--grpc-keepalive-time=5000",
        "--grpc-keepalive-timeout=2147483647",
        "--grpc-keepalive-permit-without-calls=1",
        "--grpc-http2-max-pings-without-data=3",
        "--grpc-http2-min-recv-ping-interval-without-data=250",
        "--grpc-http2-max-ping-strikes=0",
        "--grpc-max-connection-age=60000",
        "--grpc-restricted-protocol=health,metadata:key=secret",
        "--allow-client-shm=true",
    ).grpc
    assert grpc is not None
    assert (grpc.service.bind, grpc.service.reuse_port, grpc.service.name) == (("127.0.0.1:7",), True, "GRPC")
    assert grpc.service.compression_level is CompressionLevel.HIGH
    assert grpc.service.http2.keepalive == KeepaliveOptions(5.0, math.inf, True, 3, 0.25, 0, 60.0, math.inf)
    assert grpc.options == GrpcOptions("x-.*", True, (Restriction(("health", "metadata"), "key", "secret"),))
    assert command("--allow-grpc=0").grpc is None


def test_grpc_keeps_to_tritons_defaults() -> None:
    grpc = command().grpc
    assert grpc is not None
    assert grpc.service.bind == ("0.0.0.0:8001",)
    assert grpc.service.http2.keepalive == KeepaliveOptions(7200.0, 20.0, False, 2, 300.0, 2, math.inf, math.inf)
    assert grpc.options == GrpcOptions()


def test_counters_can_be_frozen() -> None:
    frozen = command("--metrics-config=counter_latencies=false", "--metrics-interval-ms=500").metrics
    assert frozen is not None
    assert not frozen.counter_latencies
    assert frozen.interval_s == 0.5


def test_latencies_can_be_sorted() -> None:
    """What a setting turned on or off no later one undoes, as in Triton."""
    given = command(
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_latencies=false",
        "--metrics-config=histogram_latencies=true",
        "--metrics-config=counter_latencies=false",
        "--metrics-config=counter_latencies=true",
    )
    assert given.metrics is not None
    assert (given.server.summary_latencies, given.server.histogram_latencies) == (True, True)
    assert not given.metrics.counter_latencies
    for words in ((), ("--metrics-config=summary_latencies=false",), ("--metrics-config=histogram_latencies=false",)):
        server = command(*words).server
        assert (server.summary_latencies, server.histogram_latencies) == (False, False)
    assert not command("--allow-metrics=0", "--metrics-config=summary_latencies=true").server.summary_latencies


@pytest.mark.parametrize(
    ("settings", "quantiles"),
    [
        ([], (0.5, 0.9, 0.95, 0.99, 0.999)),
        (["0.5:0.1,0.25:0.01"], (0.5, 0.25)),
        (["0.5:0.1", "0.7:0.1"], (0.7,)),
        (["0.5:0.1,1.5:0.1,0.7:2,0.3:0.1x,-0.1:0.1,0.5:0.2"], (0.5, 1.5, 0.7, 0.3, -0.1)),
    ],
)
def test_quantiles(settings: list[str], quantiles: tuple[float, ...]) -> None:
    """The last setting counts, and each quantile once."""
    metrics = command(*(f"--metrics-config=summary_quantiles={setting}" for setting in settings)).metrics
    assert metrics is not None
    assert metrics.quantiles == quantiles


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--http-port=8001",
            "The server cannot listen to HTTP requests and GRPC requests at the same address and port 0.0.0.0:8001",
        ),
        (
            "--http-port=8002",
            "The server cannot listen to HTTP requests and metrics requests at the same address and port 0.0.0.0:8002",
        ),
        (
            "--allow-sagemaker=1 --allow-vertex-ai=1",
            (
                "The server cannot listen to SageMaker requests and Vertex AI requests at the same address and port "
                "0.0.0.0:8080"
            ),
        ),
        (
            "--sagemaker-safe-port-range=8000-8001",
            "The server cannot listen to metrics requests at port 8002, allowed port range is [8000, 8001]",
        ),
        (
            "--load-model=x",
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            "--model-control-mode=explicit --load-model=* --load-model=x",
            "Error: Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        (
            "--http-restricted-api=health:a=b --http-restricted-api=metadata,health:a=c",
            (
                'Bad option: "--http-restricted-api".\n'
                "restricted api 'health' can not be specified in multiple config groups"
            ),
        ),
        (
            "--response-cache-byte-size=1 --cache-config=local,size=1",
            (
                "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide "
                "one or the other."
            ),
        ),
        ("--grpc-use-ssl=1", "Error: --grpc-use-ssl needs --grpc-server-cert."),
        ("--grpc-use-ssl=1 --grpc-server-cert=c", "Error: --grpc-use-ssl needs --grpc-server-key."),
        (
            "--grpc-use-ssl-mutual=1 --grpc-server-cert=c --grpc-server-key=k",
            "Error: --grpc-use-ssl-mutual needs --grpc-root-cert.",
        ),
        (
            "--grpc-restricted-protocol=health:a=b --grpc-restricted-protocol=metadata,health:a=c",
            (
                'Bad option: "--grpc-restricted-protocol".\n'
                "restricted protocol 'health' can not be specified in multiple config groups"
            ),
        ),
    ],
)
def test_contradictions_are_refused(words: str, message: str) -> None:
    assert refusal(*words.split()) == message


@pytest.mark.parametrize("words", ["--allow-grpc=0 --http-port=8001", "--http-port=0 --metrics-port=0"])
def test_ports_may_be_equal_where_they_do_not_meet(words: str) -> None:
    command(*words.split())


def test_what_may_be_taken_of_gpus_reaches_the_server() -> None:
    """Of what is said twice of a GPU, the last counts."""
    options = command(
        "--pinned-memory-pool-byte-size=1000",
        "--cuda-memory-pool-byte-size=0:5",
        "--cuda-memory-pool-byte-size=1:6",
        "--cuda-memory-pool-byte-size=0:7",
        "--model-load-gpu-limit=0:0.8",
        "--min-supported-compute-capability=7.5",
    ).server
    assert options.gpu_limits == GpuLimits(1000, {0: 7, 1: 6}, {0: 0.8})
    assert 2 not in options.gpu_limits.device_pool_bytes
    assert options.min_compute_capability == 7.5


def test_without_flags_gpus_are_triton_s() -> None:
    options = command().server
    assert options.gpus is None
    assert options.min_compute_capability == 6.0
    assert options.gpu_limits == GpuLimits(256 << 20)


def test_python_models_may_be_limited_and_run_as_another_user() -> None:
    assert command().server.confinement == Confinement()
    options = command("--python-user=0:0", "--python-memory-limit=67108864").server
    assert options.confinement == Confinement(find_account("0:0"), 64 << 20)
    assert refusal("--python-user=no-such-user") == "Error: --python-user: there is no user 'no-such-user'"


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("-1:0.5", "expects device ID >= 0, got -1"),
        ("0:2", "expects limit fraction to be in range [0.0, 1.0], got 2.000000"),
        ("0:-1", "expects limit fraction to be in range [0.0, 1.0], got -1.000000"),
        ("0:nan", "expects limit fraction to be in range [0.0, 1.0], got nan"),
    ],
)
def test_a_limit_for_loading_is_a_share_of_a_gpu(limit: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        command(f"--model-load-gpu-limit={limit}")
    assert caught.value.message == f"error: setting model load GPU limit: Invalid argument - {text}"


def test_flags_that_name_a_gpu_which_is_not_there_are_told_of() -> None:
    limits = GpuLimits(device_pool_bytes={0: 1, 3: 1}, load_fractions={4: 0.5})
    assert list(limits_in_vain(limits, Gpus((Gpu(0), Gpu(1))))) == [
        "--cuda-memory-pool-byte-size has no effect for GPU 3, which is not there or not used",
        "--model-load-gpu-limit has no effect for GPU 4, which is not there or not used",
    ]


def test_origins_and_hosts_are_lists() -> None:
    http = command("--http-allowed-origins=https://A.example, http://b:80", "--http-allowed-hosts=a,[::1]:8000").http
    assert http is not None
    assert http.options.allowed_origins == ("https://a.example", "http://b:80")
    assert http.options.allowed_hosts == ("a", "[::1]:8000")
    assert "'<scheme>://<host>[:<port>],...'. Got a.example" in refusal("--http-allowed-origins=a.example")
    assert "'<host>[:<port>],...'. Got http://a" in refusal("--http-allowed-hosts=http://a")
    assert not command("--allow-code-upload=false").server.allow_code_upload


LOCAL = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1")


def test_without_a_file_nothing_is_traced_and_that_is_said() -> None:
    missing = "requests are not traced: --trace-config triton,file=<path> is missing"
    assert command(*LOCAL, "--trace-config=level=TIMESTAMPS").warnings == (missing,)
    assert command(*LOCAL, "--trace-config=level=TIMESTAMPS", "--trace-config=triton,file=t").warnings == ()
    exporting = command(*LOCAL, "--trace-config=level=TENSORS", "--trace-config=mode=opentelemetry")
    assert exporting.warnings == ("Tensor level tracing is not supported by the mode: opentelemetry",)


def test_access_rules() -> None:
    assert command("--access-config=a.toml").access == AccessSettings(Path("a.toml"))
    told = command("--access-config=a.toml", "--audit-log=b").access
    assert told == AccessSettings(Path("a.toml"), Path("b"))
    assert command().access is None
    assert refusal("--audit-log=b") == "Error: --audit-log has no effect without --access-config."


def test_request_logs() -> None:
    assert command().request_log is None
    assert command("--request-log=a").request_log == RequestLogSettings(Path("a"), 64 << 20, 4, False)
    sized = command(
        "--request-log=a", "--request-log-file-size=65536", "--request-log-files=0", "--request-log-results=1"
    )
    assert sized.request_log == RequestLogSettings(Path("a"), 65536, 0, True)
    for flag in ("--request-log-file-size=65536", "--request-log-files=1", "--request-log-results=true"):
        assert refusal(flag) == f"Error: {flag.partition('=')[0]} has no effect without --request-log."


def test_the_usage_text_names_every_flag_under_its_group() -> None:
    text = usage_text("trireme serve", GROUPS)
    assert text.startswith("Usage: trireme serve [options]\n  --help\n\tShow this text.\n\nServer:\n  --id <string>\n")
    lines = text.splitlines()
    for flag in FLAGS.values():
        assert (f"  --{flag.name} {flag.kind.placeholder}" if flag.kind else f"  --{flag.name}") in lines
    assert [line for line in lines if line.endswith(":") and not line.startswith("\t")] == [
        *(
            "Server:",
            "Logging:",
            "Model Repository:",
            "HTTP:",
            "GRPC:",
            "OpenAI:",
            "Sagemaker:",
            "Vertex:",
            "Metrics:",
            "Tracing:",
        ),
        *(
            "Backend:",
            "Python Models:",
            "Repository Agent:",
            "Response Cache:",
            "Rate Limiter:",
            "Memory/Device Management:",
        ),
        *("Shared Memory:", "Limits:", "Routes:", "Access:", "Request Log:", "DEPRECATED:"),
    ]


@pytest.mark.parametrize(
    ("words", "mode", "startup", "poll_s"),
    [
        ("", ControlMode.NONE, (), 0),
        ("--repository-poll-secs=5", ControlMode.NONE, (), 0),
        ("--model-control-mode=explicit --load-model=b --load-model=a", ControlMode.EXPLICIT, ("b", "a"), 0),
        ("--model-control-mode=EXPLICIT --load-model=*", ControlMode.EXPLICIT, ("*",), 0),
        ("--model-control-mode=poll", ControlMode.POLL, (), 15),
        ("--model-control-mode=poll --repository-poll-secs=3", ControlMode.POLL, (), 3),
        ("--model-control-mode=poll --repository-poll-secs=0", ControlMode.POLL, (), 0),
    ],
)
def test_model_control(words: str, mode: ControlMode, startup: tuple[str, ...], poll_s: int) -> None:
    options = command(*words.split()).server
    assert (options.model_control_mode, options.startup_models, options.repository_poll_s) == (mode, startup, poll_s)
