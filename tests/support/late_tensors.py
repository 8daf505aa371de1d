"""Tensors of a GPU that is not there: what is computed with them is computed by the real PyTorch, but late.

An operation on such tensors finds out the shapes and types of its results at once, as a GPU's does, and puts itself
into the current stream of `fake_gpu.FakeGpus`; its numbers come when the stream comes so far. What would be a race on a
GPU is a `Misuse` here: numbers that are not there yet because a stream did not wait, memory that went back while
another stream still uses it. It works for every operation that PyTorch dispatches, in TorchScript too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from fake_gpu import FakeGpus, FakeStream, Misuse, Operation
from torch.utils import _pytree as tree

_SYNCHRONISES = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"}


def _resolve_operators() -> None:
    """Make the Python objects of all operators, on the thread that imports this.

    PyTorch makes such an object when an operator is first dispatched to Python, and keeps the address of it without a
    reference. If several threads do so at once each makes one, and only the last one made stays alive: another one's
    address may be the one that was kept, and the process crashes when the operator is next dispatched.
    """
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        if isinstance(packet, torch._ops.OpOverloadPacket):
            getattr(packet, schema.overload_name or "default", None)


_resolve_operators()


class Memory:
    """What a tensor's numbers are in.

    Attributes:
        numbers: None before they have been computed.
        stream: to whose allocations the memory goes back.
        free: nothing refers to it any more.
    """

    __slots__ = ("__weakref__", "free", "numbers", "stream")

    def __init__(self, stream: int, numbers: torch.Tensor | None = None) -> None:
        self.stream = stream
        self.numbers = numbers
        self.free = False

    def read(self, stream: int, captured: bool) -> torch.Tensor:
        if self.free and (captured or stream != self.stream):
            raise Misuse("memory is used that has been given back")
        if self.numbers is None:
            raise Misuse("numbers are used that are not there yet: a stream has not been waited for")
        return self.numbers


class Token:
    """Held by a tensor and its views; when it goes, so does their memory."""

    __slots__ = ("__weakref__",)


class LateTensor(torch.Tensor):
    """A tensor on a GPU. Made by a `Computer`."""

    memory: Memory
    meta: torch.Tensor
    computer: Computer
    tokens: tuple[Token, ...]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore

    @staticmethod
    def __new__(cls, meta: torch.Tensor, index: int) -> LateTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=torch.device("cuda", index),
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore
        late = next(each for each in tree.tree_leaves((args, kwargs)) if isinstance(each, LateTensor))
        return late.computer.compute(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.computer.address(self.memory)

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Waits for the device."""
        return self.computer.fetch(self)

    def copy_(self, other: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """What PyTorch does here before it dispatches asks for CUDA."""
        return self.computer.compute(torch.ops.aten.copy_.default, (self, other), {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"<LateTensor {list(self.shape)} {self.dtype}>"


class Computer:
    """Computes on one machine's GPUs.

    Args:
        current: the calling thread's current stream of a device.
        take: told of the bytes of each new tensor, by device; raises if there are not so many.
        give_back: told when they go.
        wait: waits until a stream has done all that is in it.

    Attributes:
        held_by_captures: by stream, what is captured there holds the memory that it has made.
    """

    def __init__(
        self,
        gpus: FakeGpus,
        current: Callable[[int], FakeStream],
        take: Callable[[int, int], None],
        give_back: Callable[[int, int], None],
        wait: Callable[[FakeStream], None],
    ) -> None:
        self.gpus = gpus
        self._current = current
        self._take = take
        self._give_back = give_back
        self._wait = wait
        self.held_by_captures: dict[int, list[tuple[Token, ...]]] = {}
        self._addresses: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
        self._next_address = 0x0D00_0000_0000_0000

    def address(self, memory: Memory) -> int:
        """Where it is, once that is asked for."""
        for address, known in self._addresses.items():
            if known is memory:
                return address
        self._next_address += 1 << 32
        self._addresses[self._next_address] = memory
        return self._next_address

    def copy_on(self, handle: int, target: int, read: Callable[[], bytes], nbytes: int) -> int:
        """What the driver copies to an address, which is that of a tensor's memory, or within it."""
        start = target & ~0xFFFF_FFFF
        memory, offset = self._addresses[start], target - start

        def copy() -> None:
            flat = memory.read(handle, False).view(-1).view(torch.uint8)
            flat[offset : offset + nbytes] = torch.frombuffer(bytearray(read()), dtype=torch.uint8)

        self.gpus.enqueue(handle, Operation("copy", copy))
        return 0

    def copy_off(self, handle: int, source: int, write: Callable[[bytes], None], nbytes: int) -> int:
        """What the driver copies from an address, which is that of a tensor's memory, or within it."""
        start = source & ~0xFFFF_FFFF
        memory, offset = self._addresses[start], source - start

        def copy() -> None:
            flat = memory.read(handle, False).contiguous().view(-1).view(torch.uint8)
            write(flat[offset : offset + nbytes].numpy().tobytes())

        self.gpus.enqueue(handle, Operation("copy", copy))
        return 0

    def tensor(
        self,
        index: int,
        meta: torch.Tensor,
        numbers: torch.Tensor | None = None,
        views: tuple[Token, ...] = (),
    ) -> LateTensor:
        """A tensor of a device's current stream.

        Args:
            numbers: if they are there already.
            views: of the tensors whose memory it is a view on; nothing for memory of its own.
        """
        stream = self._current(index)
        late = LateTensor(meta, index)
        late.meta, late.computer = meta, self
        late.memory = Memory(stream.handle, numbers)
        late.tokens = views
        if not views:
            token = Token()
            nbytes = meta.numel() * meta.dtype.itemsize
            self._take(stream.device, nbytes)
            weakref.finalize(token, self._free, late.memory, stream.device, nbytes).atexit = False
            late.tokens = (token,)
        if stream.captured is not None:
            self.held_by_captures[stream.handle].append(late.tokens)
        return late

    def _free(self, memory: Memory, device: int, nbytes: int) -> None:
        memory.free = True
        self._give_back(device, nbytes)

    def fetch(self, late: LateTensor) -> torch.Tensor:
        """The numbers, after waiting for the current stream."""
        stream = self._current(late.device.index)
        if stream.captured is not None:
            stream.broken = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self._wait(stream)
        return late.memory.read(stream.handle, False).clone()

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        leaves, spec = tree.tree_flatten((args, kwargs))
        index = next(leaf.device.index for leaf in leaves if isinstance(leaf, LateTensor))
        stream = self._current(index)
        if func._schema.name in _SYNCHRONISES:
            return func(*tree.tree_map(self._fetched, args))
        if "device" in kwargs and kwargs["device"] is not None:
            raise Misuse(f"{func} moves a tensor from device to device, which this stand-in does not do")
        metas = [self._meta(leaf, stream) for leaf in leaves]
        meta_args, meta_kwargs = tree.tree_unflatten(metas, spec)
        results, result_spec = tree.tree_flatten(func(*meta_args, **meta_kwargs))
        aliases = [returned.alias_info is not None for returned in func._schema.returns]
        made = []
        for at, meta in enumerate(results):
            same = next((leaf for leaf, given in zip(leaves, metas, strict=True) if given is meta), None)
            if isinstance(same, LateTensor):
                made.append(same)
            elif not isinstance(meta, torch.Tensor):
                made.append(meta)
            else:
                aliased = aliases[min(at, len(aliases) - 1)]
                tokens = tuple(token for leaf in leaves if isinstance(leaf, LateTensor) for token in leaf.tokens)
                made.append(self.tensor(index, meta, views=tokens if aliased else ()))
        self._enqueue(func, leaves, spec, made, stream)
        return tree.tree_unflatten(made, result_spec)

    def _enqueue(self, func: Any, leaves: list[Any], spec: Any, made: list[Any], stream: FakeStream) -> None:
        """What is enqueued refers to memory, and holds none of it."""
        operands = [leaf.memory if isinstance(leaf, LateTensor) else leaf for leaf in leaves]
        targets = [each.memory if isinstance(each, LateTensor) else None for each in made]
        captured = stream.captured is not None

        def do() -> None:
            read = [each.read(stream.handle, captured) if isinstance(each, Memory) else each for each in operands]
            args, kwargs = tree.tree_unflatten(read, spec)
            with torch.inference_mode():
                results = tree.tree_leaves(func(*args, **kwargs))
            for target, result in zip(targets, results, strict=True):
                if target is not None and captured and target.numbers is not None:
                    with torch.inference_mode():
                        target.numbers.copy_(result)  # a graph writes to the same memory every time
                elif target is not None:
                    target.numbers = result

        self.gpus.enqueue(stream.handle, Operation(str(func), do))

    def _meta(self, leaf: Any, stream: FakeStream) -> Any:
        if isinstance(leaf, LateTensor):
            if leaf.device.index != stream.device:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    f"cuda:{stream.device} and {leaf.device}!"
                )
            return leaf.meta
        if isinstance(leaf, torch.Tensor):
            if leaf.dim() > 0:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
                )
            return leaf.to("meta")
        return leaf

    def _fetched(self, leaf: Any) -> Any:
        return self.fetch(leaf) if isinstance(leaf, LateTensor) else leaf
