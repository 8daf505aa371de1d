"""Which GPUs there are, and which of them models may use (docs/reference/model-configuration.md#instance-groups).

Rules:
 1. A GPU has the number that CUDA gives it: its place among those that ``CUDA_VISIBLE_DEVICES`` lets CUDA see.
 2. It may be used if its compute capability is at least the one that is asked for, to a hundredth.
 3. Where there is no driver, or no library to ask, there are no GPUs. A GPU that does not say what it can is not used.
 4. A GPU that is divided (MIG) cannot be used as a whole: it stands for its first part. A part may be named by its own
    UUID, or in the old way by its GPU's UUID and the numbers of its GPU and compute instance. A process can use one
    part, so CUDA sees nothing after the first.

NVML numbers GPUs by their place on the bus, CUDA by their speed unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set; so it
must be set where a machine has GPUs of several kinds.

Written after NVML's reference and tested against a stand-in for its binding; no GPU has seen it yet.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UnavailableError
from ..plugins import import_package
from .pinned_pool import GpuLimits

if TYPE_CHECKING:
    from ..backends.interface import InstanceSpec

logger = logging.getLogger("trireme.gpu")

MIN_COMPUTE_CAPABILITY = 6.0
"""Of GPUs that are used, unless something else is said (Triton's default)."""

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        index: CUDA's number for it.
        uuid: ``GPU-…``, or ``MIG-…`` of a part, as NVML names it; empty if it does not tell.
        compute_capability: major and minor.
        memory_bytes: what it has; 0 if it does not tell.
    """

    index: int
    uuid: str = ""
    compute_capability: tuple[int, int] = (0, 0)
    memory_bytes: int = 0
    name: str = "GPU"

    @property
    def capability(self) -> str:
        """The compute capability as ``cc_model_filenames`` spells it: ``8.0``."""
        return "{}.{}".format(*self.compute_capability)

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / _GIB:.1f} GiB"
        return f"GPU {self.index}: {self.name}, compute capability {self.capability}, {memory}, {self.uuid}"


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that models may use.

    Attributes:
        found: in order of their numbers.
        min_compute_capability: none of them has less.
        automatic: instances that may be anywhere (``KIND_AUTO``) go there.
    """

    found: tuple[Gpu, ...] = ()
    min_compute_capability: float = MIN_COMPUTE_CAPABILITY
    automatic: bool = True

    @property
    def indices(self) -> tuple[int, ...]:
        """Their numbers, ascending."""
        return tuple(gpu.index for gpu in self.found)

    @property
    def uuids(self) -> dict[int, str]:
        """UUIDs by number, of those that tell."""
        return {gpu.index: gpu.uuid for gpu in self.found if gpu.uuid}

    @property
    def capabilities(self) -> dict[int, str]:
        """`Gpu.capability` by number."""
        return {gpu.index: gpu.capability for gpu in self.found}


NO_GPUS = Gpus()


def usable_gpus(given: Iterable[Gpu] | None, min_compute_capability: float, environment: Mapping[str, str]) -> Gpus:
    """Those that can do enough (rule 2); the log names them all.

    Args:
        given: what there is; None to look for it on this machine.
    """
    there = find_gpus(environment) if given is None else given
    usable = []
    for gpu in sorted(there, key=lambda each: each.index):
        major, minor = gpu.compute_capability
        if major + minor / 10 > min_compute_capability - 0.01:
            usable.append(gpu)
            logger.info("%s", gpu)
        else:
            logger.warning("%s; not used: less than %g is not supported", gpu, min_compute_capability)
    return Gpus(tuple(usable), min_compute_capability)


def find_gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs of this machine that CUDA can see, in order of their numbers.

    Args:
        environment: of the process, where ``CUDA_VISIBLE_DEVICES`` may be set.
    """
    visible = environment.get(_VISIBLE)
    if visible == "":
        return ()
    with opened_nvml("GPUs cannot be used") as nvml:
        if nvml is None:
            return ()
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            logger.warning("GPUs cannot be used: %s", error)
            return ()
        handles = [_ask(nvml, nvml.nvmlDeviceGetHandleByIndex, number) for number in range(count)]
        listed = [_list(nvml, handle) for handle in handles]
        gpus = []
        for index, (number, at) in enumerate(cuda_order([names for names, _ in listed], visible)):
            names, parts = listed[number]
            if at is None:
                gpu = _describe(nvml, index, handles[number], names.uuid or "")
            else:
                gpu = _describe(nvml, index, parts[at], names.parts[at][0], handles[number])
            if gpu is None:
                logger.warning("GPU %d does not say what it can, and is not used", index)
            else:
                gpus.append(gpu)
        return tuple(gpus)


@dataclass(frozen=True, slots=True)
class Names:
    """What ``CUDA_VISIBLE_DEVICES`` may call a GPU.

    Attributes:
        uuid: None if it is not known.
        divided: rule 4.
        parts: of each part its UUID, and what it is called in the old way.
    """

    uuid: str | None
    divided: bool = False
    parts: tuple[tuple[str, str], ...] = ()


Position = tuple[int, int | None]
"""NVML's number of a GPU; and of a part of it, or None for the whole."""


def cuda_order(gpus: Sequence[Names], visible: str | None) -> list[Position]:
    """What CUDA sees, in CUDA's order (rules 1 and 4).

    Args:
        gpus: by NVML's numbers.
        visible: ``CUDA_VISIBLE_DEVICES``: numbers and beginnings of UUIDs, up to the first that names no GPU, or
            several; None if all are visible.
    """
    order: list[Position] = []
    for word in map(str, range(len(gpus))) if visible is None else visible.split(","):
        fitting = _named(gpus, word.strip())
        if len(fitting) != 1:
            break
        number, at = fitting[0]
        if at is None and gpus[number].divided:
            if not gpus[number].parts:
                continue
            at = 0
        order.append((number, at))
        if at is not None:
            break
    return order


def _named(gpus: Sequence[Names], told: str) -> list[Position]:
    if told.isascii() and told.isdigit():
        return [(int(told), None)] if int(told) < len(gpus) else []
    if not told:
        return []
    whole: list[Position] = [
        (number, None) for number, gpu in enumerate(gpus) if gpu.uuid and gpu.uuid.startswith(told)
    ]
    return whole or [
        (number, at)
        for number, gpu in enumerate(gpus)
        for at, (uuid, old) in enumerate(gpu.parts)
        if uuid.startswith(told) or old == told
    ]


def _list(nvml: Any, handle: Any) -> tuple[Names, list[Any]]:
    """What a GPU is called, and the handles of its parts."""
    if handle is None:
        return Names(None), []
    uuid = _ask(nvml, nvml.nvmlDeviceGetUUID, handle)
    modes = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)  # now, and after the next reset
    if not modes or not modes[0]:
        return Names(uuid), []
    names, parts = [], []
    for at in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at)
        own = part and _ask(nvml, nvml.nvmlDeviceGetUUID, part)
        if not own:
            continue  # so many there may be, not are
        gpu_instance = _ask(nvml, nvml.nvmlDeviceGetGpuInstanceId, part)
        compute_instance = _ask(nvml, nvml.nvmlDeviceGetComputeInstanceId, part)
        names.append((own, f"MIG-{uuid}/{gpu_instance}/{compute_instance}"))
        parts.append(part)
    return Names(uuid, True, tuple(names)), parts


