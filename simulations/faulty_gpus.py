"""GPUs of a swarm run, and what goes wrong with the models on them.

Most of it happens where it would in earnest: the pools run out of memory by themselves, a hang is a computation that
takes longer than the hang limit, and a GPU that has failed is found out by its users.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

from ..engine.backends.interface import InstanceSpec
from ..engine.gpu.device import OutOfDeviceMemoryError
from ..engine.gpu.discovery import Gpu
from ..engine.gpu.pinned_pool import DEFAULT_LIMIT_BYTES, PinnedPool
from ..engine.job import ExecutionBatch
from .clock import JumpingClock
from .executors import SimulatedFailure
from .plan import Fault, GpuPlan, ModelPlan, Plan, RequestPlan
from .stream_device import DeviceProfile, LatencyProfile, SimulatedDevice
from .stream_models import StreamWork
from .world import World

SLOWNESS = 20
"""A slow execution takes so many times as long."""

HANGS = 1.5
"""A computation that hangs takes so many times the hang limit, then its GPU goes on."""

ROW_BYTES = 16
"""Of an input or output."""

Struck = Callable[[ModelPlan, ExecutionBatch], tuple[int, list[RequestPlan]]]
"""How many nanoseconds a batch takes, and the requests in it whose faults are to strike, by their numbers."""


class FaultyGpus:
    """The GPUs of a plan, and its models on them.

    Args:
        misled: told of memory that a GPU uses and that may have been given to another batch.
        struck: asked before each computation.
        strike: told of a fault that strikes.
    """

    def __init__(
        self,
        plan: Plan,
        world: World,
        misled: Callable[[str], None],
        struck: Struck,
        strike: Callable[[RequestPlan], None],
    ) -> None:
        self._hang_ns = round(plan.hang_limit_s * HANGS * 1e9)
        self._ill_ns = [each.ill_ns for each in plan.gpus]
        self._clock: JumpingClock = world.clock
        self._nursery = world.nursery
        self._struck = struck
        self._strike = strike
        self._falling_ill: dict[ExecutionBatch, RequestPlan] = {}
        self._pinned = PinnedPool(plan.pinned_bytes or DEFAULT_LIMIT_BYTES)
        self.devices = [
            world.device(f"gpu{index}", _profile(each), index, self._pinned) for index, each in enumerate(plan.gpus)
        ]
        for device in self.devices:
            device.on_misuse = misled

    def work(self, model: ModelPlan) -> dict[int, StreamWork]:
        """What a model does on each of its GPUs."""
        works = {}
        for index in model.gpus:
            device = self.devices[index]
            computing, computed = partial(self._computing, model, device), partial(self._computed, device)
            works[index] = StreamWork(device, LatencyProfile({1: 0.0}), model.credits, computing, computed)
        return works

    def check(self, spec: InstanceSpec) -> None:
        """An instance is to be made.

        Raises:
            SickDeviceError: that cannot be.
        """
        if spec.gpu is not None:
            self.devices[spec.gpu].check()

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self._falling_ill.clear()
        for device in self.devices:
            device.sickness = ""

    async def quiet(self) -> None:
        """Wait until no GPU has anything left to do."""
        wait_s = 1e-6
        while any(device.gpu.busy for device in self.devices):
            await self._clock.sleep(wait_s)
            wait_s *= 2

    def leftovers(self) -> list[str]:
        """What was not given back, a text each; nothing is in flight any more. What a lost instance had on a GPU that
        never landed it goes with what else is left of that instance, when garbage is collected."""
        used = self._used()
        if used:
            gc.collect()
            used = self._used()
        return [f"{nbytes} bytes of {where} were not given back" for where, nbytes in used]

    def _used(self) -> list[tuple[str, int]]:
        used = [(device.gpu.name, device.used_bytes) for device in self.devices]
        used.append(("the pool of pinned memory", self._pinned.used_bytes))
        return [(where, nbytes) for where, nbytes in used if nbytes]

    def _computing(self, model: ModelPlan, device: SimulatedDevice, batch: ExecutionBatch) -> float:
        duration_ns, struck = self._struck(model, batch)
        found = {request.fault: request for request in reversed(struck)}  # of several of a kind, the first
        if Fault.CRASH in found:
            self._fall_ill(device, found[Fault.CRASH])
            device.check()
        for fault in (Fault.MEMORY, Fault.RAISE):
            if fault in found:
                self._strike(found[fault])
                raise _failure(found[fault], device)
        if Fault.SLOW in found:
            self._strike(found[Fault.SLOW])
            duration_ns *= SLOWNESS
        if Fault.HANG in found:
            self._strike(found[Fault.HANG])
            duration_ns += self._hang_ns
        if Fault.SICK in found:
            self._falling_ill[batch] = found[Fault.SICK]
        return duration_ns / 1e9

    def _computed(self, device: SimulatedDevice, batch: ExecutionBatch) -> None:
        request = self._falling_ill.pop(batch, None)
        if request is not None:
            self._fall_ill(device, request)

    def _fall_ill(self, device: SimulatedDevice, request: RequestPlan) -> None:
        self._strike(request)
        device.sickness = f"request {request.number} made {device.gpu.name} fall ill"
        self._nursery.start_soon(self._get_well, device)

    async def _get_well(self, device: SimulatedDevice) -> None:
        await self._clock.sleep(self._ill_ns[device.index] / 1e9)
        device.sickness = ""


def _failure(request: RequestPlan, device: SimulatedDevice) -> Exception:
    if request.fault is Fault.MEMORY:
        return OutOfDeviceMemoryError(f"{device.gpu.name} has no memory for request {request.number}")
    return SimulatedFailure(f"request {request.number} raised on {device.gpu.name}")


def _profile(plan: GpuPlan) -> DeviceProfile:
    rates = [ROW_BYTES * 1e9 / each for each in (plan.row_in_ns, plan.row_out_ns)]
    return DeviceProfile(*rates, units=plan.units, memory_bytes=plan.memory_bytes or 1 << 40)


def gpus_of(plan: Plan) -> tuple[Gpu, ...]:
    """As a server is told of them."""
    return tuple(Gpu(index, f"GPU-{index}", (9, 0)) for index in range(len(plan.gpus)))
