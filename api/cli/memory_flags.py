"""The flags about memory and devices (docs/reference/command-line.md#flags): the rows, and the limits that they set."""

from __future__ import annotations

from collections.abc import Iterator

from ...engine.gpu.discovery import MIN_COMPUTE_CAPABILITY, Gpus
from ...engine.gpu.limits import GpuLimits
from .flags import Flag, Group, ParsedFlags
from .getopt import UsageError
from .values import BOOLEAN, FLOAT, INTEGER, INTEGER64, Kind, pair, read_float, read_host_policy, read_int, read_int64

_PINNED = "pinned-memory-pool-byte-size"
_DEVICE = "cuda-memory-pool-byte-size"
_LOAD = "model-load-gpu-limit"
_LOAD_REFUSED = "error: setting model load GPU limit: Invalid argument"

PEER_ACCESS = Flag(
    "enable-peer-access",
    BOOLEAN,
    "Let GPUs read each other's memory.",
    True,
    missing="tensors go from one GPU to another by way of the server's memory",
    idle=True,
)

MEMORY = Group(
    "Memory/Device Management",
    (
        Flag(
            _PINNED,
            INTEGER64,
            "Most bytes of pinned memory for copies to and from GPUs.",
            268435456,
        ),
        Flag(
            _DEVICE,
            Kind("<<integer>:<integer>>", pair(":", read_int, read_int64)),
            "Most bytes of GPU memory for tensors: <GPU>:<bytes>. A GPU of which nothing is said gives what it has.",
            repeatable=True,
        ),
        Flag(
            "cuda-virtual-address-size",
            Kind("<<integer>:<integer>>", pair(":", read_int, read_int64)),
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
        ),
        Flag(
            "host-policy",
            Kind("<<string>,<string>=<string>>", read_host_policy),
            "Where a policy's instances run: <policy name>,<setting>=<value>, settings numa-node and cpu-cores.",
            repeatable=True,
            missing="instances are not bound to cores yet",
        ),
        Flag(
            _LOAD,
            Kind("<<integer>:<fraction>>", pair(":", read_int, read_float)),
            "Share of a GPU's memory above which no model is loaded: <GPU>:<fraction>.",
            repeatable=True,
        ),
    ),
)


def gpu_limits(flags: ParsedFlags) -> GpuLimits:
    """What may be taken of the GPUs; of several values for one GPU, the last counts.

    Raises:
        UsageError: a size is negative, or a limit for loading is none; of that in Triton's words.
    """
    pools = dict(flags[_DEVICE])
    sizes = [(_PINNED, str(flags[_PINNED]), flags[_PINNED])]
    sizes += [(_DEVICE, f"{gpu}:{size}", size) for gpu, size in pools.items()]
    for name, given, size in sizes:
        if size < 0:
            raise UsageError(f"Error: --{name} must not be negative. Got {given}")
    for gpu, fraction in flags[_LOAD]:
        if gpu < 0:
            raise UsageError(f"{_LOAD_REFUSED} - expects device ID >= 0, got {gpu}")
        if not 0 <= fraction <= 1:
            raise UsageError(f"{_LOAD_REFUSED} - expects limit fraction to be in range [0.0, 1.0], got {fraction:f}")
    return GpuLimits(flags[_PINNED], pools, dict(flags[_LOAD]))


def limits_in_vain(limits: GpuLimits, gpus: Gpus) -> Iterator[str]:
    """What to log about limits of GPUs that models cannot use."""
    for name, limited in ((_DEVICE, limits.device_pool_bytes), (_LOAD, limits.load_fractions)):
        for gpu in limited:
            if gpu not in gpus.indices:
                yield f"--{name} has no effect for GPU {gpu}, which is not there or not used"
