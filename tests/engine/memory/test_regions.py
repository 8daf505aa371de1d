"""Regions of shared memory: nothing outside of one is ever read or written, and nothing of it outlives its use."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from segments import Segment, open_segments

from trireme.engine.datatypes import BYTES, FP32
from trireme.engine.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TriremeError,
    UnavailableError,
    shown,
)
from trireme.engine.memory import regions as shared_memory
from trireme.engine.memory.regions import MAPPED_BYTES, Region, RegionKind, Regions
from trireme.engine.tensor import Tensor, pack_bytes

PAGE = mmap.ALLOCATIONGRANULARITY
LARGE = 1 << 20
DATA = bytes(range(251)) * 40  # 10,040 bytes, no two pages alike
BAD_ADDRESS = "failed to register shared memory region 'r': unable to process address spaceInvalid argument"

MakeSegment = Callable[[bytes], Segment]


@pytest.fixture
def make_segment() -> Iterator[MakeSegment]:
    with open_segments() as make:
        yield make


@pytest.fixture
def segment(make_segment: MakeSegment) -> Segment:
    return make_segment(DATA)


@pytest.fixture
def regions() -> Regions:
    return Regions()


def refusal(call: Callable[[], object]) -> tuple[type[TriremeError], str]:
    with pytest.raises(TriremeError) as refused:
        call()
    return type(refused.value), refused.value.message


def open_descriptors() -> int:
    gc.collect()  # what earlier tests have left, too
    return len(os.listdir("/proc/self/fd"))


def is_mapped(segment: Segment) -> bool:
    return segment.key in Path("/proc/self/maps").read_text()


# Registering.


def test_status_lists_what_was_registered_by_name(regions: Regions, segment: Segment) -> None:
    regions.register_system("b", segment.key, PAGE, 100)
    regions.register_system("a", segment.key[1:], 0, len(DATA))
    regions.register_system("c", "//" + segment.key, 0, 1)
    shown = [(each.name, each.key, each.offset, each.byte_size) for each in regions.status(RegionKind.SYSTEM)]
    assert shown == [
        ("a", segment.key[1:], 0, len(DATA)),
        ("b", segment.key, PAGE, 100),
        ("c", "//" + segment.key, 0, 1),
    ]
    assert [each.name for each in regions.status(RegionKind.SYSTEM, "b")] == ["b"]
    assert regions.status(RegionKind.CUDA) == []


def test_regions_of_another_kind_or_of_no_kind_are_not_found(regions: Regions, segment: Segment) -> None:
    regions.register_system("r", segment.key, 0, 8)
    for kind in RegionKind:
        text = f"Unable to find {kind.value} shared memory region: 'q'"
        assert refusal(lambda kind=kind: regions.status(kind, "q")) == (NotFoundError, text)
    assert refusal(lambda: regions.status(RegionKind.CUDA, "r")) == (
        NotFoundError,
        "The region named 'r' is registered as system shared memory, not CUDA shared memory",
    )


def test_a_name_is_given_once(regions: Regions, segment: Segment) -> None:
    regions.register_system("r", segment.key, 0, 8)
    expected = (AlreadyExistsError, "shared memory region 'r' already in manager")
    assert refusal(lambda: regions.register_system("r", "/no-such-segment", 0, 8)) == expected
    assert refusal(lambda: regions.register_cuda("r", bytes(64), 0, 8)) == expected


def test_there_is_no_cuda_memory(regions: Regions) -> None:
    text = "failed to register CUDA shared memory region: 'r', GPUs not supported"
    assert refusal(lambda: regions.register_cuda("r", bytes(64), 0, 8)) == (InvalidArgumentError, text)


@pytest.mark.parametrize(
    ("offset", "byte_size", "text"),
    [
        (0, len(DATA) + 1, "failed to register shared memory region 'r': invalid args"),
        (len(DATA), 1, "failed to register shared memory region 'r': invalid args"),
        (PAGE, 2**64 - 1, "failed to register shared memory region 'r': invalid args"),
        (2**64 - 1, 2**64 - 1, "failed to register shared memory region 'r': invalid args"),
        (8, len(DATA), "failed to register shared memory region 'r': invalid args"),
        (8, 64, BAD_ADDRESS),
        (0, 0, BAD_ADDRESS),
        (PAGE, 0, BAD_ADDRESS),
    ],
)
def test_a_part_that_the_segment_has_not(
    regions: Regions, segment: Segment, offset: int, byte_size: int, text: str
) -> None:
    """Whatever is refused leaves nothing open behind."""
    before = open_descriptors()
    assert refusal(lambda: regions.register_system("r", segment.key, offset, byte_size)) == (InvalidArgumentError, text)
    assert regions.status(RegionKind.SYSTEM) == []
    assert open_descriptors() == before
    assert not is_mapped(segment)


@pytest.mark.parametrize("key", ["", "/", "///"])
def test_a_key_that_names_nothing(regions: Regions, key: str) -> None:
    assert refusal(lambda: regions.register_system("r", key, 0, 8)) == (
        InvalidArgumentError,
        f"cannot register shared memory region 'r' - invalid shm key '{key}'",
    )


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_the_python_backends_own_memory_is_out_of_bounds(regions: Regions, slashes: str) -> None:
    key = slashes + "triton_python_backend_shm_region_1"
    assert refusal(lambda: regions.register_system("r", key, 0, 8)) == (
        InvalidArgumentError,
        (
            f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix "
            "'triton_python_backend_shm_region_'"
        ),
    )


@pytest.mark.parametrize(
    "key", ["/no-such-segment", "..", "/.", "/../../etc/passwd", "/a/b", "/x\0y", "/" + "a" * 300, "/\udcff\ud800"]
)
def test_a_key_that_is_no_segment(regions: Regions, key: str) -> None:
    """No key leads out of the folder of segments."""
    expected = (InternalError, f"Unable to open shared memory region: '{shown(key)}'")
    assert refusal(lambda: regions.register_system("r", key, 0, 8)) == expected


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_only_segments_are_opened(regions: Regions, tmp_path: Path, kind: str) -> None:
    """Not a folder; not a link, which could lead to any file; not a pipe, for whose other end the server must not
    wait."""
    key = f"/trireme-test-{uuid.uuid4().hex}"
    path = Path("/dev/shm" + key)
    target = tmp_path / "secret"
    target.write_bytes(DATA)
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    before = open_descriptors()
    try:
        expected = (InternalError, f"Unable to open shared memory region: '{shown(key)}'")
        assert refusal(lambda: regions.register_system("r", key, 0, 8)) == expected
        assert open_descriptors() == before
    finally:
        if kind == "folder":
            path.rmdir()
        else:
            path.unlink()


def test_the_number_of_regions_is_bounded(regions: Regions, segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MAX_REGIONS", 2)
    regions.register_system("a", segment.key, 0, 8)
    regions.register_system("b", segment.key, 0, 8)
    kind, text = refusal(lambda: regions.register_system("c", segment.key, 0, 8))
    assert kind is UnavailableError
    assert "there are 2 regions already" in text
    regions.unregister(RegionKind.SYSTEM, "a")
    regions.register_system("c", segment.key, 0, 8)


# Slices.

REGION_OFFSET, REGION_SIZE = PAGE, 5_000
EDGES = (0, 1, 16, REGION_SIZE - 1, REGION_SIZE, REGION_SIZE + 1, 2**63, 2**64 - 2, 2**64 - 1)
NUMBERS = st.sampled_from(EDGES) | st.integers(0, REGION_SIZE) | st.integers(0, 2**64 - 1)


@settings(deadline=None, max_examples=100)
@given(NUMBERS, NUMBERS)
@example(0, 0)
@example(0, REGION_SIZE)
@example(REGION_SIZE - 1, 2)
@example(1, 2**64 - 1)
def test_a_slice_is_inside_its_region_or_refused(offset: int, byte_size: int) -> None:
    """And it is read from, and written to, exactly there."""
    with open_segments() as make:
        segment, regions = make(DATA), Regions()
        regions.register_system("r", segment.key, REGION_OFFSET, REGION_SIZE)
        texts = {
            offset >= REGION_SIZE: "Invalid offset for shared memory region: 'r'",
            offset < REGION_SIZE and offset + byte_size >= 2**64: (
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value "
                "(18446744073709551615) for region 'r'"
            ),
            REGION_SIZE < offset + byte_size < 2**64 and offset < REGION_SIZE: (
                "Invalid offset + byte size for shared memory region: 'r'"
            ),
            offset == byte_size == 0: "Invalid offset + byte size for shared memory region: 'r'",
        }
        if True in texts:
            assert refusal(lambda: regions.slice("r", offset, byte_size)) == (InvalidArgumentError, texts[True])
            return
        place = regions.slice("r", offset, byte_size)
        start = REGION_OFFSET + offset
        assert place.view() == DATA[start : start + byte_size]
        place.write("OUT", b"\xff" * byte_size)
        assert segment.data == DATA[:start] + b"\xff" * byte_size + DATA[start + byte_size :]


def test_an_unknown_region(regions: Regions) -> None:
    expected = (NotFoundError, "Unable to find shared memory region: 'r'")
    assert refusal(lambda: regions.slice("r", 0, 8)) == expected


@pytest.mark.parametrize("count", [16, LARGE // 4])
def test_tensors_are_copies(regions: Regions, make_segment: MakeSegment, count: int) -> None:
    """Numbers and strings, however long: whatever the client does to its memory, what was read stays as it was."""
    numbers = make_segment(np.arange(count, dtype=np.float32).tobytes())
    packed = pack_bytes([b"ab", b"c" * count])
    texts = make_segment(packed + b"more")
    regions.register_system("numbers", numbers.key, 0, 4 * count)
    regions.register_system("texts", texts.key, 0, len(packed) + 4)
    first = Tensor("A", FP32, (count,), regions.slice("numbers", 0, 4 * count).view())
    second = Tensor("B", BYTES, (2,), regions.slice("texts", 0, len(packed)).view())
    assert is_mapped(numbers) is (4 * count >= MAPPED_BYTES)
    numbers.put(np.float32(9).tobytes(), 4)
    numbers.cut(0)
    texts.cut(0)
    assert first.array.tolist() == list(range(count))
    assert second.array.tolist() == [b"ab", b"c" * count]
    assert not first.array.flags.writeable, "a model must not write to a client's input"


def test_what_was_cut_off_is_not_taken_for_data(
    regions: Regions, make_segment: MakeSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it was copied from or to a mapping."""
    segment = make_segment(b"x" * 2 * MAPPED_BYTES)
    regions.register_system("r", segment.key, 0, 2 * MAPPED_BYTES)
    place = regions.slice("r", 0, 2 * MAPPED_BYTES)
    has_memory = Region._has_memory

    def cut(region: Region, start: int, end: int) -> bool:
        known = has_memory(region, start, end)
        segment.cut(MAPPED_BYTES)
        return known

    text = (
        f"shared memory region 'r' has lost its memory: '{segment.key}' was cut to {MAPPED_BYTES} bytes, but byte "
        f"{2 * MAPPED_BYTES - 1} of it is needed"
    )
    for act in (place.view, lambda: place.write("OUT", b"y" * 2 * MAPPED_BYTES)):
        segment.put(b"x" * 2 * MAPPED_BYTES)
        with monkeypatch.context() as patch:
            patch.setattr(Region, "_has_memory", cut)
            assert refusal(act) == (InvalidArgumentError, text)
    segment.put(b"z" * 2 * MAPPED_BYTES)
    assert place.view() == b"z" * 2 * MAPPED_BYTES, "it is mapped anew"


