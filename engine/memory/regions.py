"""Memory that clients and the server share: named regions of POSIX shared-memory segments
(docs/reference/shared-memory.md#tensors-in-regions, docs/reference/shared-memory.md#regions).

Rules:
 1. A region is a part of a segment in ``/dev/shm`` that a client has registered under a name. The server reads inputs
    from regions and writes outputs to them, always through a `RegionSlice`, which lies inside its region.
 2. A small slice is read and written through the segment's descriptor, which reports what is wrong. A large one is
    copied from and to a mapping of its region (`mapping`), in a third of the time, if the segment has memory there: to
    read a mapping would otherwise take memory that stays. A region is mapped when this is first of use.
 3. The client owns the segment and may cut it short at any time. So its real size counts whenever a slice is read or
    written, and what went through a mapping counts if that is intact afterwards.
 4. What was read is a copy, so what has been checked stays as it is, whatever the client writes. It takes about 20 us a
    MiB. What is known of a tensor without its data is checked before (`RegionTensor`).
 5. A region's name is free as soon as it is unregistered. Its memory stays as long as anyone holds a slice of it: that
    is, until the last request that writes an output there is over.
 6. A region may be a part of a GPU's memory as well, where there is one (`CudaRegion`). A model on that GPU may copy
    it there by itself, later; then rule 4 holds for what was checked, its shape and size, and not for the data.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RefusalReason,
    UnavailableError,
)
from ..tensor import Buffer
from .cuda import CudaDriver, CudaRegion, RegionKind, find_cuda
from .mapping import Mapping as MappedMemory
from .mapping import fault_guard

MAX_REGIONS = 1_024
"""Regions that may be registered at a time; each has a descriptor of the process."""

MAPPED_BYTES = 65_536
"""Slices of so many bytes are read and written through a mapping."""

_BLOCK_BYTES = 512  # of which `stat` counts how many a file takes
_DIRECTORY = "/dev/shm"  # where Linux keeps POSIX shared memory
_RESERVED_PREFIX = "triton_python_backend_shm_region_"
_UINT64_MAX = 2**64 - 1


class Region:
    """A part of a segment.

    Args:
        key: the segment's name as the client gave it.
        offset, byte_size: which part of the segment it is, in bytes.
        descriptor: of the segment; the region closes it.
        largest_bytes: most that is copied at a time.

    Attributes:
        segment: tells it from others, whatever their names are.

    Raises:
        OSError: it is empty, or does not begin where a page does, and so could not be mapped.
    """

    kind = RegionKind.SYSTEM

    def __init__(self, name: str, key: str, offset: int, byte_size: int, descriptor: int, largest_bytes: int) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self._descriptor = descriptor
        self._largest_bytes = largest_bytes
        self._mapping: MappedMemory | None = None
        weakref.finalize(self, os.close, descriptor)
        status = os.fstat(descriptor)
        self.segment = status.st_dev, status.st_ino
        if not byte_size or offset % mmap.ALLOCATIONGRANULARITY:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def read(self, start: int, end: int) -> memoryview:
        """A copy of the bytes from `start` to `end`.

        Raises:
            InvalidArgumentError: the segment does not reach there any more; or it is more than may be copied.
            UnavailableError: there is no memory for the copy.
        """
        self.check_size(end - start)
        try:
            if end - start < MAPPED_BYTES:
                copied = os.pread(self._descriptor, end - start, self.offset + start)
                if len(copied) == end - start:
                    return memoryview(copied)
            data = np.empty(end - start, np.uint8)
            self._read_into(start, data)
            return data.data.toreadonly()
        except (MemoryError, OverflowError) as error:
            raise self.no_memory(end - start) from error

    def read_into(self, start: int, target: np.ndarray) -> None:
        """Copy bytes, from `start` on, to an array of bytes, as many as that has.

        Raises:
            InvalidArgumentError: the segment does not reach there any more; or it is more than may be copied.
        """
        self.check_size(len(target))
        self._read_into(start, target)

    def no_memory(self, nbytes: int) -> UnavailableError:
        """What to say where so many bytes cannot be read."""
        return UnavailableError(f"there is no memory for {nbytes} bytes of shared memory region '{self.name}'")

    def check_size(self, nbytes: int) -> None:
        """Refuse to copy more than may be copied.

        Raises:
            InvalidArgumentError: it is more.
        """
        if nbytes > self._largest_bytes:
            raise InvalidArgumentError(
                f"{nbytes} bytes of shared memory region '{self.name}' are more than an input may have: "
                f"{self._largest_bytes}, which --max-inflight-bytes sets"
            )

    def _read_into(self, start: int, target: np.ndarray) -> None:
        end = start + len(target)
        mapping = self._mapped(start, end)
        if mapping is not None:
            target[...] = mapping.array[start:end]
            if mapping.intact_bytes >= end:
                return
        self._check_segment(end)
        rest = target.data
        at = self.offset + start
        while rest:  # Linux stops at 2 GiB, or where the segment ends
            count = os.preadv(self._descriptor, [rest], at)
            if not count:
                self._check_segment(end)
            rest = rest[count:]
            at += count

    def write(self, start: int, data: Buffer) -> None:
        """Put bytes into the segment.

        Raises:
            InvalidArgumentError: the segment does not reach there any more.
            OSError: there is no memory for them.
        """
        end = start + len(data)
        mapping = self._mapped(start, end)
        if mapping is not None:
            mapping.array[start:end] = np.frombuffer(data, np.uint8)
            if mapping.intact_bytes >= end:
                return
        self._check_segment(end)
        rest = memoryview(data)
        at = self.offset + start
        while rest:
            written = os.pwrite(self._descriptor, rest, at)
            rest = rest[written:]
            at += written

    def lend(self, start: int, end: int) -> Loan | None:
        """The bytes from `start` to `end` where they are; None if they are few, or some have no memory, or are gone.

        Raises:
            InvalidArgumentError: it is more than may be read at a time.
        """
        self.check_size(end - start)
        mapping = self._mapped(start, end)
        return None if mapping is None else Loan(self, mapping, start, end)

    def check_reach(self, end: int) -> None:
        """Look whether the segment still reaches to `end`. Raises InvalidArgumentError: it does not."""
        self._check_segment(end)

    def _mapped(self, start: int, end: int) -> MappedMemory | None:
        """The mapping of the region, if it is of use for the bytes from `start` to `end` (rule 2)."""
        if end - start < MAPPED_BYTES or not self._has_memory(start, end):
            return None
        guard = fault_guard()
        if guard is None:
            return None
        mapping = self._mapping
        try:
            if mapping is None or not mapping.intact:
                mapping = self._mapping = guard.map(self._descriptor, self.offset, self.byte_size)
            else:
                guard.keep()
        except OSError:
            return None
        return mapping

    def _has_memory(self, start: int, end: int) -> bool:
        """Whether the segment reaches to `end`, and all of it from `start` on has been written to."""
        status = os.fstat(self._descriptor)
        if status.st_size < self.offset + end:
            return False
        if status.st_blocks * _BLOCK_BYTES >= status.st_size:
            return True
        try:
            return os.lseek(self._descriptor, self.offset + start, os.SEEK_HOLE) >= self.offset + end
        except OSError:  # it was cut short meanwhile
            return False

    def _check_segment(self, end: int) -> None:
        size = os.fstat(self._descriptor).st_size
        if size < self.offset + end:
            raise InvalidArgumentError(
                f"shared memory region '{self.name}' has lost its memory: '{self.key}' was cut to {size} bytes, but "
                f"byte {self.offset + end - 1} of it is needed"
            )


class Loan:
    """Bytes of a region that are read or written where they are: they may change, or be lost, at any time.

    Attributes:
        array: the bytes.
    """

    __slots__ = ("_end", "_mapping", "_region", "array")

    def __init__(self, region: Region, mapping: MappedMemory, start: int, end: int) -> None:
        self.array = mapping.array[start:end]
        self._region = region
        self._mapping = mapping
        self._end = end

    def check(self) -> None:
        """Look whether what was read or written until now was the region's.

        Raises:
            InvalidArgumentError: the segment was cut short.
            OSError: there is no memory for all of it.
        """
        if self._mapping.intact_bytes < self._end:
            self._region.check_reach(self._end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """A part of a region, inside its bounds: where a tensor is, or is to go. `Regions.slice` makes them.

    Attributes:
        offset, byte_size: which part of the region it is, in bytes.
    """

    region: Region | CudaRegion
    offset: int
    byte_size: int

    def check_size(self) -> None:
        """See `Region.check_size`."""
        if isinstance(self.region, Region):
            self.region.check_size(self.byte_size)

    def overlaps(self, other: RegionSlice) -> bool:
        """Whether they have bytes of a segment in common, be it as parts of two regions."""
        mine, its = self.region, other.region
        if not (isinstance(mine, Region) and isinstance(its, Region) and mine.segment == its.segment):
            return False
        start, its_start = mine.offset + self.offset, its.offset + other.offset
        return start < its_start + other.byte_size and its_start < start + self.byte_size

    def check_readable(self) -> None:
        """Look whether `view` would give what is there, without reading it. Raises as that does."""
        self.check_size()
        if isinstance(self.region, Region):
            self.region.check_reach(self.offset + self.byte_size)

    def lend(self) -> Loan | None:
        """See `Region.lend`; None in a GPU's memory."""
        return self.region.lend(self.offset, self.offset + self.byte_size) if isinstance(self.region, Region) else None

    @property
    def gpu(self) -> int | None:
        """The GPU in whose memory it is; None in the machine's."""
        return self.region.device_id if isinstance(self.region, CudaRegion) else None

    def copy_to(self, stream: int, target: int) -> None:
        """Enqueue a copy to an address on the GPU in whose memory it is, on one of its streams.

        Raises:
            InternalError: CUDA does not enqueue it; here and below.
        """
        assert isinstance(self.region, CudaRegion)
        self.region.copy_to(self.offset, self.byte_size, stream, target)

    def copy_from(self, stream: int, source: int) -> None:
        """Enqueue a copy that fills it, the other way round."""
        assert isinstance(self.region, CudaRegion)
        self.region.copy_from(self.offset, self.byte_size, stream, source)

    def first(self, nbytes: int) -> RegionSlice:
        """Its first bytes, of which it has so many."""
        return RegionSlice(self.region, self.offset, nbytes)

    def view(self) -> memoryview:
        """A copy of what is there.

        Raises:
            InvalidArgumentError: the segment was cut short, or it is too much.
            UnavailableError: there is no memory for a copy.
            InternalError: the GPU's memory cannot be read.
        """
        return self.region.read(self.offset, self.offset + self.byte_size)

    def read_into(self, target: np.ndarray) -> None:
        """Copy what is there to an array, uint8, of the same size. Raises as `view`."""
        if isinstance(self.region, Region):
            self.region.read_into(self.offset, target)
        else:
            target[...] = np.frombuffer(self.view(), np.uint8)

    def write(self, output: str, data: Buffer) -> None:
        """Put the data of an output there, from the start.

        Raises:
            InternalError: it does not fit, or there is no memory for it.
            InvalidArgumentError: the segment was cut short.
        """
        if len(data) > self.byte_size:
            raise InternalError(
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) should "
                f"be at least {len(data)} bytes to hold the results"
            )
        try:
            self.region.write(self.offset, data)
        except OSError as error:
            raise self.unwritable(output, error) from error

    def unwritable(self, output: str, error: OSError) -> InternalError:
        """What to say of an output that has no memory there."""
        return InternalError(
            f"unable to write output '{output}' to shared memory region '{self.region.name}': {error.strerror}"
        )


