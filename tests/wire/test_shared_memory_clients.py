"""The calls that tritonclient's shared-memory example clients make, in our own words, against the shipped models."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from repository_models import link_models
from tritonclient import utils
from tritonclient.utils import InferenceServerException, shared_memory

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(scope="module")
def sharing(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server whose clients may register memory."""
    repository = link_models(tmp_path_factory.mktemp("models"), "simple", "simple_string")
    with serve(repository, allow_client_shm=True) as running:
        yield running


@contextmanager
def connected(sharing: Any, protocol: str) -> Iterator[Any]:
    url = sharing.url if protocol == "http" else sharing.grpc_url
    with CLIENTS[protocol].InferenceServerClient(url) as client:
        yield client


@pytest.fixture(params=list(CLIENTS))
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(sharing: Any, protocol: str) -> Iterator[Any]:
    with connected(sharing, protocol) as client:
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        yield client
        client.unregister_system_shared_memory()


class Memory:
    """A segment that the client library has made, registered under its name."""

    def __init__(self, client: Any, name: str, byte_size: int) -> None:
        self.key = f"/trireme-test-{uuid.uuid4().hex}"
        self.handle = shared_memory.create_shared_memory_region(name, self.key, byte_size)
        client.register_system_shared_memory(name, self.key, byte_size)

    def put(self, *arrays: np.ndarray) -> None:
        shared_memory.set_shared_memory_region(self.handle, list(arrays))

    def get(self, kind: Any, shape: list[int], offset: int = 0) -> np.ndarray:
        return shared_memory.get_contents_as_numpy(self.handle, kind, shape, offset)


@pytest.fixture
def share(client: Any) -> Iterator[Callable[[str, int], Memory]]:
    with ExitStack() as stack:

        def make(name: str, byte_size: int) -> Memory:
            memory = Memory(client, name, byte_size)
            stack.callback(shared_memory.destroy_shared_memory_region, memory.handle)
            return memory

        yield make


def inputs_in(protocol: str, region: str, datatype: str, sizes: list[int]) -> list[Any]:
    """INPUT0 and INPUT1 in one region, one behind the other."""
    tensors = [CLIENTS[protocol].InferInput(f"INPUT{index}", [1, 16], datatype) for index in range(len(sizes))]
    offset = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        tensor.set_shared_memory(region, size, offset=offset)
        offset += size
    return tensors


def outputs_in(protocol: str, region: str, sizes: list[int]) -> list[Any]:
    """OUTPUT0 and OUTPUT1 in one region, one behind the other."""
    outputs: list[Any] = []
    for index, size in enumerate(sizes):
        more = {"binary_data": True} if protocol == "http" else {}
        output = CLIENTS[protocol].InferRequestedOutput(f"OUTPUT{index}", **more)
        output.set_shared_memory(region, size, offset=sum(sizes[:index]))
        outputs.append(output)
    return outputs


def output_facts(result: Any, name: str, protocol: str) -> tuple[str, list[int]]:
    output = result.get_output(name)
    assert output is not None
    if protocol == "http":
        return output["datatype"], output["shape"]
    return output.datatype, list(output.shape)


def registered(client: Any, protocol: str) -> list[str]:
    status = client.get_system_shared_memory_status()
    return [region["name"] for region in status] if protocol == "http" else sorted(status.regions)


def test_numbers(client: Any, protocol: str, share: Callable[[str, int], Memory]) -> None:
    """As in ``simple_http_shm_client`` and ``simple_grpc_shm_client``."""
    a, b = np.arange(16, dtype=np.int32), np.ones(16, dtype=np.int32)
    size = a.nbytes
    result_memory, input_memory = share("output_data", 2 * size), share("input_data", 2 * size)
    input_memory.put(a, b)
    result = client.infer(
        model_name="simple",
        inputs=inputs_in(protocol, "input_data", "INT32", [size, size]),
        outputs=outputs_in(protocol, "output_data", [size, size]),
    )
    for index, expected in enumerate((a + b, a - b)):
        kind, shape = output_facts(result, f"OUTPUT{index}", protocol)
        assert (kind, shape) == ("INT32", [1, 16])
        got = result_memory.get(utils.triton_to_np_dtype(kind), shape, index * size)
        np.testing.assert_array_equal(got, [expected])
    assert registered(client, protocol) == ["input_data", "output_data"]
    client.unregister_system_shared_memory("input_data")
    assert registered(client, protocol) == ["output_data"]
    client.unregister_system_shared_memory()
    assert registered(client, protocol) == []


