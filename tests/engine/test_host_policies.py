"""Host policies: what the command line says, and what a thread may do afterwards."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from trireme.engine import host_policies
from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.errors import InvalidArgumentError, UnavailableError
from trireme.engine.host_policies import ANYWHERE, HostPolicy, bound_cores, machine_nodes, read_host_policies

CORES = frozenset({0, 1, 2, 3, 8})
NODES = frozenset({0, 1})


def read(*settings: str) -> dict[str, HostPolicy]:
    """Of ``<name>,<setting>=<value>`` each."""
    split = [(name, *rest.split("=")) for name, rest in (each.split(",", 1) for each in settings)]
    return read_host_policies([(name, setting, value) for name, setting, value in split], CORES, NODES)


def on_a_thread(work: Callable[[], None]) -> None:
    """Run it where nothing else is bound; raises what it raises."""
    raised: list[Exception] = []

    def attempt() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is raised below
            raised.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def test_settings_of_one_name_make_one_policy() -> None:
    assert read("a,cpu-cores=0-2,8-8", "b,numa-node=1", "a,numa-node=0") == {
        "a": HostPolicy(frozenset({0, 1, 2, 8}), 0),
        "b": HostPolicy(numa_node=1),
    }
    assert read("a,cpu-cores=0-1", "a,cpu-cores=3-3") == {"a": HostPolicy(frozenset({3}))}, "the last counts"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("a,cpu-cores=3", "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 3"),
        (
            "a,cpu-cores=0-x",
            "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 0-x",
        ),
        ("a,cpu-cores=2-1", "host policy 'a': the range of cores 2-1 has none"),
        ("a,cpu-cores=0-99999", "host policy 'a': the range of cores 0-99999 has none"),
        ("a,cpu-cores=2-5", "host policy 'a': the server cannot run on core 4; it may use 0-3,8-8"),
        ("a,numa-node=x", "host policy setting 'numa-node' takes the number of a NUMA node. Got x"),
        ("a,numa-node=-1", "host policy setting 'numa-node' takes the number of a NUMA node. Got -1"),
        ("a,numa-node=2", "host policy 'a': there is no NUMA node 2; there are 0-1"),
    ],
)
def test_what_is_not_there_is_refused(setting: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        read(setting)
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (InstanceSpec("m_0"), "cpu"),
        (InstanceSpec("m_0", "KIND_GPU", 3), "gpu_3"),
        (InstanceSpec("m_0", "KIND_MODEL"), "model"),
        (InstanceSpec("m_0", "KIND_GPU", 3, "mine"), "mine"),
    ],
)
def test_an_instance_has_the_policy_of_its_group_or_of_its_kind(spec: InstanceSpec, name: str) -> None:
    assert spec.policy_name == name


def test_a_thread_and_what_it_starts_is_bound() -> None:
    core = max(os.sched_getaffinity(0))
    seen: list[set[int]] = []

    def work() -> None:
        HostPolicy(frozenset({core})).bind()
        inner = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        inner.start()
        inner.join()
        seen.append(os.sched_getaffinity(0))

    before = os.sched_getaffinity(0)
    on_a_thread(work)
    assert seen == [{core}, {core}]
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all that there are")
def test_work_is_done_on_a_bound_thread_and_no_other_is_left_so() -> None:
    core = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    policy = HostPolicy(frozenset({core}))
    assert policy.run(lambda: (os.sched_getaffinity(0), bound_cores())) == ({core}, 1)
    assert (os.sched_getaffinity(0), bound_cores()) == (before, 0)
    assert ANYWHERE.run(threading.current_thread) is threading.current_thread()
    with pytest.raises(SystemExit):
        policy.run(lambda: exec("raise SystemExit"))


def test_cores_that_are_gone_are_an_error() -> None:
    with pytest.raises(UnavailableError, match=r"cannot bind an instance to the cores 60000: Invalid argument"):
        HostPolicy(frozenset({60_000})).run(lambda: None)


class Calls:
    """In place of libc: which system calls were made, and how each ends."""

    def __init__(self, result: int) -> None:
        self.result = result
        self.made: list[tuple[int, int, list[int]]] = []

    def syscall(self, number: object, policy: object, words: object, bits: object) -> int:
        self.made.append((number.value, policy.value, list(words)))  # type: ignore[attr-defined, call-overload]
        assert bits.value > 64 * len(list(words))  # type: ignore[attr-defined, call-overload]
        return self.result


@pytest.mark.parametrize(("node", "words"), [(0, [1]), (3, [8]), (65, [0, 2])])
def test_memory_is_bound_to_the_node(monkeypatch: pytest.MonkeyPatch, node: int, words: list[int]) -> None:
    libc = Calls(0)
    monkeypatch.setattr(host_policies.ctypes, "CDLL", lambda *_args, **_more: libc)
    HostPolicy(numa_node=node).bind()
    assert [made[1:] for made in libc.made] == [(2, words)]


def test_a_system_that_does_not_bind_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_policies.ctypes, "CDLL", lambda *_args, **_more: Calls(-1))
    monkeypatch.setattr(host_policies.ctypes, "get_errno", lambda: errno.EPERM)
    with pytest.raises(UnavailableError) as raised:
        HostPolicy(numa_node=0).bind()
    text = (
        "cannot bind memory to NUMA node 0: Operation not permitted (in a container it takes the capability SYS_NICE)"
    )
    assert raised.value.message == text


@pytest.mark.skipif(not machine_nodes(), reason="the system does not tell its NUMA nodes")
def test_memory_is_bound_by_the_kernel() -> None:
    """Where it may be: some containers forbid it."""
    node = min(machine_nodes())
    try:
        policy = HostPolicy(numa_node=node).run(Path("/proc/thread-self/numa_maps").read_text)
    except (UnavailableError, OSError) as error:
        pytest.skip(str(error))
    assert f"bind:{node}" in policy