class Regions:
    """The regions that are registered, of all protocols together.

    Args:
        find_cuda: looks for GPUs, when a client first registers memory of one; None for none.
        largest_input_bytes: most that an input in system memory may have. It is copied before anybody knows whether
            its model wants it, and a segment takes no memory until it is written to.
    """

    def __init__(
        self, find_cuda: Callable[[], CudaDriver | None] = find_cuda, largest_input_bytes: int = 4 << 30
    ) -> None:
        self._largest_input_bytes = largest_input_bytes
        self._regions: dict[str, Region | CudaRegion] = {}
        self._find_cuda = find_cuda
        self._cuda: CudaDriver | None = None

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Make a part of a segment known.

        Args:
            key: of the segment, as for ``shm_open``.
            offset: where the part begins, in bytes; a multiple of the page size.

        Raises:
            AlreadyExistsError: there is a region of that name.
            InvalidArgumentError: the key is none, or the segment has no such part, or it cannot be mapped.
            InternalError: there is no such segment, or it may not be opened for reading and writing.
            UnavailableError: there are too many regions.
        """
        self._refuse(name)
        descriptor = _open_segment(name, key)
        if offset + byte_size > os.fstat(descriptor).st_size:
            os.close(descriptor)
            raise InvalidArgumentError(f"failed to register shared memory region '{name}': invalid args")
        try:
            self._regions[name] = Region(name, key, offset, byte_size, descriptor, self._largest_input_bytes)
        except OSError as error:
            raise InvalidArgumentError(
                f"failed to register shared memory region '{name}': unable to process address space{error.strerror}"
            ) from error

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Make an allocation in a GPU's memory known.

        Args:
            handle: of the allocation, as ``cudaIpcGetMemHandle`` gives it.
            device_id: the GPU, by its number in this process.
            byte_size: how long the region is, from the beginning of the allocation.

        Raises:
            AlreadyExistsError: there is a region of that name.
            InvalidArgumentError: there is no GPU, or no such allocation.
            UnavailableError: there are too many regions.
        """
        self._refuse(name)
        self._cuda = self._cuda or self._find_cuda()
        if self._cuda is None:
            raise InvalidArgumentError(f"failed to register CUDA shared memory region: '{name}', GPUs not supported")
        self._regions[name] = CudaRegion(self._cuda, name, handle, device_id, byte_size)

    def unregister(self, kind: RegionKind, name: str = "") -> None:
        """Forget a region, or all of a kind. One that is unknown, or of the other kind, is none of the caller's."""
        for each in [name] if name else list(self._regions):
            if each in self._regions and self._regions[each].kind is kind:
                del self._regions[each]

    def status(self, kind: RegionKind, name: str = "") -> list[Any]:
        """One region of a kind, a `Region` or `CudaRegion`, or all in the order of their names.

        Raises:
            NotFoundError: there is none of that name, or it is of the other kind.
        """
        if not name:
            return [region for _, region in sorted(self._regions.items()) if region.kind is kind]
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find {kind.value} shared memory region: '{name}'")
        if region.kind is not kind:
            texts = {RegionKind.SYSTEM: "system shared memory", RegionKind.CUDA: "CUDA shared memory"}
            raise NotFoundError(f"The region named '{name}' is registered as {texts[region.kind]}, not {texts[kind]}")
        return [region]

    def slice(self, name: str, offset: int, byte_size: int) -> RegionSlice:
        """The part of a region where a tensor is, or is to go. As in Triton, no tensor is empty at offset 0.

        Args:
            offset, byte_size: which part of the region, in bytes, as unsigned numbers.

        Raises:
            NotFoundError: there is no such region.
            InvalidArgumentError: it has no such part.
        """
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find shared memory region: '{name}'", refusal=RefusalReason.INVALID)
        end = offset + byte_size
        if offset >= region.byte_size:
            raise InvalidArgumentError(f"Invalid offset for shared memory region: '{name}'")
        if end > _UINT64_MAX:
            raise InvalidArgumentError(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value "
                f"({_UINT64_MAX}) for region '{name}'"
            )
        if not 0 < end <= region.byte_size:
            raise InvalidArgumentError(f"Invalid offset + byte size for shared memory region: '{name}'")
        return RegionSlice(region, offset, byte_size)

    def _refuse(self, name: str) -> None:
        """Names that are taken, and any name while there are too many."""
        if name in self._regions:
            raise AlreadyExistsError(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= MAX_REGIONS:
            raise UnavailableError(
                f"cannot register shared memory region '{name}': there are {MAX_REGIONS} regions already, which is the "
                "most that there can be"
            )


def _open_segment(name: str, key: str) -> int:
    """A descriptor of the segment that `key` names, for the region `name`."""
    segment = key.lstrip("/")
    if segment.startswith(_RESERVED_PREFIX):
        raise InvalidArgumentError(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{_RESERVED_PREFIX}'"
        )
    if not segment:
        raise InvalidArgumentError(f"cannot register shared memory region '{name}' - invalid shm key '{key}'")
    missing = InternalError(f"Unable to open shared memory region: '{key}'")
    if "/" in segment or segment in (".", ".."):
        raise missing
    try:
        # No links, which could lead anywhere; and no waiting for the other end of a pipe.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(f"{_DIRECTORY}/{segment}", flags)
    except (OSError, ValueError):  # a ValueError: no file can have such a name
        raise missing from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise missing
    return descriptor