@pytest.mark.parametrize("hole", [0, PAGE, MAPPED_BYTES])
def test_a_mapping_is_not_read_where_there_is_no_memory(regions: Regions, make_segment: MakeSegment, hole: int) -> None:
    """It would be made, stay, and count for the server."""
    segment = make_segment(b"")
    segment.cut(3 * MAPPED_BYTES)
    segment.put(b"x" * hole)
    segment.put(b"x" * (3 * MAPPED_BYTES - hole - PAGE), hole + PAGE)
    taken = segment.path.stat().st_blocks
    regions.register_system("r", segment.key, 0, 3 * MAPPED_BYTES)
    view = regions.slice("r", 0, 2 * MAPPED_BYTES).view()
    assert view == b"x" * hole + bytes(PAGE) + b"x" * (2 * MAPPED_BYTES - hole - PAGE)
    assert segment.path.stat().st_blocks == taken
    assert not is_mapped(segment)
    assert regions.slice("r", MAPPED_BYTES + PAGE, MAPPED_BYTES).view() == b"x" * MAPPED_BYTES
    assert is_mapped(segment)


def test_inputs_are_read_in_as_many_pieces_as_it_takes(
    regions: Regions, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reads at most 2 GiB at a time."""
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda descriptor, size, at: pread(descriptor, min(size, 7), at))
    monkeypatch.setattr(os, "preadv", lambda descriptor, into, at: preadv(descriptor, [into[0][:7]], at))
    regions.register_system("r", segment.key, PAGE, 5_000)
    view = regions.slice("r", 10, 100).view()
    assert view == DATA[PAGE + 10 : PAGE + 110]
    assert view.readonly


def test_a_segment_that_is_cut_short_while_it_is_read(
    regions: Regions, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def cut(descriptor: int, into: list[memoryview], at: int) -> int:
        segment.cut(PAGE + 60)
        return preadv(descriptor, into, at)

    monkeypatch.setattr(os, "pread", lambda *_: b"")
    monkeypatch.setattr(os, "preadv", cut)
    regions.register_system("r", segment.key, PAGE, 5_000)
    kind, text = refusal(lambda: regions.slice("r", 10, 100).view())
    assert kind is InvalidArgumentError
    assert f"was cut to {PAGE + 60} bytes, but byte {PAGE + 109} of it is needed" in text


def test_an_input_that_is_more_than_may_be_copied(segment: Segment) -> None:
    """A segment may be said to be of any size, and takes no memory until it is written to."""
    regions = Regions(largest_input_bytes=1_000)
    segment.cut(1 << 40)
    regions.register_system("r", segment.key, 0, 1 << 40)
    assert len(regions.slice("r", 7, 1_000).view()) == 1_000
    assert refusal(regions.slice("r", 0, 1 << 40).view) == (
        InvalidArgumentError,
        (
            "1099511627776 bytes of shared memory region 'r' are more than an input may have: 1000, which "
            "--max-inflight-bytes sets"
        ),
    )
    regions.slice("r", 0, 1 << 40).write("OUT", b"12")


@pytest.mark.parametrize("error", [MemoryError, OverflowError])
def test_an_input_that_there_is_no_memory_for(
    regions: Regions, segment: Segment, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def full(*_: object) -> bytes:
        raise error

    regions.register_system("r", segment.key, 0, 100)
    monkeypatch.setattr(os, "pread", full)
    assert refusal(regions.slice("r", 0, 8).view) == (
        UnavailableError,
        "there is no memory for 8 bytes of shared memory region 'r'",
    )


def test_an_output_that_does_not_fit(regions: Regions, segment: Segment) -> None:
    regions.register_system("r", segment.key, 0, 100)
    place = regions.slice("r", 0, 8)
    assert refusal(lambda: place.write("OUT", b"x" * 9)) == (
        InternalError,
        (
            "shared memory size specified with the request for output 'OUT' (8 bytes) should be at least 9 bytes to "
            "hold the results"
        ),
    )
    assert segment.data == DATA
    place.write("OUT", b"x" * 3)
    assert segment.data == b"xxx" + DATA[3:]


def test_outputs_are_written_in_as_many_pieces_as_it_takes(
    regions: Regions, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: pwrite(descriptor, bytes(data[:3]), at))
    regions.register_system("r", segment.key, 0, 100)
    regions.slice("r", 10, 8).write("OUT", memoryview(b"12345678"))
    assert segment.data[8:20] == DATA[8:10] + b"12345678" + DATA[18:20]


def test_memory_that_has_run_out(regions: Regions, segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    regions.register_system("r", segment.key, 0, 100)
    monkeypatch.setattr(os, "pwrite", full)
    assert refusal(lambda: regions.slice("r", 0, 8).write("OUT", b"x")) == (
        InternalError,
        "unable to write output 'OUT' to shared memory region 'r': No space left on device",
    )


# What clients do to their segments.


def test_a_segment_that_was_cut_short_is_not_touched(regions: Regions, segment: Segment) -> None:
    """Reading there would end the process, and writing there would make the segment longer again."""
    regions.register_system("r", segment.key, PAGE, 5_000)
    place = regions.slice("r", 100, 50)
    for size in (0, 1, PAGE, PAGE + 149):
        segment.cut(size)
        expected = (
            InvalidArgumentError,
            (
                f"shared memory region 'r' has lost its memory: '{segment.key}' was cut to {size} bytes, but byte "
                f"{PAGE + 149} of it is needed"
            ),
        )
        assert refusal(place.view) == expected
        assert refusal(lambda: place.write("OUT", bytes(50))) == expected
        assert segment.path.stat().st_size == size
    segment.cut(PAGE + 150)
    assert bytes(place.view()) == bytes(50)
    place.write("OUT", b"x" * 50)
    assert segment.data[-50:] == b"x" * 50


def test_a_segment_whose_name_is_gone_is_still_there(regions: Regions, segment: Segment) -> None:
    regions.register_system("r", segment.key, 0, 100)
    segment.path.unlink()
    place = regions.slice("r", 0, 4)
    place.write("OUT", b"1234")
    assert bytes(place.view()) == b"1234"


# Lifetime.


def test_a_region_in_use_stays_until_it_is_not(regions: Regions, segment: Segment) -> None:
    """Its name is free at once; its memory goes with the last slice."""
    before = open_descriptors()
    regions.register_system("r", segment.key, 0, 1_000)
    place = regions.slice("r", 0, 8)
    regions.unregister(RegionKind.SYSTEM, "r")
    assert refusal(lambda: regions.slice("r", 0, 8))[0] is NotFoundError
    regions.register_system("r", segment.key, PAGE, 100)
    regions.unregister(RegionKind.SYSTEM)
    place.write("OUT", b"12345678")
    view = place.view()
    assert open_descriptors() == before + 1
    del place
    assert open_descriptors() == before
    assert bytes(view) == b"12345678"


def test_unregistering(regions: Regions, segment: Segment) -> None:
    """One, or all; of the other kind, or unknown: nothing happens."""
    before = open_descriptors()
    for name in ("a", "b", "c"):
        regions.register_system(name, segment.key, 0, 8)
    regions.unregister(RegionKind.CUDA, "a")
    regions.unregister(RegionKind.CUDA)
    regions.unregister(RegionKind.SYSTEM, "nothing")
    assert [each.name for each in regions.status(RegionKind.SYSTEM)] == ["a", "b", "c"]
    regions.unregister(RegionKind.SYSTEM, "b")
    assert [each.name for each in regions.status(RegionKind.SYSTEM)] == ["a", "c"]
    regions.unregister(RegionKind.SYSTEM)
    assert regions.status(RegionKind.SYSTEM) == []
    assert open_descriptors() == before
    assert not is_mapped(segment)