def _describe(nvml: Any, index: int, handle: Any, uuid: str, whole: Any = None) -> Gpu | None:
    """Rule 3: None for a GPU that does not say what it can.

    Args:
        whole: of a part, the GPU: what it can, that one says.
    """
    able = whole or handle
    capability = None if able is None else _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, able)
    if capability is None:
        return None
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    name = _ask(nvml, nvml.nvmlDeviceGetName, handle)
    major, minor = capability
    return Gpu(index, uuid, (major, minor), 0 if memory is None else memory.total, name or "GPU")


def _ask(nvml: Any, question: Callable[..., Any], *about: Any) -> Any:
    """The answer; None for an error."""
    try:
        return question(*about)
    except nvml.NVMLError:
        return None


# NVML, the library that knows a machine's GPUs, by its Python binding: opened for a while, and closed again.
#
# Nothing of it is touched before it is needed, and a machine without GPUs is nothing to speak of.


_LIBRARY = "libnvidia-ml.so.1"
_BINDING = "pynvml"


@contextmanager
def opened_nvml(in_vain: str, log: logging.Logger = logger) -> Iterator[Any]:
    """The module ``pynvml``, initialised; None where there is no GPU, or none that answers.

    Args:
        in_vain: what cannot be done if it does not open, for a warning: ``GPUs cannot be used``. There is none where
            there is neither a library nor a driver, as on every machine without GPUs.
    """
    nvml: Any = None
    if _library_is_there():
        try:
            nvml = import_package(_BINDING, "NVML needs", "nvml")
            nvml.nvmlInit()
        except UnavailableError as error:
            log.warning("%s: %s", in_vain, error)
        except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
            nvml = None
        except nvml.NVMLError as error:
            log.warning("%s: %s", in_vain, error)
            nvml = None
    try:
        yield nvml
    finally:
        if nvml is not None:
            with suppress(nvml.NVMLError):  # what was asked is answered, and a GPU that is lost may spoil this as well
                nvml.nvmlShutdown()


def _library_is_there() -> bool:
    """Whether the driver's library can be loaded. Asking costs a hundredth of importing the binding."""
    if _BINDING in sys.modules:
        return True
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


# -- Refuses instances on GPUs whose memory is taken (``--model-load-gpu-limit``,
# -- docs/reference/model-configuration.md#instance-groups)


MemoryInUse = Callable[[Gpu], tuple[int, int] | None]
"""How many bytes of a GPU's memory are in use, by any process, and how many it has; None if that is unknown."""


def memory_in_use(gpu: Gpu) -> tuple[int, int] | None:
    """A `MemoryInUse` that asks NVML."""
    with opened_nvml("a limit of a GPU's memory cannot be looked after") as nvml:
        if nvml is None:
            return None
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
        except nvml.NVMLError:
            return None
        return memory.used, memory.total


class LoadGuard:
    """Looks at the limits: before the backend loads a model and before each of its instances is made, since either may
    take memory.

    Args:
        gpus: those that instances may be on.
    """

    def __init__(self, limits: GpuLimits, gpus: Gpus, in_use: MemoryInUse = memory_in_use) -> None:
        self._fractions = limits.load_fractions
        self._gpus = {gpu.index: gpu for gpu in gpus.found if gpu.index in limits.load_fractions}
        self._in_use = in_use

    def check(self, specs: Iterable[InstanceSpec]) -> None:
        """See whether these instances may be made.

        Raises:
            UnavailableError: one may not: too much of its GPU's memory is in use already.
        """
        seen: set[int] = set()
        for spec in specs:
            gpu = None if spec.gpu is None or spec.gpu in seen else self._gpus.get(spec.gpu)
            if gpu is None:
                continue
            seen.add(gpu.index)
            memory = self._in_use(gpu)
            if memory is not None and memory[0] > memory[1] * self._fractions[gpu.index]:
                raise UnavailableError(
                    f"can not create model '{spec.name}': memory limit set for GPU {gpu.index} has exceeded, model "
                    "loading is rejected."
                )
