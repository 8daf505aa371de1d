"""What a flag, or a setting, that has no effect leads to: an error, but for those that only size something."""

from __future__ import annotations

import pytest

from trireme.api.cli.command import ServeCommand, build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import UsageError, parse

LOCAL = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1")


def command(*words: str) -> ServeCommand:
    """For clients of this machine, so that nothing is warned of but what a test is about."""
    return build_command(parse((*LOCAL, *words), FLAGS), {})


def refusal(*words: str) -> str:
    with pytest.raises(UsageError) as raised:
        command(*words)
    return raised.value.message


def test_flags_that_only_size_something_are_warned_about_once_each() -> None:
    """Threads and pools that there are not: start scripts set them."""
    given = command(
        "--allow-grpc=false",
        "--allow-client-shm=0",
        "--grpc-infer-thread-count=4",
        "--grpc-infer-thread-count=5",
        "--http-thread-count=4",
        "--sagemaker-thread-count=4",
        "--vertex-ai-thread-count=4",
        "--grpc-infer-allocation-pool-size=1",
        "--grpc-max-response-pool-size=1",
        "--buffer-manager-thread-count=2",
        "--enable-peer-access=true",
    )
    assert [line.partition(":")[0] for line in given.warnings] == [
        f"--{name} has no effect in this version"
        for name in (
            *("grpc-infer-thread-count", "http-thread-count", "sagemaker-thread-count", "vertex-ai-thread-count"),
            *("grpc-infer-allocation-pool-size", "grpc-max-response-pool-size", "buffer-manager-thread-count"),
            "enable-peer-access",
        )
    ]
    assert command("--buffer-manager-thread-count=0", "--enable-peer-access=false").warnings == ()
    assert command().warnings == ()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--cuda-virtual-address-size=0:1024", "the states of sequences are kept in the server's memory"),
        ("--repoagent-directory=mine", "what is installed with pip is found by itself"),
        ("--cache-directory=mine", "what is installed with pip is found by itself"),
    ],
)
def test_other_flags_without_effect_are_refused(words: str, reason: str) -> None:
    name = words.partition("=")[0]
    assert refusal(words) == f"Error: {name} cannot be used in this version: {reason}."


def test_what_they_are_without_being_given_may_be_given() -> None:
    base = "/opt/tritonserver"
    assert command(f"--repoagent-directory={base}/repoagents", f"--cache-directory={base}/caches").warnings == ()


def test_no_flag_is_ignored() -> None:
    """Each that has no effect says whether it is refused, and what of it is none of that."""
    ignored = {flag.name: flag.tolerated for flag in FLAGS.values() if flag.missing}
    assert {name for name, tolerated in ignored.items() if not tolerated} == {
        *("cuda-virtual-address-size", "repoagent-directory", "cache-directory"),
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--metrics-config=latencies=true",
            "Error: --metrics-config latencies cannot be used: there is no such setting.",
        ),
        (
            "--metrics-config=summary_latencies=yes",
            "Error: --metrics-config summary_latencies takes true or false. Got yes",
        ),
        (
            "--metrics-config=summary_quantiles=0.5:0.1,0.9",
            "Invalid option: [0.9]. No ':' delimiter found. Expected format is <quantile>:<error>",
        ),
        ("--metrics-config=summary_quantiles=x:0.1", "Invalid option: [x:0.1]. Error: stod"),
        (
            "--trace-config=triton,log_frequency=5",
            "--trace-config triton,log_frequency cannot be used: there is no such",
        ),
        ("--trace-config=file=t", "Error: --trace-config file cannot be used: there is no such setting."),
        (
            "--front-ends=2 --allow-http=0 --allow-grpc=0",
            "--front-ends has no effect: they serve HTTP and gRPC, which are",
        ),
    ],
)
def test_settings_without_effect_are_refused(words: str, message: str) -> None:
    assert message in refusal(*words.split())
