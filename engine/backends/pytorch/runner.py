"""Runs a program as the model's parameters say: without gradients, in mixed precision, with or without cuDNN."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from ...errors import TriremeError
from ...gpu.device import SickDeviceError
from ...gpu.torch_device import TorchDevice
from .library import error_types, execute_error
from .program import Program, Values
from .settings import Settings


class Runner:
    """A program and how it is run. On one thread at a time.

    Args:
        gpu: where the program is, if that is a GPU.
    """

    def __init__(self, torch: Any, program: Program, settings: Settings, gpu: TorchDevice | None = None) -> None:
        self.program = program
        self._torch = torch
        self._settings = settings
        self._gpu = gpu
        self._errors = error_types(torch)

    def run(self, inputs: Values) -> Sequence[Any]:
        """Execute the model; on a GPU, enqueue it on the current stream.

        Raises:
            InternalError: whatever the model raised.
            OutOfDeviceMemoryError, SickDeviceError: see `TorchDevice.errors`.
        """
        torch, settings, gpu = self._torch, self._settings, self._gpu
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.inference_mode() if settings.inference_mode else torch.no_grad())
                stack.enter_context(torch.jit.optimized_execution(settings.optimized_execution))
                if settings.mixed_precision:
                    dtype = getattr(torch, settings.mixed_precision)
                    stack.enter_context(torch.autocast(self.program.device.type, dtype=dtype))
                if gpu is not None:
                    stack.enter_context(gpu.errors())
                    stack.enter_context(gpu.active())
                    if not settings.cudnn:
                        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
                return self.program.run(inputs)
        except TriremeError:
            raise
        except self._errors as error:
            raise execute_error(error) from error

    def clean(self) -> None:
        """``ENABLE_CACHE_CLEANING``, after each run; left out while something is captured, which no batch waits for."""
        if self._gpu is not None and self._settings.clean_cache:
            self._gpu.give_back(wait=False)

    def close(self) -> None:
        """Drop the program, and give back what the device's allocator keeps; one that is sick has nothing to give."""
        del self.program
        if self._gpu is not None:
            with suppress(SickDeviceError, RuntimeError):
                self._gpu.give_back()
