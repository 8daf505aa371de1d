"""What a client does to its memory while its request waits changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from repository_models import link_models
from segments import Segment, open_segments
from valued_server import until

from trireme.actors import InferenceServer
from trireme.actors.offload import Offload
from trireme.engine.admission import large_requests
from trireme.engine.admission.large_requests import FEW_STRINGS
from trireme.engine.datatypes import BYTES, FP32, INT32, DataType
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.memory.regions import Region, RegionKind
from trireme.engine.memory.tensors import RegionTensor
from trireme.engine.options import ControlMode, ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor, pack_bytes
from trireme.engine.validation import RequestValidator

PATIENCE_S = 20.0
CONFIG = """{
    "name": "simple_identity", "backend": "onnxruntime", "max_batch_size": 8,
    "input": [{"name": "INPUT0", "data_type": "TYPE_STRING", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_STRING", "dims": [-1]}],
    "parameters": {"generation": {"string_value": "%d"}}
}"""

TEXTS = [b"first", b"s" * (1 << 20)]


@pytest.fixture
def segment() -> Iterator[Segment]:
    with open_segments() as make:
        yield make(pack_bytes(TEXTS))


def request(server: InferenceServer, segment: Segment) -> InferenceRequest:
    """For two strings in the region ``r``."""
    view = server.shared_memory.slice("r", 0, len(segment.data)).view()
    return InferenceRequest("simple_identity", inputs=[Tensor("INPUT0", BYTES, (1, 2), view)])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda segment: segment.put(b"\xff\xff\xff\xff"),
        lambda segment: segment.put(b"\x06\x00\x00\x00"),
        lambda segment: segment.cut(0),
    ],
    ids=["too long a string", "another string", "no memory"],
)
async def test_memory_that_changes_after_it_was_read(
    tmp_path: Path, segment: Segment, spoil: Callable[[Segment], None]
) -> None:
    """The request is answered with what was there: its lengths of strings have been checked."""
    options = ServerOptions(model_repository=(link_models(tmp_path, "simple_identity"),))
    async with InferenceServer(options) as server:
        server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        reply = await server.admit(request(server, segment))
        spoil(segment)
        answer = await reply.response()
        assert answer.output("OUTPUT0").array.tolist() == [TEXTS]
        server.shared_memory.unregister(RegionKind.SYSTEM)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """What is copied of shared memory: bytes, and whether on the event loop's thread."""
    loop = threading.get_ident()
    seen: list[tuple[int, bool]] = []
    genuine = Region.read

    def read(self: Region, start: int, end: int) -> memoryview:
        seen.append((end - start, threading.get_ident() == loop))
        return genuine(self, start, end)

    monkeypatch.setattr(Region, "read", read)
    return seen


def strings(server: InferenceServer, nbytes: int, datatype: DataType = BYTES, count: int = 2) -> InferenceRequest:
    """For strings in the region ``r``, that are not read yet."""
    place = server.shared_memory.slice("r", 0, nbytes)
    tensor = RegionTensor("INPUT0", datatype, (1, count), place)
    return InferenceRequest("simple_identity", inputs=[tensor], in_regions=True)


async def test_memory_is_not_copied_for_requests_that_do_not_fit(
    tmp_path: Path, segment: Segment, reads: list[tuple[int, bool]]
) -> None:
    """Their type and shape are checked first: a few bytes of a request may name gigabytes."""
    options = ServerOptions(model_repository=(link_models(tmp_path, "simple", "simple_identity"),))
    async with InferenceServer(options) as server:
        server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        place = server.shared_memory.slice("r", 0, 1 << 20)
        for name, datatype, shape in (("INPUT0", INT32, (1, 16)), ("INPUT0", FP32, (1, 16)), ("X", INT32, (1, 16))):
            tensors = [RegionTensor(name, datatype, shape, place), Tensor("INPUT1", INT32, (1, 16), bytes(64))]
            with pytest.raises(InvalidArgumentError):
                await server.admit(InferenceRequest("simple", inputs=list(tensors), in_regions=True))
        with pytest.raises(InvalidArgumentError):
            await server.admit(strings(server, 1 << 20, FP32))
        assert reads == []
        assert server.budget_statistics().bytes == 0


async def test_no_room_is_made_for_strings_that_are_more_than_an_input_may_have(
    tmp_path: Path, segment: Segment, reads: list[tuple[int, bool]]
) -> None:
    """They would take all that there is, only to be refused."""
    repository = link_models(tmp_path, "simple_identity")
    async with InferenceServer(ServerOptions(model_repository=(repository,), max_inflight_bytes=1 << 19)) as server:
        server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        with pytest.raises(InvalidArgumentError, match="are more than an input may have: 524288, which --max-inflight"):
            await server.admit(strings(server, len(segment.data), count=2))
        assert reads == []
        assert server.budget_statistics().bytes == 0


@pytest.mark.parametrize(("nbytes", "on_loop"), [(9, True), ((1 << 20) + 13, False)])
async def test_much_memory_is_copied_on_a_thread(
    tmp_path: Path, segment: Segment, reads: list[tuple[int, bool]], nbytes: int, on_loop: bool
) -> None:
    """Once, when there is room for it in the budget, and before the request is queued."""
    options = ServerOptions(model_repository=(link_models(tmp_path, "simple_identity"),))
    async with InferenceServer(options) as server:
        server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        request = strings(server, nbytes, count=1 + (not on_loop))
        if not on_loop:
            assert server.admit_nowait(request) is None
        reply = await server.admit(request)
        segment.cut(0)
        answer = await reply.response()
        assert answer.output("OUTPUT0").array.tolist() == [TEXTS[: 1 + (not on_loop)]]
        assert reads == [(nbytes, on_loop)]
        server.shared_memory.unregister(RegionKind.SYSTEM)
        assert server.budget_statistics().bytes == 0


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("nbytes", [9, (1 << 20) + 13])
async def test_memory_that_is_gone_costs_its_request_only(
    tmp_path: Path, segment: Segment, nbytes: int, leased: bool
) -> None:
    options = ServerOptions(model_repository=(link_models(tmp_path, "simple_identity"),))
    async with InferenceServer(options) as server:
        server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        request = strings(server, nbytes, count=1 + (nbytes > 9))
        segment.cut(0)
        with pytest.raises(InvalidArgumentError, match="has lost its memory"):
            await server.admit(request, server.lease() if leased else None)
        if nbytes == 9:
            with pytest.raises(InvalidArgumentError, match="has lost its memory"):
                server.admit_nowait(request, lease=server.lease() if leased else None)
        statistics = server.budget_statistics()
        assert (statistics.requests, statistics.bytes) == (0, 0)


async def test_many_strings_are_counted_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them take a tenth of a second."""
    loop = threading.get_ident()
    checked: list[bool] = []
    genuine = RequestValidator.check

    def check(self: RequestValidator, request: InferenceRequest) -> object:
        checked.append(threading.get_ident() == loop)
        return genuine(self, request)

    options = ServerOptions(model_repository=(link_models(tmp_path, "simple_identity"),))
    async with InferenceServer(options) as server:
        monkeypatch.setattr(RequestValidator, "check", check)
        for count, on_loop in ((2, True), (FEW_STRINGS - 1, True), (FEW_STRINGS + 1, False), (100_000, False)):
            packed = pack_bytes([b""] * (count - 1) + [b"x" * 30_000])
            request = InferenceRequest("simple_identity", inputs=[Tensor("INPUT0", BYTES, (1, count), packed)])
            assert (server.admit_nowait(request) is not None) is on_loop
            checked.clear()
            reply = await server.admit(request)
            assert checked == [on_loop]
            assert (await reply.response()).output("OUTPUT0").element_count == count


async def test_many_strings_are_counted_on_a_thread_for_a_model_that_was_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often that happens."""
    loop = threading.get_ident()
    checked: list[tuple[RequestValidator, bool]] = []
    go_on = threading.Semaphore(0)
    genuine = RequestValidator.check

    def check(self: RequestValidator, request: InferenceRequest) -> object:
        checked.append((self, threading.get_ident() == loop))
        assert go_on.acquire(timeout=PATIENCE_S)
        return genuine(self, request)

    options = ServerOptions(
        model_repository=(link_models(tmp_path, "simple_identity"),),
        model_control_mode=ControlMode.EXPLICIT,
        startup_models=("simple_identity",),
    )
    packed = pack_bytes([b"x"] * (FEW_STRINGS + 1))
    request = InferenceRequest("simple_identity", inputs=[Tensor("INPUT0", BYTES, (1, FEW_STRINGS + 1), packed)])
    async with InferenceServer(options) as server:
        monkeypatch.setattr(RequestValidator, "check", check)

        async def replace_twice() -> None:
            for generation in (1, 2):
                await until(lambda wanted=generation: len(checked) == wanted)
                await server.load_model("simple_identity", {"config": CONFIG % generation})
                go_on.release()
            go_on.release()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replace_twice)
            response = await server.infer(request)
        assert response.output("OUTPUT0").element_count == FEW_STRINGS + 1
        assert len({id(validator) for validator, _ in checked}) == 3
        assert [on_loop for _, on_loop in checked] == [False] * 3
        statistics = server.budget_statistics()
        assert (statistics.requests, statistics.bytes) == (0, 0)


async def test_what_is_only_to_be_copied_changes_threads_once(
    tmp_path: Path, segment: Segment, reads: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check does not look at the data of numbers: it is made on the loop, and the copy on a thread."""
    monkeypatch.setattr(large_requests, "LARGE_BYTES", 16)
    checked: list[bool] = []
    loop, check = threading.get_ident(), RequestValidator.check

    def note(validator: RequestValidator, request: InferenceRequest) -> object:
        checked.append(threading.get_ident() == loop)
        return check(validator, request)

    options = ServerOptions(model_repository=(link_models(tmp_path, "simple"),))
    async with InferenceServer(options) as server:
        monkeypatch.setattr(RequestValidator, "check", note)
        server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        place = server.shared_memory.slice("r", 0, 64)
        inputs = [RegionTensor(name, INT32, (1, 16), place) for name in ("INPUT0", "INPUT1")]
        reply = await server.admit(InferenceRequest("simple", inputs=[*inputs], in_regions=True))
        assert (await reply.response()).output("OUTPUT1").array.tolist() == [[0] * 16]
    assert checked == [True]
    assert reads == [(64, False)] * 2


async def test_large_inputs_are_left_to_the_instance(
    tmp_path: Path, segment: Segment, reads: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of numbers nobody else copies anything, nor does a thread: the request is with its model at once."""
    monkeypatch.setattr(large_requests, "LARGE_BYTES", 16)
    offloaded: list[object] = []

    async def offload(_self: Offload, function: Callable[..., object], *args: object) -> object:
        offloaded.append(function)
        return function(*args)

    options = ServerOptions(model_repository=(link_models(tmp_path, "simple"),))
    async with InferenceServer(options) as server:
        monkeypatch.setattr(Offload, "__call__", offload)
        server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        place = server.shared_memory.slice("r", 0, 64)
        inputs = [RegionTensor(name, INT32, (1, 16), place) for name in ("INPUT0", "INPUT1")]
        request = InferenceRequest("simple", inputs=[*inputs], in_regions=True)
        reply = server.admit_nowait(request)
        assert reply is not None
        assert (await reply.response()).output("OUTPUT1").array.tolist() == [[0] * 16]
        assert reads == [(64, False)] * 2
        assert offloaded == []
        segment.cut(8)
        with pytest.raises(InvalidArgumentError, match="has lost its memory"):
            server.admit_nowait(request)
        statistics = server.budget_statistics()
        assert (statistics.requests, statistics.bytes) == (0, 0)
