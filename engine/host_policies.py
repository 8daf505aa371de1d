"""Host policies (``--host-policy``): on which cores instances run, and of which NUMA node their memory is.

Rules:
 1. An instance has the policy that its group names (``instance_group.host_policy``); if it names none, that which is
    called after its kind: ``cpu``, ``model``, or ``gpu_<device>``. Without such a policy it may run anywhere.
 2. A policy is for a thread and all that this starts: threads of frameworks, processes and their threads. So an
    instance is made by a thread that has its policy.
 3. Such a thread is the instance's own, or lives no longer than it takes: what other threads may do stays as it is.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from .errors import InvalidArgumentError, UnavailableError

T = TypeVar("T")

_RANGES = re.compile(r"\d{1,6}-\d{1,6}(?:,\d{1,6}-\d{1,6})*", re.ASCII)
_NUMBER = re.compile(r"\d{1,6}", re.ASCII)
_MOST_CORES = 1 << 16
_NODES = Path("/sys/devices/system/node")
_BIND = 2  # MPOL_BIND
_SET_MEMORY_POLICY = {"x86_64": 238, "aarch64": 237}
"""Numbers of the system call ``set_mempolicy``."""


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """Where something runs.

    Attributes:
        cores: by number; empty for all.
        numa_node: whose memory it gets; None for any.
    """

    cores: frozenset[int] = frozenset()
    numa_node: int | None = None

    def __bool__(self) -> bool:
        """Whether it binds anything."""
        return bool(self.cores) or self.numa_node is not None

    def bind(self) -> None:
        """Bind the calling thread, and what it starts from now on.

        Raises:
            UnavailableError: the system does not let it.
        """
        if self.cores:
            try:
                os.sched_setaffinity(0, self.cores)
            except OSError as error:
                cores = ", ".join(map(str, sorted(self.cores)))
                raise UnavailableError(f"cannot bind an instance to the cores {cores}: {error.strerror}") from error
        if self.numa_node is not None:
            _bind_memory(self.numa_node)

    def run(self, work: Callable[[], T]) -> T:
        """Do work on a thread with this policy, and wait for it (rule 3). Raises what the work raises, and as `bind`
        does."""
        if not self:
            return work()
        from concurrent.futures import Future  # which a server without policies does not need

        done: Future[T] = Future()

        def bound_work() -> None:
            try:
                self.bind()
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where this was called
                done.set_exception(error)

        thread = threading.Thread(target=bound_work, name="bound", daemon=True)
        thread.start()
        thread.join()
        return done.result()


ANYWHERE = HostPolicy()


def bound_cores() -> int:
    """How many cores the calling thread is bound to; 0 if it may run wherever the process may."""
    if not hasattr(os, "sched_getaffinity"):
        return 0
    own = os.sched_getaffinity(0)
    return 0 if own == os.sched_getaffinity(os.getpid()) else len(own)


def _bind_memory(node: int) -> None:
    number = _SET_MEMORY_POLICY.get(platform.machine())
    if number is None:
        raise UnavailableError(f"cannot bind memory to NUMA node {node} on {platform.machine()}")
    word_bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (node // word_bits + 1))()
    words[node // word_bits] = 1 << node % word_bits
    libc = ctypes.CDLL(None, use_errno=True)
    bits = ctypes.c_ulong(len(words) * word_bits + 1)  # the kernel counts one less
    if libc.syscall(ctypes.c_long(number), ctypes.c_int(_BIND), words, bits):
        reason = os.strerror(ctypes.get_errno())
        raise UnavailableError(
            f"cannot bind memory to NUMA node {node}: {reason} (in a container it takes the capability SYS_NICE)"
        )


# ---- what the command line says ----


def process_cores() -> frozenset[int]:
    """The cores that this process may run on; empty where they cannot be chosen."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(process_cores()) or os.cpu_count() or 1


def machine_nodes() -> frozenset[int]:
    """The NUMA nodes of this machine."""
    return frozenset(int(path.name[4:]) for path in _NODES.glob("node[0-9]*") if path.name[4:].isdigit())


def read_host_policies(
    settings: Iterable[tuple[str, str, str]], cores: Collection[int], nodes: Collection[int]
) -> dict[str, HostPolicy]:
    """Policies by name, of (name, setting, value); of several values for one setting the last counts.

    Args:
        cores, nodes: those that there are.

    Raises:
        InvalidArgumentError: a value is none, or names what is not there.
    """
    policies: dict[str, HostPolicy] = {}
    for name, setting, value in settings:
        policy = policies.get(name, ANYWHERE)
        if setting == "cpu-cores":
            policies[name] = replace(policy, cores=_read_cores(name, value, cores))
        else:
            policies[name] = replace(policy, numa_node=_read_node(name, value, nodes))
    return policies


def _read_cores(name: str, text: str, usable: Collection[int]) -> frozenset[int]:
    if not _RANGES.fullmatch(text):
        raise InvalidArgumentError(
            f"host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {text}"
        )
    cores: set[int] = set()
    for part in text.split(","):
        lower, upper = map(int, part.split("-"))
        if not lower <= upper < _MOST_CORES:
            raise InvalidArgumentError(f"host policy '{name}': the range of cores {part} has none")
        cores.update(range(lower, upper + 1))
    if missing := sorted(cores.difference(usable)):
        raise InvalidArgumentError(
            f"host policy '{name}': the server cannot run on core {missing[0]}; it may use {_ranges(usable) or 'none'}"
        )
    return frozenset(cores)


def _read_node(name: str, text: str, usable: Collection[int]) -> int:
    if not _NUMBER.fullmatch(text):
        raise InvalidArgumentError(f"host policy setting 'numa-node' takes the number of a NUMA node. Got {text}")
    if int(text) not in usable:
        raise InvalidArgumentError(
            f"host policy '{name}': there is no NUMA node {text}; there are {_ranges(usable) or 'none'}"
        )
    return int(text)


def _ranges(numbers: Collection[int]) -> str:
    """``0-3,8-11``"""
    ordered = sorted(numbers)
    begins = [each for each in ordered if each - 1 not in numbers]
    ends = [each for each in ordered if each + 1 not in numbers]
    return ",".join(f"{first}-{last}" for first, last in zip(begins, ends, strict=True))
