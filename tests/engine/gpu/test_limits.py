"""What may be taken of GPUs reaches those who take it."""

from __future__ import annotations

import numpy as np
import pytest
from fake_cupy import FakeCupy, fake_driver
from fake_gpu import FakeGpus

from trireme.engine.backends.services import Services
from trireme.engine.gpu.device import OutOfDeviceMemoryError
from trireme.engine.gpu.limits import GpuLimits


def test_devices_are_made_with_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """And tell how much pinned memory is in use."""
    fake = FakeGpus(count=2)
    services = Services()
    services.limit_gpus(GpuLimits(8192, {1: 1 << 20}))
    monkeypatch.setattr(services.gpus, "_load", lambda: FakeCupy(fake))
    monkeypatch.setattr(services.gpus, "_load_driver", lambda: fake_driver(fake))
    assert services.pinned_used_bytes() == 0
    device = services.gpus.get(1)
    held = device.pinned((4096,), np.dtype(np.uint8))
    assert services.pinned_used_bytes() == 4096
    with pytest.raises(OutOfDeviceMemoryError, match="pinned"):
        device.pinned((8192,), np.dtype(np.uint8))
    with pytest.raises(OutOfDeviceMemoryError):
        device.empty((2 << 20,), np.dtype(np.uint8))
    del held
    assert services.pinned_used_bytes() == 0
