"""``--host-policy`` (docs/reference/command-line.md#host-policies)."""

from __future__ import annotations

import os

import pytest

from trireme.api.cli.command import build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import UsageError, parse
from trireme.engine.host_policies import HostPolicy

CORE = max(os.sched_getaffinity(0))


def policies(*words: str) -> dict[str, HostPolicy]:
    return dict(build_command(parse(words, FLAGS), {}).server.host_policies)


def test_policies_are_the_servers() -> None:
    assert policies() == {}
    assert policies(f"--host-policy=a,cpu-cores={CORE}-{CORE}") == {"a": HostPolicy(frozenset({CORE}))}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a,cpu-cores=1", "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 1"),
        ("a,cpu-cores=60000-60001", "host policy 'a': the server cannot run on core 60000; it may use "),
        ("a,numa-node=60000", "host policy 'a': there is no NUMA node 60000; there are "),
    ],
)
def test_what_is_not_there_is_a_usage_error(value: str, text: str) -> None:
    with pytest.raises(UsageError) as raised:
        policies(f"--host-policy={value}")
    assert raised.value.message.startswith(f'Bad option: "--host-policy".\n{text}')
