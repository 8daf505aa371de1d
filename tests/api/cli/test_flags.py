"""The command line is read as tritonserver reads it (docs/reference/command-line.md#grammar)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.cli.command import build_command
from trireme.api.cli.flag_table import FLAGS, GROUPS
from trireme.api.cli.flags import UsageError, parse
from trireme.engine.scheduling.rate_limiter import ExplicitResource


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--http-port", "81"], "http-port", 81),
        (["--http-port=81"], "http-port", 81),
        (["--http-p=81"], "http-port", 81),
        (["--http-port=1", "--http-port=2"], "http-port", 2),
        (["--http-port", "12abc"], "http-port", 12),
        (["--log-verbose", "-1"], "log-verbose", -1),
        (["--id", "--looks-like-a-flag"], "id", "--looks-like-a-flag"),
        (["--id="], "id", ""),
        (["--id=a=b"], "id", "a=b"),
        (["--allow-http", "OFF"], "allow-http", False),
        (["--allow-http=1"], "allow-http", True),
        (["--log-verbose=TRUE"], "log-verbose", 1),
        (["--log-verbose", "3"], "log-verbose", 3),
        (["--hang-limit-secs=1.5e1x"], "hang-limit-secs", 15.0),
        (["--model-control-mode", "NONE"], "model-control-mode", "none"),
        (["--model-memory-limit", "350000"], "model-memory-limit", 350_000),
        (["--model-memory-limit=200K"], "model-memory-limit", 200 << 10),
        (["--model-memory-limit=3m"], "model-memory-limit", 3 << 20),
        (["--model-memory-limit=16G"], "model-memory-limit", 16 << 30),
        (["--model-memory-limit=8388607T"], "model-memory-limit", 8_388_607 << 40),
        (["--disable-auto"], "disable-auto-complete-config", True),
        (["--model-repository", "a", "--model-repository=b"], "model-repository", ("a", "b")),
        (["--cuda-memory-pool-byte-size=0:64"], "cuda-memory-pool-byte-size", ((0, 64),)),
        (["--rate-limit-resource=R:3"], "rate-limit-resource", (ExplicitResource("R", 3),)),
        ([], "http-port", 8000),
        ([], "model-repository", ()),
    ],
)
def test_values(words: list[str], name: str, value: object) -> None:
    assert parse(words, FLAGS)[name] == value


def test_the_end_of_options_makes_everything_after_it_a_leftover_word() -> None:
    with pytest.raises(UsageError, match="Unexpected argument: --http-port"):
        parse(["--", "--http-port", "x"], FLAGS)


def test_a_leftover_word_is_reported_only_after_all_options_were_read() -> None:
    with pytest.raises(UsageError, match="Invalid option value"):
        parse(["stray", "--http-port=x"], FLAGS)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--bogus 1", "unrecognized option '--bogus'"),
        ("--bogus=1", "unrecognized option '--bogus=1'"),
        ("--http-port", "option '--http-port' requires an argument"),
        ("--help=1", "option '--help' doesn't allow an argument"),
        ("-h", "invalid option -- 'h'"),
        (
            "--allow-g=1",
            "option '--allow-g=1' is ambiguous; possibilities: '--allow-grpc' '--allow-gpu-metrics'",
        ),
    ],
)
def test_complaints(words: str, complaint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(words.split(), FLAGS)
    assert (raised.value.complaint, raised.value.message) == (complaint, complaint)


def test_an_unknown_option_is_told_with_those_that_are_nearest() -> None:
    with pytest.raises(UsageError) as raised:
        parse(["--http-prot=1"], FLAGS)
    complaint = "unrecognized option '--http-prot=1'"
    assert raised.value.complaint == complaint
    assert raised.value.message.startswith(f"{complaint}; nearest: '--http-port'")


@pytest.mark.parametrize(
    "word", ["--watchdog-limit-secs=0", "--python-memory-limit=0", "--python-memory-limit=67108864"]
)
def test_zero_turns_a_limit_off_and_the_lowest_value_is_taken(word: str) -> None:
    name, value = word[2:].split("=")
    assert parse([word], FLAGS)[name] == int(value)


@pytest.mark.parametrize(
    ("word", "option", "reason"),
    [
        ("--allow-http=maybe", "--allow-http", "invalid value for bool option: maybe"),
        ("--allow-http= true", "--allow-http", "invalid value for bool option:  true"),
        ("--http-port=abc", "--http-port", "Invalid option value. Got abc"),
        ("--http-port=99999999999", "--http-port", "Provided option value is out of bound. Got 99999999999"),
        ("--http-port=70000", "--http-port", "Provided option value is out of bound. Got 70000"),
        *(
            (f"--model-memory-limit={text}", "--model-memory-limit", f"Invalid option value. Got {text}")
            for text in ("200KB", "200 K", "K", "-1", "1.5G", "12abc")
        ),
        ("--model-memory-limit=0K", "--model-memory-limit", "Provided option value is out of bound. Got 0K"),
        (
            "--model-memory-limit=9999999T",
            "--model-memory-limit",
            "Provided option value is out of bound. Got 9999999T",
        ),
        ("--log-verbose=on", "--log-verbose", "Invalid option value. Got on"),
        ("--log-format=iso8601", "--log-format", "invalid argument for --log-format. Got iso8601"),
        ("--model-control-mode=x", "--model-control-mode", "invalid argument for --model-control-mode. Got x"),
        ("--model-config-name=", "--model-config-name", "Error: empty argument for --model-config-name"),
        (
            "--http-max-input-size=0",
            "--http-max-input-size",
            "Error: --http-max-input-size must be greater than 0. Got 0",
        ),
        ("--watchdog-limit-secs=0.5", "--watchdog-limit-secs", "Provided option value is out of bound. Got 0.5"),
        ("--watchdog-limit-secs=nan", "--watchdog-limit-secs", "Provided option value is out of bound. Got nan"),
        ("--python-memory-limit=5", "--python-memory-limit", "Provided option value is out of bound. Got 5"),
        ("--max-inflight-bytes=10", "--max-inflight-bytes", "Provided option value is out of bound. Got 10"),
        ("--max-address-share=101", "--max-address-share", "Provided option value is out of bound. Got 101"),
        ("--grpc-keepalive-time=0", "--grpc-keepalive-time", "Provided option value is out of bound. Got 0"),
        (
            "--grpc-http2-max-ping-strikes=-1",
            "--grpc-http2-max-ping-strikes",
            "Provided option value is out of bound. Got -1",
        ),
        ("--hang-limit-secs=-1", "--hang-limit-secs", "Provided option value is out of bound. Got -1"),
        ("--hang-limit-secs=nan", "--hang-limit-secs", "Provided option value is out of bound. Got nan"),
        ("--restart-window-secs=-1", "--restart-window-secs", "Provided option value is out of bound. Got -1"),
        (
            "--pinned-memory-pool-byte-size=-1",
            "--pinned-memory-pool-byte-size",
            "Provided option value is out of bound. Got -1",
        ),
        (
            "--cuda-memory-pool-byte-size=0:-1",
            "--cuda-memory-pool-byte-size",
            "Provided option value is out of bound. Got -1; expected an integer: at least 0",
        ),
        ("--repository-poll-secs=-3", "--repository-poll-secs", "Provided option value is out of bound. Got -3"),
        ("--exit-timeout-secs=-1", "--exit-timeout-secs", "Provided option value is out of bound. Got -1"),
        ("--model-load-retry-count=-1", "--model-load-retry-count", "Provided option value is out of bound. Got -1"),
        ("--min-supported-compute-capability=x", "--min-supported-compute-capability", "Invalid option value. Got x"),
        (
            "--min-supported-compute-capability=1e999",
            "--min-supported-compute-capability",
            "Provided option value is out of bound. Got 1e999",
        ),
        (
            "--grpc-infer-thread-count=1",
            "--grpc-infer-thread-count",
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128. Got 1",
        ),
        (
            "--grpc-max-response-pool-size=0",
            "--grpc-max-response-pool-size",
            "Error: --grpc-max-response-pool-size must be greater than 0. Got 0",
        ),
        (
            "--grpc-infer-response-compression-level=x",
            "--grpc-infer-response-compression-level",
            "invalid argument for --grpc_infer_response_compression_level. Got x",
        ),
        ("--rate-limit=x", "--rate-limit", "invalid argument for --rate-limit. Got x"),
        (
            "--rate-limit-resource=R",
            "--rate-limit-resource",
            (
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
                "'<resource_name>:<count>'. Got R"
            ),
        ),
        (
            "--rate-limit-resource=:1",
            "--rate-limit-resource",
            (
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
                "'<resource_name>:<count>'. Got :1"
            ),
        ),
        (
            "--rate-limit-resource=R:x",
            "--rate-limit-resource",
            "Invalid option value. Got x; expected an integer: at least 0",
        ),
        (
            "--rate-limit-resource=R:-1",
            "--rate-limit-resource",
            "Provided option value is out of bound. Got -1; expected an integer: at least 0",
        ),
        (
            "--rate-limit-resource=R:1:-2",
            "--rate-limit-resource",
            "Provided option value is out of bound. Got -2; expected an integer: at least -1",
        ),
        (
            "--cuda-memory-pool-byte-size=1",
            "--cuda-memory-pool-byte-size",
            (
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format "
                "<first>:<second>. Found: 1"
            ),
        ),
        (
            "--metrics-config=a,b=c",
            "--metrics-config",
            "--metrics-config option format is <setting>=<value>. Got a,b=c",
        ),
        ("--metrics-config=c=", "--metrics-config", "--metrics-config option format is <setting>=<value>. Got c="),
        (
            "--backend-config=a=",
            "--backend-config",
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got a=",
        ),
        (
            "--backend-config=,a=b",
            "--backend-config",
            (
                "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
                "<setting>=<value>. Got ,a=b"
            ),
        ),
        (
            "--cache-config=size=3",
            "--cache-config",
            "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got size=3",
        ),
        (
            "--cache-config=local,size",
            "--cache-config",
            "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size",
        ),
        ("--host-policy=a", "--host-policy", "--host-policy option format is '<policy name>,<setting>=<value>'. Got a"),
        (
            "--trace-config=foo,level=OFF",
            "--trace-config",
            'invalid value for trace mode option: foo. Available options are "triton" and "opentelemetry"',
        ),
        ("--trace-config=level=zz", "--trace-config level", "invalid value for trace level option: zz"),
        (
            "--trace-config=level",
            "--trace-config",
            "--trace-config option format is '<trace mode>,<setting>=<value>'. Got level",
        ),
        (
            "--trace-config=,level=OFF",
            "--trace-config",
            (
                "No trace mode specified. --trace-config option format is <trace mode>,<setting>=<value> or "
                "<setting>=<value>. Got ,level=OFF"
            ),
        ),
        ("--trace-config=rate=x", "--trace-config rate", "Invalid option value. Got x; expected an integer of 32 bits"),
        (
            "--trace-config=triton,log-frequency=x",
            "--trace-config triton,log-frequency",
            "Invalid option value. Got x; expected an integer of 32 bits",
        ),
        ("--http-restricted-api=foo:a=b", "--http-restricted-api", "unknown restricted api 'foo' "),
        (
            "--http-restricted-api=health:ab",
            "--http-restricted-api",
            "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health:ab",
        ),
        ("--grpc-restricted-protocol=foo:a=b", "--grpc-restricted-protocol", "unknown restricted protocol 'foo' "),
        (
            "--http-header-forward-pattern=(",
            "--http-header-forward-pattern",
            "invalid header forward pattern '(': missing ): (",
        ),
    ],
)
def test_bad_values_are_refused_with_the_option_and_the_reason(word: str, option: str, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse([word], FLAGS)
    assert raised.value.message.partition(f"\n{option} takes ")[0] == f'Bad option: "{option}".\n{reason}'


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--http-port=99999999", "--http-port takes an integer: from 0 to 65535"),
        ("--http-port=abc", "--http-port takes an integer: from 0 to 65535"),
        ("--watchdog-limit-secs=0.5", "--watchdog-limit-secs takes a number: 0 or at least 1"),
        ("--model-memory-limit=2x", "--model-memory-limit takes bytes: at least 1; with K, M, G or T so many KiB, MiB"),
        ("--log-verbose=on", "--log-verbose takes a level (an integer), true or false"),
        ("--log-info=maybe", "--log-info takes true, on, 1, false, off or 0"),
        ("--model-control-mode=x", "--model-control-mode takes one of: none, poll, explicit"),
        ("--exit-timeout-secs=x", "--exit-timeout-secs takes an integer"),
    ],
)
def test_a_bad_value_is_told_what_its_flag_takes(word: str, expected: str) -> None:
    """On a line of its own, behind Triton's text, which does not say it."""
    with pytest.raises(UsageError) as raised:
        parse([word], FLAGS)
    assert raised.value.message is not None
    assert raised.value.message.split("\n")[2].startswith(expected)