def test_strings(client: Any, protocol: str, share: Callable[[str, int], Memory]) -> None:
    """As in ``simple_http_shm_string_client`` and ``simple_grpc_shm_string_client``."""
    numbers = np.arange(16)
    texts = [np.array([str(number).encode() for number in row], dtype=np.object_) for row in (numbers, numbers * 0 + 1)]
    packed = [utils.serialize_byte_tensor(row) for row in texts]
    sizes = [utils.serialized_byte_size(row) for row in packed]
    results = [
        utils.serialize_byte_tensor(np.array([str(number).encode() for number in row], dtype=np.object_))
        for row in (numbers + 1, numbers - 1)
    ]
    result_sizes = [utils.serialized_byte_size(row) for row in results]
    first, second = share("output0_data", result_sizes[0]), share("output1_data", result_sizes[1])
    for name, row, size in zip(("input0_data", "input1_data"), packed, sizes, strict=True):
        share(name, size).put(row)
    triton = CLIENTS[protocol]
    inputs = [triton.InferInput(f"INPUT{index}", [1, 16], "BYTES") for index in range(2)]
    outputs = [triton.InferRequestedOutput(f"OUTPUT{index}") for index in range(2)]
    for index in range(2):
        inputs[index].set_shared_memory(f"input{index}_data", sizes[index])
        outputs[index].set_shared_memory(f"output{index}_data", result_sizes[index])
    result = client.infer(model_name="simple_string", inputs=inputs, outputs=outputs)
    for index, (memory, expected) in enumerate(((first, numbers + 1), (second, numbers - 1))):
        kind, shape = output_facts(result, f"OUTPUT{index}", protocol)
        got = memory.get(utils.triton_to_np_dtype(kind), shape)
        assert [int(text) for text in got[0]] == expected.tolist()


def test_many_requests_in_the_same_memory(client: Any, protocol: str, share: Callable[[str, int], Memory]) -> None:
    """As perf_analyzer does with ``--shared-memory=system``: what is new in the input is what is computed with."""
    result_memory, input_memory = share("output_data", 128), share("input_data", 128)
    inputs = inputs_in(protocol, "input_data", "INT32", [64, 64])
    outputs = outputs_in(protocol, "output_data", [64, 64])
    for number in range(50):
        input_memory.put(np.full(16, number, np.int32), np.arange(16, dtype=np.int32))
        client.infer("simple", inputs, outputs=outputs, request_id=str(number) if number % 2 else "")
        assert result_memory.get(np.int32, [16]).tolist() == [number + index for index in range(16)]


def test_what_one_protocol_registers_the_other_finds(sharing: Any) -> None:
    """Input registered over HTTP, output over gRPC, inference over both."""
    with ExitStack() as stack:
        web, rpc = (stack.enter_context(connected(sharing, protocol)) for protocol in CLIENTS)
        source, target = Memory(web, "input_data", 128), Memory(rpc, "output_data", 128)
        for memory in (source, target):
            stack.callback(shared_memory.destroy_shared_memory_region, memory.handle)
        stack.callback(web.unregister_system_shared_memory)
        for number, (protocol, client) in enumerate((("http", web), ("grpc", rpc))):
            source.put(np.full(16, number, np.int32), np.ones(16, np.int32))
            assert registered(client, protocol) == ["input_data", "output_data"]
            inputs = inputs_in(protocol, "input_data", "INT32", [64, 64])
            client.infer("simple", inputs, outputs=outputs_in(protocol, "output_data", [64, 64]))
            assert target.get(np.int32, [16]).tolist() == [number + 1] * 16


def test_errors_reach_the_client(client: Any, protocol: str, share: Callable[[str, int], Memory]) -> None:
    memory = share("input_data", 128)
    with pytest.raises(InferenceServerException, match="shared memory region 'input_data' already in manager"):
        client.register_system_shared_memory("input_data", memory.key, 128)
    with pytest.raises(InferenceServerException, match="Unable to open shared memory region: '/nothing'"):
        client.register_system_shared_memory("other", "/nothing", 128)
    with pytest.raises(InferenceServerException, match="failed to register shared memory region 'other': invalid args"):
        client.register_system_shared_memory("other", memory.key, 1 << 20)
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'missing'"):
        client.infer("simple", inputs_in(protocol, "missing", "INT32", [64, 64]))
    with pytest.raises(InferenceServerException, match=r"Invalid offset \+ byte size for shared memory region"):
        client.infer("simple", inputs_in(protocol, "input_data", "INT32", [64, 65]))
    with pytest.raises(InferenceServerException, match="Unable to find system shared memory region: 'missing'"):
        client.get_system_shared_memory_status("missing")
    with pytest.raises(InferenceServerException, match="GPUs not supported"):
        client.register_cuda_shared_memory(
            "gpu", base64.b64encode(bytes(64)) if protocol == "http" else bytes(64), 0, 64
        )
    client.infer("simple", inputs_in(protocol, "input_data", "INT32", [64, 64]))


def test_a_client_that_takes_its_memory_away_gets_an_error(
    client: Any, protocol: str, share: Callable[[str, int], Memory]
) -> None:
    """And the server lives."""
    memory = share("input_data", 128)
    inputs = inputs_in(protocol, "input_data", "INT32", [64, 64])
    client.infer("simple", inputs)
    with Path(f"/dev/shm{memory.key}").open("r+b") as segment:
        segment.truncate(0)
    with pytest.raises(InferenceServerException, match="shared memory region 'input_data' has lost its memory"):
        client.infer("simple", inputs)
    assert client.is_server_live()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_is_off_by_default(live: Any, protocol: str) -> None:
    url = live.url if protocol == "http" else live.grpc_url
    with CLIENTS[protocol].InferenceServerClient(url) as client:
        for change in (
            lambda: client.register_system_shared_memory("a", "/a", 8),
            client.unregister_system_shared_memory,
            client.unregister_cuda_shared_memory,
        ):
            with pytest.raises(InferenceServerException, match="Client shared memory is disabled"):
                change()
        assert not registered(client, protocol)