def test_asking_for_help_is_a_usage_error_without_a_message() -> None:
    with pytest.raises(UsageError) as raised:
        parse(["--help"], FLAGS)
    assert (raised.value.complaint, raised.value.message) == ("", "")


def test_every_flag_is_in_the_table_once() -> None:
    names = [flag.name for group in GROUPS for flag in group.flags]
    assert len(names) == len(set(names))


_NAMES = sorted(FLAGS)
_WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(_NAMES).map(lambda name: f"--{name}"),
    st.tuples(
        st.sampled_from(_NAMES),
        st.integers(min_value=1, max_value=40),
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(["1", "true", "0:1", "a,b=c", "a=b", "health:a=b", "-1", "1e400", "R:1:2", "9" * 5000]),
        ),
    ).map(lambda parts: f"--{parts[0][: parts[1]]}={parts[2]}"),
)


@given(st.lists(_WORDS, max_size=6))
def test_any_command_line_is_either_understood_or_a_usage_error(words: list[str]) -> None:
    with contextlib.suppress(UsageError):
        build_command(parse(words, FLAGS), {})


@given(st.lists(st.sampled_from(["--http-port=1", "--id=--x", "--allow-http=0", "--log-verbose=2"]), max_size=5))
def test_both_spellings_of_an_option_mean_the_same(words: list[str]) -> None:
    """`--name=value` and `--name value` are one thing."""
    apart = [part for word in words for part in word.split("=", 1)]
    assert parse(words, FLAGS).given == parse(apart, FLAGS).given
